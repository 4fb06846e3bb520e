from __future__ import annotations

from typing import Any

import msgspec
import pytest

from swarmkv.agents import AttemptKey, Generation, Message, Sampling, Usage
from swarmkv.agents.errors import AgentError, SamplingInvalid


def test_usage_adds_up() -> None:
    one, other = Usage(1, 2, 3, 4, 5), Usage(10, 20, 30, 40, 50)
    assert one + other == Usage(11, 22, 33, 44, 55)
    assert sum([one, other], Usage()) == one + other


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", "0.7"),
        ("temperature", True),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("seed", -1),
        ("seed", 2**63),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
    ],
)
def test_a_setting_outside_its_range_is_named(field: str, value: Any) -> None:
    with pytest.raises(SamplingInvalid, match=field) as caught:
        Sampling(**{field: value})
    assert (caught.value.field, caught.value.value is value) == (field, True)
    assert isinstance(caught.value, AgentError)


def test_the_edges_of_the_ranges_are_allowed() -> None:
    sampling = Sampling(temperature=0, top_p=1, top_k=0, seed=2**63 - 1, max_tokens=1)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sampling), type=Sampling) == sampling


@pytest.mark.parametrize(
    "value",
    [
        Message("user", "Grüße 🙂"),
        AttemptKey("run", "task", 3),
        Generation("text", "length", Usage(1, 2, 3, 4, 5)),
    ],
)
def test_what_travels_arrives(value: Any) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=type(value)) == value
