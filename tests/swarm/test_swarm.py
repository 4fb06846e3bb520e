from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import swarm_agents as agents
from swarm_agents import answer, call, output

from swarmkv.agents import (
    Agent,
    AgentNotImportable,
    AttemptKey,
    NotPortable,
    Plan,
    PlanInvalid,
    PlannedTask,
    StaticPlanner,
    TaskResult,
)
from swarmkv.agents.backends.scripted import ScriptedBackend
from swarmkv.swarm import Event, SettingInvalid, Swarm, SwarmClosed, TaskFailed
from swarmkv.swarm.sending import PIECE_CHARS
from swarmkv.swarm.stores import MemoryStore, open_store
from swarmkv.verify import Reject

OpenSwarm = Callable[..., Swarm]


def echo(key: AttemptKey, messages: Any) -> str:
    """Answers with the first line of the input."""
    return answer(messages[1].content.split("\n")[0])


def plan(*tasks: PlannedTask) -> StaticPlanner:
    return StaticPlanner(tasks)


async def until(events: asyncio.Queue[Event], kind: str) -> Event:
    while (event := await events.get()).kind != kind:
        pass
    return event


# One task


async def test_run_gives_an_accepted_value(any_swarm: OpenSwarm) -> None:
    async with any_swarm(backend=ScriptedBackend([answer("hello there")])) as swarm:
        outcome = await swarm.run(agents.plain, "greet")
    assert outcome.accepted
    assert outcome.require() == outcome.value == agents.Answer("hello there")
    assert (outcome.task, outcome.agent, outcome.reason) == ("1", "plain", "")
    assert [attempt.number for attempt in outcome.attempts] == [1]
    assert outcome.usage.decoded_tokens == 2
    assert outcome.usage.prefilled_tokens > 0
    assert len(outcome.run_id) == 16
    assert len(outcome.trace_id) == 32


async def test_a_rejected_attempt_is_rolled_back_and_told_why(any_swarm: OpenSwarm) -> None:
    backend = ScriptedBackend([answer("no"), answer("bad"), answer("good")])
    async with any_swarm(backend=backend) as swarm:
        outcome = await swarm.run(agents.plain, {"forbidden": "bad"})
    assert outcome.value == agents.Answer("good")
    first, second, third = outcome.attempts
    assert first.verdict is not None
    assert first.verdict.reasons[0].path == "$.text"
    assert second.verdict is not None
    assert second.verdict.reasons == (Reject("that word is forbidden", path="$.text"),)
    assert third.verdict is not None
    assert third.verdict.accepted
    assert [attempt.text for attempt in outcome.attempts] == [answer("no"), answer("bad"), answer("good")]
    # The retry pays for the feedback alone; what was decoded for nothing was taken back.
    assert first.usage.rolled_back_tokens == first.usage.decoded_tokens == 1
    assert second.usage.reused_tokens >= first.usage.prefilled_tokens - 2
    assert third.usage.rolled_back_tokens == 0
    assert third.usage.evicted_pages > 0
    assert sum((attempt.usage for attempt in outcome.attempts), type(outcome.usage)()) == outcome.usage
    told = [messages[-1].content for _, messages in backend.calls]
    assert first.verdict.feedback() in told[1]
    assert told[2].index(first.verdict.feedback()) < told[2].index(second.verdict.feedback())


async def test_exhausted_attempts_are_an_outcome_with_every_verdict(any_swarm: OpenSwarm) -> None:
    async with any_swarm(backend=ScriptedBackend(["nonsense", "{}", answer("x")])) as swarm:
        outcome = await swarm.run(agents.plain, "greet")
        assert (await swarm.store.runs())[0].run_id == outcome.run_id
        kinds = [record.kind for record in await swarm.store.read(outcome.run_id)]
    assert kinds == ["RunStarted", "TaskFailed", "RunEnded"]
    assert not outcome.accepted
    assert outcome.value is None
    assert "tried 3 times" in outcome.reason
    assert [attempt.text for attempt in outcome.attempts] == ["nonsense", "{}", answer("x")]
    assert all(attempt.verdict and attempt.verdict.reasons for attempt in outcome.attempts)
    with pytest.raises(TaskFailed, match="tried 3 times"):
        outcome.require()


