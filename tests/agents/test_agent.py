from __future__ import annotations

import subprocess
import sys
import types
from decimal import Decimal
from typing import Annotated, Any

import importable_agents
import msgspec
import pytest

from swarmkv.agents import (
    Agent,
    AgentInvalid,
    AgentNotImportable,
    AgentRef,
    Context,
    Sampling,
    find_agent,
    tool,
)
from swarmkv.verify import Reject, StrictDecoder, check


class Finding(msgspec.Struct, frozen=True):
    symbol: str


class Other(msgspec.Struct):
    name: str


class Nested(msgspec.Struct):
    finding: Finding
    prices: list[Annotated[Decimal, msgspec.Meta(ge=0)]]


@tool
def grep(pattern: str) -> list[str]:
    return [pattern]


@check
def is_known(finding: Finding, ctx: Context) -> Reject | None:
    return None if finding.symbol in ctx.input else Reject("unknown", path="symbol")


def ask(input: Any, ctx: Context) -> str:
    return f"Read {input}."


async def ask_later(input: Any, ctx: Context) -> str:
    return ""


def plain(**fields: Any) -> Agent[Any]:
    given: dict[str, Any] = {"name": "reader", "instructions": "Read.", "output": Finding}
    return Agent(**(given | fields))


async def test_an_agent_holds_what_it_was_given() -> None:
    agent = Agent(
        "reader", "Read.", output=Finding, tools=[grep], checks=iter([is_known]), prompt=ask, attempts=2
    )
    assert (agent.name, agent.instructions, agent.output) == ("reader", "Read.", Finding)
    assert (agent.tools, agent.checks, agent.attempts, agent.max_turns) == ((grep,), (is_known,), 2, 8)
    assert msgspec.json.decode(agent.schema)["$ref"] == "#/$defs/Finding"
    ctx = Context(input="Lamp", agent="reader")
    assert (await agent.gate.judge('{"symbol":"Lamp"}', ctx)).value == Finding("Lamp")
    assert (await agent.gate.judge('{"symbol":"Moth"}', ctx)).reasons == (Reject("unknown", "symbol"),)


def test_an_agent_is_immutable_and_itself_only() -> None:
    one, other = plain(), plain()
    assert one != other
    assert len({one, other, one}) == 2
    with pytest.raises(AttributeError, match="immutable"):
        one.attempts = 5
    with pytest.raises(AttributeError, match="immutable"):
        del one.attempts
    assert one.attempts == 3


@pytest.mark.parametrize(
    ("fields", "field", "mend"),
    [
        ({"name": ""}, "name", "1 to 64 letters"),
        ({"name": "two words"}, "name", "1 to 64 letters"),
        ({"name": 7}, "name", "1 to 64 letters"),
        ({"instructions": " \n"}, "instructions", "says what to do"),
        ({"instructions": None}, "instructions", "says what to do"),
        ({"tools": grep}, "tools", "a list of functions made with @tool"),
        ({"tools": [ask]}, "tools", "ask was not made with @tool"),
        ({"tools": [grep, grep]}, "tools", "two have one name: grep, grep"),
        ({"checks": [grep]}, "checks", "grep was not made with @check"),
        ({"checks": None}, "checks", "a list of functions made with @check"),
        ({"attempts": 0}, "attempts", "it is 0; it takes a whole number of 1 or more"),
        ({"attempts": True}, "attempts", "whole number"),
        ({"max_turns": 1.5}, "max_turns", "whole number"),
        ({"prompt": "Read {input}"}, "prompt", "plain function of (input, ctx)"),
        ({"prompt": lambda input: ""}, "prompt", "plain function of (input, ctx)"),
        ({"prompt": ask_later}, "prompt", "plain function of (input, ctx)"),
        ({"feedback": lambda: ""}, "feedback", "plain function of (verdict, ctx)"),
        ({"sampling": 0.7}, "sampling", "Sampling(temperature=0.7)"),
        ({"output": Nested}, "output.prices[]", "Decimal"),
        ({"output": object}, "output", "object"),
        ({"output": Finding | Other}, "output", "`tag`"),
        ({"atempts": 2}, "atempts", "did you mean 'attempts'?"),
        ({"effects": []}, "effects", "an agent takes name, instructions, output"),
    ],
)
def test_a_bad_definition_names_the_field_and_the_mend(fields: dict[str, Any], field: str, mend: str) -> None:
    with pytest.raises(AgentInvalid) as caught:
        plain(**fields)
    assert caught.value.field == field
    assert mend in str(caught.value)
    assert not caught.value.retryable


