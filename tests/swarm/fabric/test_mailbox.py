"""Two mailboxes in one process; test_two_processes has the real thing."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest
from fabric_peers import Answer, Ask, Finish, FromPeer, ToPeer, until

from swarmkv.swarm.fabric import (
    FabricError,
    FrameCorrupt,
    FrameTooLarge,
    HandlerSet,
    Link,
    Mailbox,
    MailboxClosed,
    MessageInvalid,
    MessageTypeInvalid,
    PeerGone,
    RingEmpty,
    RingFull,
)
from swarmkv.swarm.fabric.codec import batch


async def fill(mailbox: Any) -> int:
    """Send, a message a turn of the loop, until the ring is full; how many went in."""
    for serial in range(10_000):
        try:
            mailbox.send_nowait(Ask(serial, "x" * 100))
        except RingFull:
            return serial
        await asyncio.sleep(0)
    raise AssertionError("a ring without an end")


def test_messages_of_a_union_arrive_whole_and_in_order(run, open_pair) -> None:
    async def main() -> None:
        async with open_pair() as (ours, theirs):
            await ours.send(Ask(1, "é\x00"))
            ours.send_nowait(Finish())
            assert await theirs.receive() == Ask(1, "é\x00")
            assert theirs.receive_nowait() == Finish()
            with pytest.raises(RingEmpty):
                theirs.receive_nowait()
            await theirs.send(Answer(1, ""))
            assert await ours.receive() == Answer(1, "")

    run(main())


def test_receive_waits_for_a_message(run, open_pair) -> None:
    async def main() -> None:
        async with open_pair() as (ours, theirs):
            receiving = asyncio.create_task(theirs.receive())
            await until(lambda: theirs.statistics().waiting_receivers == 1)
            await ours.send(Finish())
            assert await receiving == Finish()

    run(main())


def test_a_handler_gets_all_that_came_before_and_after_it_was_set(run, open_pair) -> None:
    async def main() -> None:
        async with open_pair() as (ours, theirs):
            got: list[object] = []
            ours.send_nowait(Ask(0, ""))
            theirs.on_message = got.append
            with pytest.raises(HandlerSet):
                await theirs.receive()
            await until(lambda: len(got) == 1)
            ours.send_nowait(Ask(1, ""))
            await until(lambda: len(got) == 2)
            theirs.on_message = None
            ours.send_nowait(Ask(2, ""))
            assert await theirs.receive() == Ask(2, "")
            assert got == [Ask(0, ""), Ask(1, "")]

    run(main())


def test_sends_of_one_turn_ring_once(run, open_pair) -> None:
    async def main() -> None:
        async with open_pair() as (ours, theirs):
            got: list[object] = []
            theirs.on_message = got.append
            for _ in range(5):  # let it fall asleep
                await asyncio.sleep(0)
            before = theirs.statistics().wakeups
            for serial in range(20):
                ours.send_nowait(Ask(serial, ""))
            await until(lambda: len(got) == 20)
            assert ours.statistics().doorbells_rung == 1
            assert theirs.statistics().wakeups == before + 1

    run(main())


def test_a_handler_that_raises_loses_its_message_alone(run, open_pair) -> None:
    async def main() -> None:
        raised: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: raised.append(context["exception"]))
        async with open_pair() as (ours, theirs):
            got: list[object] = []

            def handle(message: object) -> None:
                got.append(message)
                theirs.close()

            ours.send_nowait(Ask(0, ""))
            ours.send_nowait(Ask(1, ""))
            theirs.on_message = handle
            with pytest.raises(PeerGone):
                await ours.receive()
            assert got == [Ask(0, "")]

    run(main())


def test_a_full_ring_refuses_or_waits_and_keeps_the_order(run, open_pair) -> None:
    async def main() -> None:
        async with open_pair() as (ours, theirs):
            sent = await fill(ours)
            waiting = [asyncio.create_task(ours.send(Ask(sent + n, "y" * 200))) for n in range(3)]
            await until(lambda: ours.statistics().waiting_senders == 3)
            assert theirs.receive_nowait() == Ask(0, "x" * 100)
            with pytest.raises(RingFull) as caught:
                ours.send_nowait(Finish())  # nobody overtakes those who wait
            assert caught.value.retryable
            assert caught.value.capacity_bytes == 4096
            serials = [(await theirs.receive()).serial for _ in range(sent + 2)]
            assert serials == list(range(1, sent + 3))
            await asyncio.gather(*waiting)
            ours.send_nowait(Finish())
            assert await theirs.receive() == Finish()

    run(main())


def test_a_cancelled_send_leaves_the_ring_fine(run, open_pair) -> None:
    async def main() -> None:
        async with open_pair() as (ours, theirs):
            sent = await fill(ours)
            tasks = [asyncio.create_task(ours.send(Ask(1000 + n, "z" * 100))) for n in range(3)]
            await until(lambda: ours.statistics().waiting_senders == 3)
            tasks[0].cancel()
            tasks[2].cancel()
            await asyncio.wait([tasks[0], tasks[2]])
            assert ours.statistics().waiting_senders == 1
            serials = [(await theirs.receive()).serial for _ in range(sent + 1)]
            assert serials == [*range(sent), 1001]
            await tasks[1]
            assert tasks[0].cancelled()
            assert ours.statistics().out_used_bytes == 0

    run(main())


def test_a_cancelled_send_lets_the_next_one_go_if_that_fits(run, open_pair) -> None:
    async def main() -> None:
        async with open_pair() as (ours, theirs):
            sent = await fill(ours)
            assert theirs.receive_nowait() == Ask(0, "x" * 100)
            large = asyncio.create_task(ours.send(Ask(1000, "x" * 1000)))
            small = asyncio.create_task(ours.send(Ask(1001, "x" * 80)))
            await until(lambda: ours.statistics().waiting_senders == 2)
            large.cancel()
            await small  # although the reader reads no more
            assert [(await theirs.receive()).serial for _ in range(sent)] == [*range(1, sent), 1001]

    run(main())


def test_a_cancelled_receive_loses_no_message(run, open_pair) -> None:
    async def main() -> None:
        async with open_pair() as (ours, theirs):
            first, second = (asyncio.create_task(theirs.receive()) for _ in range(2))
            await until(lambda: theirs.statistics().waiting_receivers == 2)
            ours.send_nowait(Ask(0, ""))
            await until(lambda: theirs.statistics().waiting_receivers == 1)
            first.cancel()  # it was woken, and has not run yet
            assert await second == Ask(0, "")
            await asyncio.wait([first])
            assert first.cancelled()

    run(main())


def test_several_receivers_share_what_comes(run, open_pair) -> None:
    async def main() -> None:
        async with open_pair() as (ours, theirs):
            receiving = [asyncio.create_task(theirs.receive()) for _ in range(5)]
            await until(lambda: theirs.statistics().waiting_receivers == 5)
            for serial in range(5):
                ours.send_nowait(Ask(serial, ""))
            assert {message.serial for message in await asyncio.gather(*receiving)} == set(range(5))

    run(main())


def test_an_orderly_close_delivers_the_rest_and_ends_an_iteration(run, open_pair) -> None:
    async def main() -> None:
        async with open_pair() as (ours, theirs):
            for serial in range(3):
                ours.send_nowait(Ask(serial, ""))
            ours.close()
            assert [message.serial async for message in theirs] == [0, 1, 2]
            for call in (theirs.receive(), theirs.send(Answer(0, ""))):
                with pytest.raises(PeerGone) as caught:
                    await call
                assert caught.value.orderly

    run(main())


def test_a_handler_hears_of_the_end_once_after_the_last_frame(run, open_pair) -> None:
    async def main() -> None:
        async with open_pair() as (ours, theirs):
            heard: list[object] = []
            theirs.on_error = lambda error: heard.append(type(error))
            theirs.on_message = heard.append
            ours.send_nowait(Ask(0, ""))
            ours.close()
            await until(lambda: len(heard) == 2)
            theirs.peer_lost()
            for _ in range(5):
                await asyncio.sleep(0)
            assert heard == [Ask(0, ""), PeerGone]

    run(main())


def test_a_lost_peer_ends_all_waiting_at_once(run, open_pair) -> None:
    async def main() -> None:
        async with open_pair() as (ours, theirs):
            await fill(ours)
            theirs.send_nowait(Answer(7, "its last"))
            sending = asyncio.create_task(ours.send(Ask(0, "x" * 100)))
            await until(lambda: ours.statistics().waiting_senders == 1)
            ours.peer_lost()
            ours.peer_lost()
            with pytest.raises(PeerGone) as caught:
                await sending
            assert not caught.value.orderly
            assert ours.statistics().waiting_senders == 0
            assert await ours.receive() == Answer(7, "its last")
            with pytest.raises(PeerGone):
                await anext(ours)
            with pytest.raises(PeerGone):
                ours.send_nowait(Finish())

    run(main())


def test_close_ends_all_waiting_here(run, open_pair) -> None:
    async def main() -> None:
        async with open_pair() as (ours, _):
            await fill(ours)
            waiting = [asyncio.create_task(ours.send(Ask(0, "x" * 100))), asyncio.create_task(ours.receive())]
            await until(lambda: ours.statistics().waiting_senders and ours.statistics().waiting_receivers)
            await ours.aclose()
            ours.close()
            for task in waiting:
                with pytest.raises(MailboxClosed):
                    await task
            for call in (ours.receive_nowait, ours.statistics, lambda: ours.send_nowait(Finish())):
                with pytest.raises(MailboxClosed):
                    call()

    run(main())


def test_what_cannot_be_sent_is_a_typed_error_and_sends_nothing(run, open_pair) -> None:
    async def main() -> None:
        async with open_pair() as (ours, theirs):
            with pytest.raises(FrameTooLarge) as caught:
                await ours.send(Ask(0, "x" * 3000))
            assert caught.value.limit_bytes == 2039
            for value in (2**70, object(), "\ud800"):
                with pytest.raises(MessageInvalid):
                    ours.send_nowait(Ask(0, value))
            with pytest.raises(RingEmpty):
                theirs.receive_nowait()

    run(main())


FOREIGN = [
    b"",
    b"\xc1",
    b"\x93\xa3Ask\x01",
    b"\x92\xa4Nope\x01",
    b"\x93\xa3Ask\x01\xa2\xff\xfe",
    b"\x91" * 1500,
]


@pytest.mark.parametrize("frame", FOREIGN)
def test_a_frame_that_is_no_message_is_raised_from_receive(run, open_pair, frame: bytes) -> None:
    async def main() -> None:
        async with open_pair() as (ours, theirs):
            assert ours._writer.push(frame)
            ours.send_nowait(Ask(1, ""))
            errors = 0
            with contextlib.suppress(RingEmpty):
                while True:
                    try:
                        assert theirs.receive_nowait() == Ask(1, "")
                    except MessageInvalid:
                        errors += 1
            assert errors
            assert await theirs.receive() == Ask(1, "")

    run(main())


def test_what_is_no_message_in_a_frame_is_lost_alone(run, open_pair) -> None:
    async def main() -> None:
        async with open_pair() as (ours, theirs):
            good = [msgspec.msgpack.encode(Ask(serial, "")) for serial in range(2)]
            assert ours._writer.push(batch([good[0], b"\x92\xa4Nope\x01", good[1]]))
            assert await theirs.receive() == Ask(0, "")
            with pytest.raises(MessageInvalid):
                await theirs.receive()
            assert await theirs.receive() == Ask(1, "")

    run(main())


def test_a_turns_messages_travel_as_one_frame_and_more_than_fit_as_more(run, open_pair) -> None:
    async def main() -> None:
        async with open_pair() as (ours, theirs):
            for serial in range(35):
                ours.send_nowait(Ask(serial, "x" * 90))
            assert [(await theirs.receive()).serial for _ in range(35)] == list(range(35))
            assert ours.statistics().sent_frames == theirs.statistics().received_frames == 2
            assert theirs.statistics().received_messages == 35

    run(main())


def test_what_was_sent_in_the_turn_of_the_close_arrives(run, open_pair) -> None:
    async def main() -> None:
        async with open_pair() as (ours, theirs):
            ours.send_nowait(Ask(1, ""))
            ours.close()
            assert await theirs.receive() == Ask(1, "")
            with pytest.raises(PeerGone):
                await theirs.receive()

    run(main())


@pytest.mark.parametrize("with_on_error", [True, False])
def test_a_frame_that_is_no_message_is_told_beside_a_handler(run, open_pair, with_on_error: bool) -> None:
    async def main() -> None:
        errors: list[FabricError] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
        async with open_pair() as (ours, theirs):
            got: list[object] = []
            if with_on_error:
                loop.set_exception_handler(None)
                theirs.on_error = errors.append
            assert ours._writer.push(FOREIGN[1])
            ours.send_nowait(Ask(1, ""))
            theirs.on_message = got.append
            await until(lambda: got)
            assert got == [Ask(1, "")]
            assert [type(error) for error in errors] == [MessageInvalid]

    run(main())


@pytest.mark.parametrize("style", ["handler", "receive"])
def test_a_corrupt_ring_ends_the_conversation(run, open_pair, style: str) -> None:
    async def main() -> None:
        async with open_pair() as (ours, theirs):
            ours.send_nowait(Ask(1, ""))
            await asyncio.sleep(0)
            ours._writer._lengths[0] = 0x7FFFFFFF
            if style == "receive":
                with pytest.raises(FrameCorrupt):
                    await theirs.receive()
            else:
                errors: list[FabricError] = []
                theirs.on_error = errors.append
                theirs.on_message = errors.append
                await until(lambda: errors)
                assert [type(error) for error in errors] == [FrameCorrupt]
            with pytest.raises(FrameCorrupt):
                theirs.send_nowait(Answer(0, ""))

    run(main())


def test_a_corrupt_position_of_the_reader_ends_waiting_senders(run, open_pair) -> None:
    async def main() -> None:
        async with open_pair() as (ours, theirs):
            await fill(ours)
            sending = asyncio.create_task(ours.send(Ask(0, "x" * 100)))
            await until(lambda: ours.statistics().waiting_senders == 1)
            theirs._reader._words[128] = 2**40
            theirs._end.peer_doorbell.ring()
            with pytest.raises(FrameCorrupt):
                await sending
            theirs._reader._words[128] = 0

    run(main())


def test_a_type_that_msgspec_cannot_describe_is_refused(run) -> None:
    async def main() -> None:
        with Link.create("test", 4096) as link, contextlib.closing(link.open(0)) as end:
            for types in ((Ask | list, FromPeer), (ToPeer, Ask | list)):
                with pytest.raises(MessageTypeInvalid):
                    Mailbox(end, *types)

    run(main())


def test_statistics_count_both_ways(run, open_pair) -> None:
    async def main() -> None:
        async with open_pair() as (ours, theirs):
            for serial in range(3):
                ours.send_nowait(Ask(serial, ""))
            assert await theirs.receive() == Ask(0, "")
            ours.send_nowait(Ask(3, ""))
            await asyncio.sleep(0)
            three, one = (
                -(-(4 + len(batch([msgspec.msgpack.encode(Ask(0, ""))] * count))) // 8) * 8
                for count in (3, 1)
            )
            sent, received = ours.statistics(), theirs.statistics()
            assert (sent.sent_messages, sent.sent_frames, sent.sent_bytes) == (4, 2, three + one)
            assert sent.out_used_bytes == one
            assert (received.received_messages, received.received_frames) == (1, 1)
            assert received.received_bytes == three
            assert received.in_used_bytes == one
            assert sent.ring_bytes == 4096

    run(main())


def test_an_unclosed_mailbox_warns(run) -> None:
    async def main() -> None:
        with Link.create("test", 4096) as link:
            mailbox: Mailbox[Any, Any] = Mailbox(link.open(0), ToPeer, FromPeer)
        with pytest.warns(ResourceWarning, match="unclosed mailbox"):
            mailbox.__del__()

    run(main())