async def test_a_check_that_crashes_rejects(any_swarm: OpenSwarm) -> None:
    async with any_swarm(backend=ScriptedBackend([answer("one"), answer("two")])) as swarm:
        outcome = await swarm.run(agents.crashing, "greet")
    assert not outcome.accepted
    assert len(outcome.attempts) == 2
    assert "ZeroDivisionError: in the check" in outcome.reason


async def test_a_cut_answer_is_told_to_be_shorter(any_swarm: OpenSwarm) -> None:
    async with any_swarm(backend=ScriptedBackend([answer("two words")])) as swarm:
        outcome = await swarm.run(agents.brief, "greet")
    assert not outcome.accepted
    assert outcome.attempts[0].verdict is not None
    assert "cut off after 1 tokens" in outcome.attempts[0].verdict.reasons[0].message


async def test_a_backend_that_fails_fails_its_attempt_only(any_swarm: OpenSwarm) -> None:
    def script(key: AttemptKey, messages: Any) -> str:
        if "break" in messages[1].content:
            raise ValueError("no such device")
        return answer("fine")

    async with any_swarm(backend=ScriptedBackend(script)) as swarm:
        outcome = await swarm.run(agents.plain, "break")
        assert (await swarm.run(agents.plain, "greet")).accepted
    assert not outcome.accepted
    assert outcome.attempts[0].verdict is None
    assert "ValueError: no such device" in outcome.attempts[0].error
    assert outcome.reason == outcome.attempts[0].error


async def test_a_prompt_that_fails_fails_its_task_only(any_swarm: OpenSwarm) -> None:
    async with any_swarm(backend=ScriptedBackend([answer("fine")])) as swarm:
        outcome = await swarm.run(agents.unprompted, "entry")
        assert (await swarm.run(agents.plain, "greet")).accepted
    assert not outcome.accepted
    assert "no entry here" in outcome.reason


async def test_user_code_that_exits_fails_its_task_only(any_swarm: OpenSwarm) -> None:
    """A library that calls sys.exit() must not end the worker, and still less the host."""

    def leaving(results: Mapping[str, TaskResult]) -> str:
        raise SystemExit("from the plan")

    planner = plan(
        PlannedTask("prompt", "exiting_in_prompt", "go"),
        PlannedTask("check", "exiting_in_check", "go"),
        PlannedTask("input", "plain", leaving),
        PlannedTask("fine", "plain", "go"),
    )
    known = [agents.plain, agents.exiting_in_prompt, agents.exiting_in_check]
    async with any_swarm(backend=ScriptedBackend(lambda key, messages: answer("fine"))) as swarm:
        before = swarm.pids()
        tasks = (await swarm.pursue("leave", planner=planner, agents=known)).tasks
        assert swarm.pids() == before
    assert [id_ for id_, outcome in tasks.items() if outcome.accepted] == ["fine"]
    assert "SystemExit: from the prompt" in tasks["prompt"].reason
    assert "SystemExit: from the plan" in tasks["input"].reason
    verdicts = [attempt.verdict for attempt in tasks["check"].attempts]
    assert len(verdicts) == 2
    for verdict in verdicts:
        assert verdict is not None
        assert "SystemExit: from the check" in verdict.reasons[0].message
    assert "SystemExit: from the feedback" in verdicts[0].reasons[1].message


async def test_an_answer_too_large_for_the_rings_fails_its_attempt(process_swarm: OpenSwarm) -> None:
    backend = ScriptedBackend([answer("x" * 40_000), answer("fine")])
    async with process_swarm(backend=backend, ring_bytes=2**16) as swarm:
        outcome = await asyncio.wait_for(swarm.run(agents.listing, "list"), 10)
        assert (await swarm.run(agents.plain, "greet")).accepted
    assert not outcome.accepted
    assert "ring_bytes" in outcome.reason


async def test_an_input_too_large_for_the_rings_fails_its_task(process_swarm: OpenSwarm) -> None:
    async with process_swarm(backend=ScriptedBackend([answer("fine")]), ring_bytes=2**16) as swarm:
        outcome = await asyncio.wait_for(swarm.run(agents.plain, "x" * 40_000), 10)
        assert (await swarm.run(agents.plain, "greet")).accepted
    assert not outcome.accepted
    assert "ring_bytes" in outcome.reason


