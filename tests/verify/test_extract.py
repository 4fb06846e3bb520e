"""CASES 5: one tolerant extraction, and never something made up in its place."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmkv.verify import Reject, extract_json

DOC = '{"a": [1, {"b": "```"}], "c": "} ] { ["}'
TWICE = json.dumps(DOC)


@pytest.mark.parametrize("raw", [DOC, f"  {DOC}\n", "[]", "{}", "12", '"text"', "null", '{"a":1,"a":2}'])
def test_one_document_is_returned_as_it_is(raw: str) -> None:
    assert extract_json(raw) is raw
    data = raw.encode()
    assert extract_json(data) is data


@pytest.mark.parametrize(
    "raw",
    [
        f"\ufeff{DOC}",
        f"\ufeff```json\n{DOC}\n```",
        f"```json\n{DOC}\n```",
        f"```\n{DOC}\n```",
        f"```JSON\r\n\r\n{DOC}\r\n```\r\nI hope that this helps!",
        f"Sure! Here it is:\n\n```json\n{DOC}\n```\nSee {{this}} and [1].",
        f"```python\nprint({{'a': 1}})\n```\nso:\n```json\n{DOC}\n```",
        f"```json\n{DOC}",
        f"Sure, as in [1], the {{answer}} is {{}}: {DOC} and [that] is all [2].",
        f"{DOC}\n\nThis object holds the answer.",
        f"Answer: {DOC}",
        TWICE,
        f"\ufeff{TWICE}",
        f"```json\n{TWICE}\n```",
    ],
)
def test_a_document_is_found(raw: str) -> None:
    assert extract_json(raw) == DOC
    assert extract_json(raw.encode()) == DOC


@pytest.mark.parametrize(
    "raw",
    ["", "  ", "I do not know.", "Nothing was found in {} or [ ].", "- [ ] to do", "Take {care}.", "``` ```"],
)
def test_nothing_is_made_up(raw: str) -> None:
    verdict = extract_json(raw)
    assert isinstance(verdict, Reject)
    assert "holds no JSON" in verdict.message


@pytest.mark.parametrize(
    "raw", [f"{DOC} or {DOC}", f"```json\n{DOC}\n```\nor\n```json\n{DOC}\n```", "[1] [2]"]
)
def test_more_than_one_document_is_ambiguous(raw: str) -> None:
    verdict = extract_json(raw)
    assert isinstance(verdict, Reject)
    assert "2 JSON documents" in verdict.message


@pytest.mark.parametrize(
    ("raw", "rest"),
    [
        ('{"a": {"b": 1}, "c": ', '{"a": {"b": 1}, "c":'),
        ('So: {"a": {"b": 1}, "c": "x', '{"a": {"b": 1}, "c": "x'),
        ("So: [1, [2], ", "[1, [2],"),
        ("{'a': {\"b\": 1}}", "{'a': {\"b\": 1}}"),
        ('{a: {"b": 1}}', '{a: {"b": 1}}'),
        ('```json\n{"a": {"b": 1},}\n```', '{"a": {"b": 1},}'),
        ('```json\n{"a": {"b": 1}} and more\n```', '{"a": {"b": 1}} and more'),
        ("[" * 5000, "[" * 5000),
    ],
)
def test_of_broken_json_no_inner_piece_is_taken(raw: str, rest: str) -> None:
    found = extract_json(raw)
    assert isinstance(found, str)
    assert found.strip() == rest


def test_invalid_utf8_is_left_to_the_gate() -> None:
    assert extract_json(b"\xff{}") == b"\xff{}"


def test_a_string_that_holds_no_json_stays() -> None:
    assert extract_json('"12"') == '"12"'


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet='{}[]",:`\n aj1\\', max_size=60) | st.text(max_size=30))
def test_any_text_gives_text_of_it_or_a_reject(text: str) -> None:
    found = extract_json(text)
    assert (
        isinstance(found, Reject) or found in text or json.dumps(found)[1:-1] in json.dumps(json.loads(text))
    )


@pytest.mark.timeout(5)
@pytest.mark.parametrize("piece", ["[1,", '[1 "', "{a", "[x ", "```\n", "```json\n{"])
def test_hostile_text_costs_no_quadratic_time(piece: str) -> None:
    assert extract_json("x" + piece * 200_000 + "x") is not None
