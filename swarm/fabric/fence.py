"""What keeps loads and stores in order between two processors.

x86-64 lets one thing happen out of order: a load may pass an earlier store of the same processor, which still
waits in its store buffer. So publishing (payload, then index) needs nothing there, and "announce sleep, then
look again" needs a full fence on both sides; without it each side can miss the other's store and both sleep.
On other processors a fence also stands before each publish and after each observe.

Python has no fence. Taking and releasing a lock is made of atomic operations: on x86-64 each is a full fence;
on ARMv8 a release followed by an acquire is one (a load-acquire stays after an earlier store-release).

Source: Intel SDM volume 3A, 9.2 (memory ordering); Arm ARM, B2.3 (barrier-ordered-before).
"""

from __future__ import annotations

import os
import threading

WEAKLY_ORDERED = os.uname().machine not in ("x86_64", "AMD64")

_lock = threading.Lock()


def full_fence() -> None:
    """Order all loads and stores before it before all that follow. Some 0.2 µs."""
    with _lock:
        pass
    with _lock:
        pass