# Many tasks


async def test_map_keeps_the_order_whatever_ends_first(any_swarm: OpenSwarm) -> None:
    turns: dict[str, asyncio.Event] = {name: asyncio.Event() for name in ("first", "second")}
    turns["third"] = asyncio.Event()
    turns["third"].set()
    after = {"third": "second", "second": "first"}

    class Backwards(ScriptedBackend):
        async def generate(self, key: AttemptKey, messages: Any, **options: Any) -> Any:
            name = messages[1].content
            await turns[name].wait()
            if name in after:
                turns[after[name]].set()
            return await super().generate(key, messages, **options)

    async with any_swarm(backend=Backwards(echo), tasks_per_worker=3) as swarm:
        outcomes = await swarm.map(agents.plain, ["first", "second", "third"])
    assert [outcome.require().text for outcome in outcomes] == ["first", "second", "third"]
    assert [outcome.task for outcome in outcomes] == ["1", "2", "3"]
    assert len({outcome.run_id for outcome in outcomes}) == 1


async def test_map_runs_no_more_attempts_than_there_are_slots(any_swarm: OpenSwarm) -> None:
    running = most = 0
    both = asyncio.Event()

    class Counting(ScriptedBackend):
        async def generate(self, key: AttemptKey, messages: Any, **options: Any) -> Any:
            nonlocal running, most
            running += 1
            most = max(most, running)
            if running == 2:
                both.set()
            await both.wait()
            try:
                return await super().generate(key, messages, **options)
            finally:
                running -= 1

    async def one_word() -> None:
        await asyncio.sleep(0)

    async with any_swarm(backend=Counting(echo, delay=one_word), tasks_per_worker=2) as swarm:
        outcomes = await swarm.map(agents.plain, [f"word{number}" for number in range(20)])
    assert all(outcome.accepted for outcome in outcomes)
    assert most == 2


async def test_map_over_nothing_gives_nothing(any_swarm: OpenSwarm) -> None:
    async with any_swarm(backend=ScriptedBackend([])) as swarm:
        assert await swarm.map(agents.plain, []) == []


async def test_pursue_runs_a_task_after_those_it_needs(any_swarm: OpenSwarm) -> None:
    started: list[str] = []

    def script(key: AttemptKey, messages: Any) -> str:
        started.append(key.task)
        return answer(messages[1].content.upper())

    def joined(results: Mapping[str, TaskResult]) -> str:
        return " and ".join(result.value.text for result in results.values())

    planner = plan(
        PlannedTask("last", "other", joined, needs=("left", "right")),
        PlannedTask("left", "plain", "one"),
        PlannedTask("right", "plain", "two"),
    )
    async with any_swarm(backend=ScriptedBackend(script)) as swarm:
        pursuit = await swarm.pursue("join", planner=planner, agents=[agents.plain, agents.other])
    assert pursuit.accepted
    assert list(pursuit.tasks) == ["last", "left", "right"]
    assert started[-1] == "last"
    assert pursuit.tasks["last"].value == agents.Answer("ONE AND TWO")
    assert {outcome.run_id for outcome in pursuit.tasks.values()} == {pursuit.run_id}
    assert pursuit.usage.decoded_tokens == 5


