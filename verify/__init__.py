"""Gates: what judges an output before anything sees it.

The layout, in the order of a judgement:

    extract   the one JSON document in a model's text
    decoder   the strict gate of one type   (schema: its definition; proof: the quick way; walk: the exact
              one; explain, paths: the reason and its place)
    check     what must hold beyond the schema
    gate      all of it, in order; verdict: its answer
    partial   views of a text that still grows
    grammar   a type as a grammar for constrained decoding; masks: which tokens it allows
"""

if __name__ == "verify":
    raise ImportError("import this package as swarmkv.verify, not as verify")

from .check import Check, check
from .decoder import StrictDecoder
from .errors import (
    CheckUnusable,
    GrammarUnsupported,
    MatcherFailed,
    SchemaUnsupported,
    TokenRefused,
    VerifyError,
)
from .extract import extract_json
from .gate import Gate
from .grammar import compile_grammar, json_schema
from .masks import TokenGrammar, TokenMatcher
from .partial import Partial, PartialJson
from .verdict import Reject, Verdict

__all__ = [
    "Check",
    "CheckUnusable",
    "Gate",
    "GrammarUnsupported",
    "MatcherFailed",
    "Partial",
    "PartialJson",
    "Reject",
    "SchemaUnsupported",
    "StrictDecoder",
    "TokenGrammar",
    "TokenMatcher",
    "TokenRefused",
    "Verdict",
    "VerifyError",
    "check",
    "compile_grammar",
    "extract_json",
    "json_schema",
]
