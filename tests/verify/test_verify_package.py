import subprocess
import sys
from pathlib import Path

import swarmkv.verify

ROOT = Path(__file__).parents[2]


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    return done.stdout.strip()


def test_the_exports_are_pinned() -> None:
    assert sorted(swarmkv.verify.__all__) == [
        "Check", "CheckUnusable", "Gate", "GrammarUnsupported", "MatcherFailed", "Partial", "PartialJson",
        "Reject", "SchemaUnsupported", "StrictDecoder", "TokenGrammar", "TokenMatcher", "TokenRefused",
        "Verdict", "VerifyError", "check", "compile_grammar", "extract_json", "json_schema",
    ]  # fmt: skip
    assert all(hasattr(swarmkv.verify, name) for name in swarmkv.verify.__all__)


def test_the_import_is_light() -> None:
    heavy = "{'torch', 'numpy', 'llguidance', 'tokenizers', 'transformers', 'asyncio'}"
    ours = "{'swarmkv.swarm', 'swarmkv.agents', 'swarmkv.kvcore'}"
    code = f"import sys, swarmkv.verify; print(sorted(({heavy} | {ours}) & set(sys.modules)))"
    assert run(code) == "[]"


def test_the_bare_name_is_refused() -> None:
    code = "import sys\ntry:\n    import verify\nexcept ImportError as error:\n    print(error)"
    assert "import this package as swarmkv.verify" in run(code)
