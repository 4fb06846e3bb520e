"""What runs in the child processes of test_process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import msgspec

from swarmkv.swarm.process import MainModule, import_main


class ChildConfig(msgspec.Struct, frozen=True):
    answer_fd: int
    role: str
    main: MainModule | None = None


def tell(config: ChildConfig) -> bytes:
    """What this process can see of itself."""
    seen = {
        "arguments": sys.argv,
        "group": os.getpgrp(),
        "stdin": sys.stdin.read(),
        "path": sys.path,
        "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")),
        "mark": os.environ.get("SWARMKV_TEST_MARK", ""),
    }
    return msgspec.json.encode(seen)


def wait(config: ChildConfig) -> bytes:
    os.write(config.answer_fd, str(os.getpid()).encode())
    signal.pause()
    return b""


def wait_stubbornly(config: ChildConfig) -> bytes:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return wait(config)


def compute(config: ChildConfig) -> bytes:
    """Start a process of its own, and then never give up the interpreter lock."""
    helper = subprocess.Popen(["sleep", "600"])
    os.write(config.answer_fd, f"{os.getpid()} {helper.pid}\n".encode())
    re.match(r"(a+)+$", "a" * 60 + "b")
    return b""


def leave_a_helper(config: ChildConfig) -> bytes:
    return str(subprocess.Popen(["sleep", "600"]).pid).encode()


def fail(config: ChildConfig) -> bytes:
    sys.exit(3)


def find_main(config: ChildConfig) -> bytes:
    """What of the parent's __main__ is there after import_main."""
    assert config.main is not None
    module = import_main(config.main)
    thing = getattr(sys.modules["__main__"], "Thing", None)
    seen = {
        "name": module and module.__name__,
        "same": module is sys.modules["__main__"] is sys.modules.get("__mp_main__"),
        "value": thing and thing.value,
        "argv": sys.argv,
    }
    return msgspec.json.encode(seen)


def main(config: bytes) -> None:
    settings = msgspec.msgpack.decode(config, type=ChildConfig)
    os.write(settings.answer_fd, globals()[settings.role](settings))