async def test_failed_needs_and_failed_inputs_end_their_tasks_only(any_swarm: OpenSwarm) -> None:
    def raising(results: Mapping[str, TaskResult]) -> str:
        raise KeyError("symbols")

    def told(results: Mapping[str, TaskResult]) -> str:
        assert not results["bad"].accepted
        assert results["bad"].value is None
        return f"because {'tried' in results['bad'].reason}"

    def script(key: AttemptKey, messages: Any) -> str:
        return "nonsense" if key.task == "bad" else echo(key, messages)

    planner = plan(
        PlannedTask("bad", "plain", "go"),
        PlannedTask("needs bad", "plain", "go", needs=("bad",)),
        PlannedTask("needs that", "plain", "go", needs=("needs bad",)),
        PlannedTask("raises", "plain", raising),
        PlannedTask("unportable", "plain", lambda results: (1, 2)),
        PlannedTask("after failures", "plain", told, needs=("bad",), after_failures=True),
        PlannedTask("fine", "plain", "fine"),
    )
    events: list[Event] = []
    async with any_swarm(backend=ScriptedBackend(script)) as swarm:
        pursuit = await swarm.pursue("try", planner=planner, agents=[agents.plain], on_event=events.append)
        records = await swarm.store.read(pursuit.run_id)
    assert not pursuit.accepted
    tasks = pursuit.tasks
    assert [id_ for id_, outcome in tasks.items() if outcome.accepted] == ["after failures", "fine"]
    assert "needs bad" in tasks["needs bad"].reason
    assert "needs needs bad" in tasks["needs that"].reason
    assert "KeyError: 'symbols'" in tasks["raises"].reason
    assert "tuple" in tasks["unportable"].reason
    assert tasks["after failures"].value == agents.Answer("because True")
    assert tasks["needs bad"].attempts == tasks["raises"].attempts == ()
    assert {event.task for event in events if event.kind == "failed"} == {
        "bad",
        "needs bad",
        "needs that",
        "raises",
        "unportable",
    }
    assert {record.task_id for record in records if record.kind == "TaskFailed"} == {
        "bad",
        "needs bad",
        "needs that",
        "raises",
        "unportable",
    }
    assert msgspec.json.decode(records[-1].body) == {"type": "RunEnded", "committed": 2, "failed": 5}


async def test_results_reach_the_tools_and_prompts_of_a_task_as_json(any_swarm: OpenSwarm) -> None:
    """Also if the model wrapped its answer into a Markdown fence."""
    replies = [f"```json\n{answer('from a fence')}\n```", answer("done")]
    planner = plan(PlannedTask("a", "plain", "go"), PlannedTask("b", "asking", "go", needs=("a",)))
    async with any_swarm(backend=(backend := ScriptedBackend(replies))) as swarm:
        pursuit = await swarm.pursue("ask", planner=planner, agents=[agents.plain, agents.asking])
        records = await swarm.store.read(pursuit.run_id)
    assert pursuit.accepted
    assert backend.calls[1][1][1].content == "a said from a fence"
    committed = [msgspec.json.decode(record.body) for record in records if record.kind == "TaskCommitted"]
    assert [msgspec.json.decode(entry["value"]) for entry in committed] == [
        {"text": "from a fence"},
        {"text": "done"},
    ]


async def test_one_agent_serves_two_runs_at_the_same_time(any_swarm: OpenSwarm) -> None:
    both = asyncio.Barrier(2)

    class Together(ScriptedBackend):
        async def generate(self, key: AttemptKey, messages: Any, **options: Any) -> Any:
            await both.wait()
            return await super().generate(key, messages, **options)

    async with any_swarm(backend=Together(echo), tasks_per_worker=2) as swarm:
        one, two = await asyncio.gather(swarm.run(agents.plain, "one"), swarm.run(agents.plain, "two"))
    assert (one.require().text, two.require().text) == ("one", "two")
    assert one.run_id != two.run_id


async def test_two_swarms_live_in_one_process(any_swarm: OpenSwarm) -> None:
    async with any_swarm(backend=ScriptedBackend([answer("left")])) as left:
        async with any_swarm(backend=ScriptedBackend([answer("right")])) as right:
            two = await right.run(agents.plain, "go")
        one = await left.run(agents.plain, "go")
    assert (one.require().text, two.require().text) == ("left", "right")


async def test_the_swarms_seed_is_every_attempts(any_swarm: OpenSwarm) -> None:
    seeds: list[int] = []

    class Noting(ScriptedBackend):
        async def generate(self, key: AttemptKey, messages: Any, *, sampling: Any, **options: Any) -> Any:
            seeds.append(sampling.seed)
            return await super().generate(key, messages, sampling=sampling, **options)

    for seed in (3, 3, 4):
        async with any_swarm(backend=Noting([answer("fine")]), seed=seed) as swarm:
            assert (await swarm.run(agents.plain, "go")).accepted
    assert seeds[0] == seeds[1] != seeds[2]


# Streams


