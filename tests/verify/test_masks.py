"""Masks over a byte-level vocabulary, and the grammar held against the gate by random walks."""

import datetime
import enum
import random
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from swarmkv.verify import (
    GrammarUnsupported,
    MatcherFailed,
    Reject,
    StrictDecoder,
    TokenGrammar,
    TokenMatcher,
    TokenRefused,
    json_schema,
)

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
PIECES = ['{"', '":', '","', '"}', "},", "true", "null", "name", '":"', "12", "][", '"],"']
EOS = len(ALPHABET)
N_VOCAB = 320


def _tokenizer_json() -> str:
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(ALPHABET)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    tokenizer.add_tokens([AddedToken(piece, special=False, normalized=False) for piece in PIECES])
    return str(tokenizer.to_str())


TOKENIZER = Tokenizer.from_str(_tokenizer_json())
GRAMMAR = TokenGrammar.from_json(_tokenizer_json(), N_VOCAB, eos_token_id=EOS)


class Kind(enum.Enum):
    A = "a"
    B = "b"


class Leaf(msgspec.Struct, tag=True):
    name: Annotated[str, msgspec.Meta(min_length=2, max_length=12)]
    size: Annotated[int, msgspec.Meta(ge=-5, le=120)] = 3


class Branch(msgspec.Struct, tag=True):
    leaves: Annotated[list[Leaf], msgspec.Meta(min_length=1, max_length=2)]
    kind: Kind | None = None


class Pair(NamedTuple):
    a: bool
    b: Literal["x", "y"] = "x"


class Record(msgspec.Struct):
    code: Annotated[str, msgspec.Meta(pattern="^[a-z]{2,4}-[0-9]+$", max_length=12)]
    ratio: Annotated[float, msgspec.Meta(ge=0, le=1)]
    amount: Decimal
    blob: Annotated[bytes, msgspec.Meta(max_length=6)]
    pair: Pair
    id: uuid.UUID
    counts: dict[Kind, Annotated[int, msgspec.Meta(ge=0, le=9)]] = {}
    text: Annotated[str, msgspec.Meta(max_length=20)] = ""
    absent: bool | msgspec.UnsetType = msgspec.UNSET


WALKED: list[Any] = [
    Leaf,
    Branch,
    Record,
    Leaf | Branch | None,
    Annotated[str, msgspec.Meta(max_length=30)],
    Annotated[list[Leaf | Branch], msgspec.Meta(max_length=2)],
    Annotated[datetime.time, msgspec.Meta(tz=True)],
    Annotated[datetime.datetime, msgspec.Meta(tz=True)],
]


def allowed(matcher: TokenMatcher) -> list[int]:
    bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
    return [int(i) for i in np.flatnonzero(bits)]


def text_of(tokens: list[int]) -> bytes:
    parts = [TOKENIZER.id_to_token(token) for token in tokens]
    to_byte = {c: b for b, c in _byte_alphabet().items()}
    return b"".join(
        part.encode() if token > EOS else bytes(to_byte[c] for c in part)
        for part, token in zip(parts, tokens, strict=True)
    )


def _byte_alphabet() -> dict[int, str]:
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(rest)}


def walk(matcher: TokenMatcher, seed: int, cap: int = 600) -> list[int] | None:
    rng, tokens = random.Random(seed), list[int]()
    while len(tokens) < cap:
        choices = allowed(matcher)
        token = rng.choice(choices)
        matcher.consume(token)
        if token == EOS:
            return tokens
        tokens.append(token)
    return None


@pytest.mark.parametrize("type_", WALKED, ids=str)
def test_what_the_grammar_allows_the_gate_accepts(type_: Any) -> None:
    decoder, schema = StrictDecoder(type_), json_schema(type_)
    ended = 0
    for seed in range(25):
        tokens = walk(GRAMMAR.matcher(schema), seed)
        if tokens is not None:
            ended += 1
            answer = decoder.decode(text_of(tokens))
            assert not isinstance(answer, Reject), (text_of(tokens), answer)
    assert ended >= 20


def consume_text(matcher: TokenMatcher, text: str) -> None:
    for character in text:
        matcher.consume(ALPHABET.index(character))


