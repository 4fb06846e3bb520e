"""Token masks: which tokens of a vocabulary may follow, so that the text stays in a grammar.

The model runner takes the masks and knows no grammar; this module knows no model and loads no torch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .errors import GrammarUnsupported, MatcherFailed, TokenRefused
from .grammar import compile_grammar

if TYPE_CHECKING:
    import numpy as np
    from llguidance import LLMatcher, LLTokenizer
    from numpy.typing import NDArray

MAX_KEPT_GRAMMARS = 64


class TokenGrammar:
    """Makes matchers for one tokenizer and vocabulary; keeps the last compiled grammars.

    Making it takes about a second for a real vocabulary: make one per model. Used by one thread at a time.
    """

    def __init__(self, ll_tokenizer: LLTokenizer, n_vocab: int) -> None:
        """Units: n_vocab is the width of the model's logits; ids above the tokenizer's are never allowed.

        Raises: GrammarUnsupported if the tokenizer has more tokens than the model has logits.
        """
        if ll_tokenizer.vocab_size > n_vocab:
            n_tokens = ll_tokenizer.vocab_size
            raise GrammarUnsupported(f"the tokenizer has {n_tokens} tokens, the model only {n_vocab}")
        self.n_vocab = n_vocab
        self._tokenizer = ll_tokenizer
        self._kept: OrderedDict[bytes, LLMatcher] = OrderedDict()

    @classmethod
    def from_json(cls, tokenizer_json: str, n_vocab: int, *, eos_token_id: int | list[int]) -> TokenGrammar:
        """From the text of a Hugging Face `tokenizer.json`.

        Raises: GrammarUnsupported if the text is no tokenizer that the engine can use.
        """
        from llguidance import LLTokenizer

        try:
            tokenizer = LLTokenizer(tokenizer_json, n_vocab=n_vocab, eos_token=eos_token_id)
        except ValueError as error:
            raise GrammarUnsupported(str(error)) from error
        return cls(tokenizer, n_vocab)

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, n_vocab: int) -> TokenGrammar:
        """From a fast tokenizer of Hugging Face transformers (one that has a `backend_tokenizer`).

        Raises: GrammarUnsupported for a slow tokenizer, or one that the engine cannot use.
        """
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise GrammarUnsupported(f"{type(tokenizer).__name__} is no fast tokenizer; load a fast one")
        return cls.from_json(_without_padding(backend), n_vocab, eos_token_id=tokenizer.eos_token_id)

    def matcher(self, schema: bytes) -> TokenMatcher:
        """A new matcher at the beginning of a text of this JSON schema.

        Raises: GrammarUnsupported if the engine cannot enforce the schema.
        """
        fresh = self._kept.get(schema)
        if fresh is None:
            fresh = self._kept[schema] = self._compiled(schema)
            if len(self._kept) > MAX_KEPT_GRAMMARS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(schema)
        return TokenMatcher(fresh.deep_copy(), self.n_vocab, self._tokenizer.eos_tokens)

    def _compiled(self, schema: bytes) -> LLMatcher:
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, compile_grammar(schema), log_level=0)
        if matcher.is_error():
            raise GrammarUnsupported(_first_line(matcher.get_error()))
        return matcher


class TokenMatcher:
    """Follows the tokens of one text; made by `TokenGrammar.matcher`.

    An end-of-text token may follow a whole document, any number of times; it is counted here, because the
    engine does not roll it back.
    """

    def __init__(self, matcher: LLMatcher, n_vocab: int, eos_ids: Sequence[int]) -> None:
        self._matcher = matcher
        self._n_vocab = n_vocab
        self._eos_ids = frozenset(eos_ids)
        self._n_text = 0
        self._n_eos = 0

    @property
    def n_consumed(self) -> int:
        """How many tokens were consumed and not rolled back."""
        return self._n_text + self._n_eos

    @property
    def accepting(self) -> bool:
        """Whether the text so far is a whole document (it might still go on)."""
        return bool(self._matcher.is_accepting())

    @property
    def finished(self) -> bool:
        """Whether only the end-of-text token is allowed."""
        return self._n_eos > 0 or bool(self._matcher.is_stopped())

    def mask(self, out: NDArray[np.int32] | None = None) -> NDArray[np.int32]:
        """Which tokens may follow, one bit a token: token t is bit t % 32 of word t // 32.

        Shapes: int32[ceil(n_vocab / 32)], contiguous; written into `out` if it is given.
        Raises: ValueError for an `out` of another shape or type; MatcherFailed at a limit of the engine.
        """
        import numpy as np

        shape = ((self._n_vocab + 31) // 32,)
        if out is None:
            out = np.empty(shape, dtype=np.int32)
        elif out.shape != shape or out.dtype != np.int32 or not out.flags["C_CONTIGUOUS"]:
            wanted = f"a contiguous int32{list(shape)}"
            raise ValueError(f"the mask must be {wanted}, not {out.dtype}{list(out.shape)}")
        allowed = b"" if self._n_eos else self._matcher.compute_bitmask()
        self._raise_failure()
        octets = out.view(np.uint8)
        n_octets = min(len(allowed), len(octets))
        octets[:n_octets] = np.frombuffer(allowed, dtype=np.uint8, count=n_octets)
        octets[n_octets:] = 0
        for token_id in self._eos_ids if self._n_eos else ():
            octets[token_id // 8] |= 1 << token_id % 8
        return out

    def consume(self, token_id: int) -> None:
        """Go on by one token.

        Raises: TokenRefused if the grammar does not allow it, nothing has changed then; MatcherFailed at a
                limit of the engine.
        """
        if token_id in self._eos_ids and self.accepting:
            self._n_eos += 1
            return
        if self._n_eos or token_id in self._eos_ids or not 0 <= token_id < self._n_vocab:
            raise TokenRefused(token_id)
        n_taken = self._matcher.try_consume_tokens([token_id])
        self._raise_failure()
        if n_taken != 1:
            raise TokenRefused(token_id)
        self._n_text += 1

    def forced(self) -> list[int]:
        """Tokens that must follow whatever the model says; empty where there is a choice. Consumes nothing.

        Raises: MatcherFailed at a limit of the engine.
        """
        if self.finished:
            return []
        tokens: list[int] = self._matcher.compute_ff_tokens()
        self._raise_failure()
        return tokens

    def rollback(self, n_tokens: int) -> None:
        """Go back by tokens, as if they had not been consumed.

        Raises: MatcherFailed if fewer were consumed; nothing has changed then.
        """
        if not 0 <= n_tokens <= self.n_consumed:
            raise MatcherFailed(f"cannot roll back {n_tokens} tokens, {self.n_consumed} were consumed")
        n_eos = min(n_tokens, self._n_eos)
        n_text = n_tokens - n_eos
        if n_text and not self._matcher.rollback(n_text):
            raise MatcherFailed(_first_line(self._matcher.get_error()))
        self._n_eos -= n_eos
        self._n_text -= n_text

    def _raise_failure(self) -> None:
        if self._matcher.is_error():
            raise MatcherFailed(_first_line(self._matcher.get_error()))


def _without_padding(backend: Any) -> str:
    from tokenizers import Tokenizer

    copy = Tokenizer.from_str(backend.to_str())
    copy.no_padding()
    copy.no_truncation()
    return str(copy.to_str())


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0]