async def test_streamed_text_adds_up_to_the_output(any_swarm: OpenSwarm) -> None:
    said = answer("a few words, with  two spaces and ü")
    async with any_swarm(backend=ScriptedBackend(["nonsense", said])) as swarm:
        events = [event async for event in swarm.stream(agents.plain, "greet")]
    kinds = [event.kind for event in events if event.kind != "text"]
    assert kinds == ["dispatched", "rejected", "dispatched", "committed"]
    for number, text in enumerate(["nonsense", said], 1):
        pieces = [event.text for event in events if event.kind == "text" and event.attempt == number]
        assert "".join(pieces) == text
    assert len(pieces) > 1
    assert events[-1].outcome is not None
    assert events[-1].outcome.value == agents.Answer("a few words, with  two spaces and ü")


async def test_a_streamed_word_larger_than_a_frame_comes_in_pieces(any_swarm: OpenSwarm) -> None:
    said = answer("ü" * 20_000)
    async with any_swarm(backend=ScriptedBackend([said]), ring_bytes=2**17) as swarm:
        events = [event async for event in swarm.stream(agents.plain, "greet")]
    texts = [event.text for event in events if event.kind == "text"]
    assert "".join(texts) == said
    assert max(map(len, texts)) <= PIECE_CHARS or len(texts) == 1  # inline, nothing is framed
    assert events[-1].kind == "committed"