def test_a_matcher_follows_a_text() -> None:
    matcher = GRAMMAR.matcher(json_schema(Annotated[list[bool], msgspec.Meta(max_length=2)]))
    assert allowed(matcher) == [ALPHABET.index("[")]
    consume_text(matcher, "[true")
    assert not matcher.accepting
    consume_text(matcher, "]")
    assert matcher.accepting
    assert matcher.finished
    assert allowed(matcher) == [EOS]
    assert matcher.n_consumed == 6


def test_whitespace_is_not_allowed() -> None:
    matcher = GRAMMAR.matcher(json_schema(Leaf))
    consume_text(matcher, '{"type":"Leaf","')
    assert ALPHABET.index("Ġ") not in allowed(matcher)


def test_accepting_is_not_yet_finished() -> None:
    matcher = GRAMMAR.matcher(json_schema(int))
    consume_text(matcher, "12")
    assert matcher.accepting
    assert not matcher.finished
    assert EOS in allowed(matcher)


def test_rollback_restores_the_mask() -> None:
    matcher = GRAMMAR.matcher(json_schema(Leaf))
    masks = []
    text = '{"type":"Leaf","name":"ab","size":3}'
    for character in text:
        masks.append(matcher.mask())
        consume_text(matcher, character)
    matcher.consume(EOS)
    matcher.rollback(1 + 10)
    assert np.array_equal(matcher.mask(), masks[len(text) - 10])
    consume_text(matcher, text[-10:])
    assert matcher.finished
    matcher.rollback(len(text))
    assert np.array_equal(matcher.mask(), masks[0])
    with pytest.raises(MatcherFailed, match="cannot roll back 1 tokens, 0 were consumed"):
        matcher.rollback(1)
    with pytest.raises(MatcherFailed):
        matcher.rollback(-1)


def test_a_refused_token_changes_nothing() -> None:
    matcher = GRAMMAR.matcher(json_schema(bool))
    with pytest.raises(TokenRefused) as caught:
        matcher.consume(ALPHABET.index("x"))
    assert caught.value.token_id == ALPHABET.index("x")
    for impossible in (N_VOCAB - 1, N_VOCAB + 100):
        with pytest.raises(TokenRefused):
            matcher.consume(impossible)
    consume_text(matcher, "true")
    assert matcher.finished


def test_a_mask_is_written_into_the_given_row() -> None:
    matcher = GRAMMAR.matcher(json_schema(bool))
    rows = np.full((2, N_VOCAB // 32), -1, dtype=np.int32)
    assert matcher.mask(rows[1]) is not None
    assert np.array_equal(rows[1], matcher.mask())
    assert (rows[0] == -1).all()
    assert rows[1, -1] == 0  # ids above the tokenizer's
    for bad in (np.zeros(3, np.int32), np.zeros(N_VOCAB // 32, np.int64), rows[:, 0]):
        with pytest.raises(ValueError, match="int32"):
            matcher.mask(bad)


def test_matchers_of_one_schema_are_independent() -> None:
    first, second = GRAMMAR.matcher(json_schema(bool)), GRAMMAR.matcher(json_schema(bool))
    consume_text(first, "true")
    assert first.finished
    assert not second.finished


def test_bad_tokenizers_and_schemas_are_typed_errors() -> None:
    with pytest.raises(GrammarUnsupported):
        TokenGrammar.from_json("{}", N_VOCAB, eos_token_id=0)
    with pytest.raises(GrammarUnsupported):
        TokenGrammar.from_json(_tokenizer_json(), 7, eos_token_id=0)
    with pytest.raises(GrammarUnsupported):
        TokenGrammar.from_tokenizer(object(), N_VOCAB)
    with pytest.raises(GrammarUnsupported):
        GRAMMAR.matcher(b"[")


def test_a_fast_tokenizer_will_do() -> None:
    class Fast:
        backend_tokenizer = TOKENIZER
        eos_token_id = EOS

    matcher = TokenGrammar.from_tokenizer(Fast(), N_VOCAB).matcher(json_schema(bool))
    consume_text(matcher, "false")
    assert matcher.finished