@pytest.mark.parametrize("output", [int, list[Finding], dict[str, int], Finding | None, str | int])
def test_any_type_that_can_be_gated_is_an_output(output: Any) -> None:
    assert StrictDecoder(output).decode(b"no") != "no"
    assert msgspec.json.decode(plain(output=output).schema)


def test_a_reference_finds_the_agent_again() -> None:
    assert importable_agents.reader.reference() == AgentRef("importable_agents", "reader")
    for agent in (importable_agents.reader, importable_agents.under_another_name, importable_agents.aliased):
        assert find_agent(agent.reference()) is agent


def test_a_reference_is_for_what_its_module_binds() -> None:
    for agent in (importable_agents.make_agent("nowhere"), importable_agents.make_agent("reader")):
        with pytest.raises(AgentNotImportable, match="bind it to a name at the top") as caught:
            agent.reference()
        assert (caught.value.agent, caught.value.module) == (agent.name, "importable_agents")


def test_two_agents_of_one_name_are_ambiguous() -> None:
    with pytest.raises(AgentNotImportable, match="two different agents"):
        importable_agents.twin_one.reference()
    with pytest.raises(AgentNotImportable, match="two different agents"):
        find_agent(AgentRef("importable_agents", "twin"))


def test_an_agent_is_preferred_in_the_module_that_defines_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("application")
    exec(
        "from importable_agents import reader as imported\n"
        "from importable_agents import under_another_name\n"
        "from swarmkv.agents import Agent\n"
        "own = Agent('reader', 'Read.', output=int)",
        module.__dict__,
    )
    monkeypatch.setitem(sys.modules, "application", module)
    assert find_agent(AgentRef("application", "reader")) is module.own
    assert find_agent(AgentRef("application", "writer")) is importable_agents.under_another_name


@pytest.mark.parametrize("name", ["__main__", "__mp_main__"])
def test_a_script_is_found_under_the_name_that_a_worker_gives_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = types.ModuleType("__mp_main__")
    exec("from swarmkv.agents import Agent\nreader = Agent('reader', 'Read.', output=int)", script.__dict__)
    monkeypatch.setitem(sys.modules, "__mp_main__", script)
    assert script.reader.module == "__mp_main__"
    assert find_agent(AgentRef(name, "reader")) is script.reader
    assert script.reader.reference().name == "reader"


def test_an_agent_that_is_not_there_is_told(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "faulty_module.py").write_text("1 / 0")
    for ref, reason in [
        (AgentRef("importable_agents", "nobody"), "bind it"),
        (AgentRef("no_such_module", "reader"), "importing it fails: ModuleNotFoundError"),
        (AgentRef("faulty_module", "reader"), "importing it fails: ZeroDivisionError"),
    ]:
        with pytest.raises(AgentNotImportable, match=reason):
            find_agent(ref)


def test_importing_agents_is_light() -> None:
    heavy = {"torch", "transformers", "rich", "sqlite3", "llguidance"}
    code = f"import sys, swarmkv.agents, swarmkv.agents.backends; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=50, check=True)
    assert done.stdout.strip() == b"[]"


def test_a_bad_sampling_in_an_agent_is_told_where_it_is_made() -> None:
    assert plain(sampling=Sampling(temperature=0.5)).sampling.temperature == 0.5
