"""What runs in the other process of the fabric's tests, and the messages of both."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import msgspec
import uvloop

from swarmkv.swarm.fabric import LinkEnd, Mailbox, PeerGone, open_end


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


class Ask(Message):
    serial: int
    text: str


class Finish(Message):
    pass


class Answer(Message):
    serial: int
    text: str


class Count(Message):
    frames: int
    in_order: bool


ToPeer = Ask | Finish
FromPeer = Answer | Count

PeerMailbox = Mailbox[FromPeer, ToPeer]


class PeerConfig(msgspec.Struct, frozen=True):
    end: LinkEnd
    role: str
    loop: str


async def echo(mailbox: PeerMailbox) -> None:
    """Answer every question in handler style, until the other side closes."""
    gone = asyncio.Event()

    def answer(message: ToPeer) -> None:
        if isinstance(message, Ask):
            mailbox.send_nowait(Answer(message.serial, message.text))

    mailbox.on_error = lambda error: gone.set()
    mailbox.on_message = answer
    await gone.wait()


async def count(mailbox: PeerMailbox) -> None:
    """Read one frame a turn of the loop, slower than they come; then say how many came, and in what order."""
    frames, in_order = 0, True
    async for message in mailbox:
        if isinstance(message, Finish):
            break
        in_order = in_order and message.serial == frames
        frames += 1
        for _ in range(3):
            await asyncio.sleep(0)
    await mailbox.send(Count(frames, in_order))


async def burst(mailbox: PeerMailbox) -> None:
    """Send 500 frames and close at once."""
    await mailbox.receive()
    for serial in range(500):
        mailbox.send_nowait(Answer(serial, ""))


async def hang(mailbox: PeerMailbox) -> None:
    """Take one question, say so, and never read again."""
    await mailbox.receive()
    await mailbox.send(Answer(0, "hanging"))
    await asyncio.sleep(0)  # the doorbell is rung in this turn
    signal.pause()


ROLES = {role.__name__: role for role in (echo, count, burst, hang)}


async def _run(config: PeerConfig) -> None:
    async with Mailbox(open_end(config.end), FromPeer, ToPeer) as mailbox:
        try:
            await ROLES[config.role](mailbox)
        except PeerGone:
            return


def main(config: bytes) -> None:
    settings = msgspec.msgpack.decode(config, type=PeerConfig)
    run = uvloop.run if settings.loop == "uvloop" else asyncio.run
    run(_run(settings))


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until the condition holds; the test's own limit ends it otherwise."""
    while not condition():
        await asyncio.sleep(0)
