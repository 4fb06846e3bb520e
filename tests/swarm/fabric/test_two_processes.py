"""Mailboxes between two real processes, on both event loops."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import anyio
import pytest
from fabric_peers import Answer, Ask, Count, Finish, until

from swarmkv.swarm.fabric import PeerGone, RingFull


async def ask_many(mailbox: Any, frames: int, in_flight: int) -> list[Answer]:
    """Keep so many questions in flight until all are answered, in handler style."""
    answers: list[Answer] = []
    done = asyncio.Event()
    asked = in_flight

    def take(answer: Answer) -> None:
        nonlocal asked
        answers.append(answer)
        if asked < frames:
            mailbox.send_nowait(Ask(asked, "text " * 20))
            asked += 1
        elif len(answers) == frames:
            done.set()

    mailbox.on_message = take
    for serial in range(in_flight):
        mailbox.send_nowait(Ask(serial, "text " * 20))
    await done.wait()
    return answers


def test_each_question_gets_its_answer(run, open_peer) -> None:
    async def main() -> None:
        async with open_peer("echo") as (mailbox, _):
            answers = await ask_many(mailbox, 20_000, in_flight=64)
            assert [answer.serial for answer in answers] == list(range(20_000))
            assert answers[-1].text == "text " * 20
            # Far fewer frames than messages: that is what batching is for.
            statistics = mailbox.statistics()
            assert statistics.received_messages == 20_000
            assert statistics.received_frames < 10_000

    run(main())


def test_one_at_a_time_through_sleep(run, open_peer) -> None:
    async def main() -> None:
        async with open_peer("echo") as (mailbox, _):
            for serial in range(1_000):
                await mailbox.send(Ask(serial, ""))
                assert await mailbox.receive() == Answer(serial, "")

    run(main())


def test_a_slow_reader_holds_the_sender_back_and_nothing_is_lost(run, open_peer) -> None:
    async def main() -> None:
        async with open_peer("count", ring_bytes=4096) as (mailbox, _):
            waited = 0
            for serial in range(5_000):
                try:
                    mailbox.send_nowait(Ask(serial, "x" * (serial % 700)))
                except RingFull:
                    waited += 1
                    await mailbox.send(Ask(serial, "x" * (serial % 700)))
                assert mailbox.statistics().out_used_bytes <= 4096
            await mailbox.send(Finish())
            assert await mailbox.receive() == Count(5_000, in_order=True)
            assert waited > 100

    run(main())


def test_many_senders_wait_at_once_and_some_give_up(run, open_peer) -> None:
    async def main() -> None:
        async with open_peer("count", ring_bytes=4096) as (mailbox, _):
            sent: list[int] = []

            async def send_in_turn(serial: int) -> None:
                await mailbox.send(Ask(serial, "x" * 300))
                sent.append(serial)

            async with anyio.create_task_group() as group:
                for serial in range(200):
                    group.start_soon(send_in_turn, serial)
            with anyio.move_on_after(0):
                for serial in range(200, 10_000):
                    await mailbox.send(Ask(serial, "x" * 300))
                    sent.append(serial)
            await mailbox.send(Finish())
            count = await mailbox.receive()
            assert sent == list(range(len(sent)))
            assert count == Count(len(sent), in_order=True)

    run(main())


def test_a_peer_that_closes_in_order_is_heard_to_its_last_frame(run, open_peer) -> None:
    async def main() -> None:
        async with open_peer("burst") as (mailbox, child):
            await mailbox.send(Finish())
            assert await child.exited() == 0
            assert [answer.serial async for answer in mailbox] == list(range(500))
            with pytest.raises(PeerGone) as caught:
                await mailbox.send(Finish())
            assert caught.value.orderly

    run(main())


def test_a_killed_peer_ends_a_waiting_send_and_receive(run, open_peer) -> None:
    async def main() -> None:
        async with open_peer("hang", ring_bytes=4096) as (mailbox, child):
            await mailbox.send(Finish())
            assert await mailbox.receive() == Answer(0, "hanging")

            async def send_for_ever() -> None:
                while True:
                    await mailbox.send(Ask(0, "x" * 500))

            waiting = [asyncio.create_task(send_for_ever()), asyncio.create_task(mailbox.receive())]
            await until(
                lambda: mailbox.statistics().waiting_senders and mailbox.statistics().waiting_receivers
            )
            os.kill(child.pid, signal.SIGKILL)
            assert await child.exited() == -signal.SIGKILL
            mailbox.peer_lost()
            done, _ = await asyncio.wait(waiting, timeout=1)
            assert [type(task.exception()) for task in done] == [PeerGone, PeerGone]

    run(main())