async def test_leaving_a_stream_cancels_its_tool(any_swarm: OpenSwarm, tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    began, cancelled = Path(mark + ".began"), Path(mark + ".cancelled")
    backend = ScriptedBackend([call("hold", mark=mark), answer("still usable")])
    async with any_swarm(backend=backend) as swarm:
        async for event in swarm.stream(agents.holding, "go"):
            assert event.kind in ("dispatched", "text")
            if event.kind == "text" and event.text.endswith("}"):
                await appears(began)
                break
        await asyncio.wait_for(appears(cancelled), 1)
        assert (await swarm.run(agents.plain, "greet")).accepted


async def test_a_timeout_cancels_a_tool(any_swarm: OpenSwarm, tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    async with any_swarm(backend=ScriptedBackend([call("hold", mark=mark), answer("still usable")])) as swarm:
        running = asyncio.ensure_future(swarm.run(agents.holding, "go"))
        await appears(Path(mark + ".began"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(running, 0.01)
        await asyncio.wait_for(appears(Path(mark + ".cancelled")), 1)
        assert (await swarm.run(agents.plain, "greet")).accepted


async def appears(file: Path) -> None:
    """Wait for what another process tells by a file."""
    while not file.exists():
        await asyncio.sleep(0.005)


async def test_a_cancelled_run_frees_its_branch_and_its_slot(any_swarm: OpenSwarm) -> None:
    events: asyncio.Queue[Event] = asyncio.Queue()
    hold = asyncio.Event()
    backend = ScriptedBackend(echo, delay=hold.wait)
    async with any_swarm(backend=backend) as swarm:
        running = asyncio.ensure_future(swarm.map(agents.plain, ["one", "two"], on_event=events.put_nowait))
        await until(events, "dispatched")
        while not backend.calls:
            await asyncio.sleep(0.001)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        hold.set()
        assert (await swarm.run(agents.plain, "three")).require().text == "three"
        assert not backend._branches


# Bad input


@pytest.mark.parametrize(
    ("bad", "place"),
    [
        ({"a": [1, threading.Lock()]}, "$.a[1]"),
        ({"pair": (1, 2)}, "$.pair"),
        (2**70, "$"),
        ("lone \ud800", "$"),
        ({1: "one"}, "$"),
    ],
)
async def test_an_input_that_does_not_travel_is_refused_before_anything_starts(
    any_swarm: OpenSwarm, bad: object, place: str
) -> None:
    backend = ScriptedBackend(echo)
    async with any_swarm(backend=backend) as swarm:
        for start in (swarm.run(agents.plain, bad), swarm.map(agents.plain, ["good", bad])):
            with pytest.raises(NotPortable) as caught:
                await start
            assert caught.value.path == place
        with pytest.raises(NotPortable):
            async for _ in swarm.stream(agents.plain, bad):
                pass
        assert await swarm.store.runs() == []
    assert backend.calls == []


async def test_bad_agents_and_plans_are_refused_before_anything_starts(any_swarm: OpenSwarm) -> None:
    hidden = Agent("hidden", "Answer.", output=str)
    backend = ScriptedBackend(echo)

    class Careless:
        async def plan(self, goal: str, agents: Any) -> Any:
            return [PlannedTask("a", "plain", "go")]

    class Failing:
        async def plan(self, goal: str, agents: Any) -> Plan:
            raise ConnectionError("no planner")

    async with any_swarm(backend=backend) as swarm:
        with pytest.raises(AgentNotImportable, match="bind it to a name"):
            await swarm.run(hidden, "go")
        with pytest.raises(PlanInvalid, match="task 'a' is for agent 'plain'; there are other"):
            await swarm.pursue("go", planner=plan(PlannedTask("a", "plain", "go")), agents=[agents.other])
        with pytest.raises(PlanInvalid, match="no task"):
            await swarm.pursue("go", planner=plan(), agents=[agents.plain])
        with pytest.raises(PlanInvalid, match="a list"):
            await swarm.pursue("go", planner=Careless(), agents=[agents.plain])
        with pytest.raises(ConnectionError):
            await swarm.pursue("go", planner=Failing(), agents=[agents.plain])
        with pytest.raises(SettingInvalid, match="different names"):
            await swarm.pursue("go", planner=plan(), agents=[agents.plain, agents.plain])
        assert await swarm.store.runs() == []
    assert backend.calls == []


NOTEBOOK = """
import anyio
from swarmkv.agents import Agent, AgentNotImportable
from swarmkv.agents.backends.scripted import ScriptedBackend
from swarmkv.swarm import Swarm

counter = Agent("counter", "Count.", output=int)

async def main():
    async with Swarm(backend=ScriptedBackend(["7"]), isolation="inline") as swarm:
        print((await swarm.run(counter, "go")).value)
    async with Swarm(backend=ScriptedBackend(["7"]), workers=1) as swarm:
        try:
            await swarm.run(counter, "go")
        except AgentNotImportable as error:
            print(error)

anyio.run(main)
"""


def test_an_agent_of_a_notebook_is_refused_with_the_mend() -> None:
    """`python -c` has, like a notebook and a shell, no file that workers could run."""
    done = subprocess.run([sys.executable, "-c", NOTEBOOK], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    value, refusal = done.stdout.splitlines()
    assert value == "7"
    assert "put the agent into a module" in refusal
    assert 'isolation="inline"' in refusal


async def test_outside_its_block_a_swarm_is_closed(any_swarm: OpenSwarm) -> None:
    swarm = any_swarm(backend=ScriptedBackend(echo))

    async def refuses() -> None:
        with pytest.raises(SwarmClosed, match="async with"):
            await swarm.run(agents.plain, "go")
        with pytest.raises(SwarmClosed):
            await swarm.map(agents.plain, [])
        with pytest.raises(SwarmClosed):
            await swarm.audit()
        with pytest.raises(SwarmClosed):
            async for _ in swarm.stream(agents.plain, "go"):
                pass
        for ask in (swarm.pids, lambda: swarm.store):
            with pytest.raises(SwarmClosed):
                ask()

    await refuses()
    async with swarm:
        assert (await swarm.run(agents.plain, "first")).accepted
        with pytest.raises(SwarmClosed):
            await swarm.__aenter__()
    await refuses()
    async with swarm:
        assert (await swarm.run(agents.plain, "again")).accepted


async def test_runs_in_flight_fail_when_the_swarm_closes(any_swarm: OpenSwarm) -> None:
    """Those that wait for a slot too. Nothing hangs, and no task is left."""
    backend = ScriptedBackend(echo, delay=asyncio.Event().wait)
    async with any_swarm(backend=backend) as swarm:
        runs = [asyncio.ensure_future(swarm.map(agents.plain, ["one", "two"])) for _ in range(2)]
        while not backend.calls:
            await asyncio.sleep(0.001)
    results = await asyncio.wait_for(asyncio.gather(*runs, return_exceptions=True), 1)
    assert [type(result) for result in results] == [SwarmClosed, SwarmClosed]
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_what_a_listener_raises_ends_its_run_only(any_swarm: OpenSwarm) -> None:
    def listener(event: Event) -> None:
        raise RuntimeError("the listener's own")

    async with any_swarm(backend=ScriptedBackend(echo)) as swarm:
        with pytest.raises(RuntimeError, match="the listener's own"):
            await swarm.run(agents.plain, "go", on_event=listener)
        assert (await swarm.run(agents.plain, "again")).accepted


# Stores


async def test_a_rejected_run_leaves_the_store_usable(any_swarm: OpenSwarm, tmp_path: Path) -> None:
    file = str(tmp_path / "runs.db")
    poisoned = '{"a": "foo", "items": null}'
    for replies in ([poisoned, '{"a": "foo", "items": []}'], ['{"a": "bar", "items": ["x"]}']):
        async with any_swarm(backend=ScriptedBackend(replies), store=file) as swarm:
            outcomes = [await swarm.run(agents.listing, "list") for _ in replies]
        assert outcomes[-1].accepted
    assert outcomes[-1].value == agents.Items("bar", ["x"])
    store = await open_store(file)
    try:
        bodies = [
            msgspec.json.decode(record.body)
            for run in await store.runs()
            for record in await store.read(run.run_id)
            if record.kind == "TaskCommitted"
        ]
    finally:
        await store.close()
    assert sorted(body["value"] for body in bodies) == ['{"a":"bar","items":["x"]}', '{"a":"foo","items":[]}']


async def test_what_was_accepted_is_in_the_file(any_swarm: OpenSwarm, tmp_path: Path) -> None:
    file = tmp_path / "runs.db"
    async with any_swarm(backend=ScriptedBackend(echo), store=file) as swarm:
        outcomes = await swarm.map(agents.plain, ["one", "two", "three"])
    store = await open_store(file)
    try:
        (run,) = await store.runs()
        records = await store.read(run.run_id)
    finally:
        await store.close()
    assert run.run_id == outcomes[0].run_id
    assert [record.seq for record in records] == [1, 2, 3, 4, 5]
    assert records[0].kind == "RunStarted"
    assert msgspec.json.decode(records[0].body)["tasks"] == ["1", "2", "3"]
    committed = {record.task_id: msgspec.json.decode(record.body) for record in records[1:4]}
    assert {task: entry["value"] for task, entry in committed.items()} == {
        "1": answer("one"),
        "2": answer("two"),
        "3": answer("three"),
    }
    assert records[4].kind == "RunEnded"


async def test_a_committed_event_comes_after_the_record(any_swarm: OpenSwarm) -> None:
    store = MemoryStore()
    seen: list[list[str]] = []

    class Watched(MemoryStore):
        async def append(self, records: Any) -> None:
            await asyncio.sleep(0)
            await super().append(records)
            seen.append([record.kind for record in records])

    store = Watched()

    def listener(event: Event) -> None:
        if event.kind == "committed":
            assert ["TaskCommitted"] in seen

    async with any_swarm(backend=ScriptedBackend(echo), store=store) as swarm:
        assert swarm.store is store
        outcome = await swarm.run(agents.plain, "one", on_event=listener)
    assert outcome.accepted
    assert await store.read(outcome.run_id), "a store of the application's stays open"


async def test_a_store_that_fails_ends_the_run_and_nothing_was_accepted(any_swarm: OpenSwarm) -> None:
    from swarmkv.swarm.stores import StoreFailed

    class Full(MemoryStore):
        full = True

        async def append(self, records: Any) -> None:
            if self.full and records[0].kind == "TaskCommitted":
                raise StoreFailed("memory", "the disk is full")
            await super().append(records)

    store = Full()
    events: list[Event] = []
    backend = ScriptedBackend(echo)
    async with any_swarm(backend=backend, store=store) as swarm:
        with pytest.raises(StoreFailed):
            await swarm.run(agents.plain, "one", on_event=events.append)
        store.full = False
        assert (await swarm.run(agents.plain, "two")).accepted
        assert not backend._branches
    assert "committed" not in [event.kind for event in events]


async def test_output_of_a_tool_reaches_the_model(any_swarm: OpenSwarm, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    backend = ScriptedBackend([call("kill_worker_once", mark=str(mark)), output("done")])
    async with any_swarm(backend=backend) as swarm:
        outcome = await swarm.run(agents.deadly_once, "go")
    assert outcome.require().text == "done"
    assert backend.calls[1][1][-1].content == 'kill_worker_once returned: "alive"'
