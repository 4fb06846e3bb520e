"""What every test shares: the embedded model, and an audit of processes and descriptors after each test."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from swarmkv.kvcore.model import LoadedModel

MODEL_FIXTURES = frozenset({"embedded_model", "loaded", "loaded_float32"})
DESCRIPTOR_TOLERANCE = 5  # libraries open some at their first use
# multiprocessing keeps this process until the interpreter ends
RESOURCE_TRACKER = "multiprocessing.resource_tracker"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test that asks for the embedded model, so that `-m "not model"` leaves it out."""
    for item in items:
        if MODEL_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("model")


@pytest.fixture(scope="session")
def embedded_model() -> Path:
    """The embedded model's folder, fetched if it is not in the cache."""
    from swarmkv.kvcore.model import pull

    return pull()


@pytest.fixture(scope="session")
def loaded(embedded_model: Path) -> LoadedModel:
    """The embedded model in the dtype that is fastest here."""
    from swarmkv.kvcore.model import load_model

    return load_model(embedded_model)


@pytest.fixture(scope="session")
def loaded_float32(embedded_model: Path) -> LoadedModel:
    """The embedded model in float32 on the CPU, for what must be exact."""
    from swarmkv.kvcore.model import load_model

    return load_model(embedded_model, dtype="float32", device="cpu")


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """Fail a test that leaves a child process (which is then ended) or descriptors."""
    children, descriptors = _children(), _descriptors()
    yield
    left = [child for child in _children() - children if child.is_running()]
    names = [f"{child.pid}: {_command(child)}" for child in left]
    for child in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(left, timeout=5)
    if names:
        pytest.fail(f"the test left child processes: {names}")
    if len(_descriptors()) > len(descriptors) + DESCRIPTOR_TOLERANCE:
        gc.collect()
        opened = _descriptors()
        if len(opened) > len(descriptors) + DESCRIPTOR_TOLERANCE:
            new = sorted(opened[number] for number in opened.keys() - descriptors.keys())
            pytest.fail(f"the test left {len(opened) - len(descriptors)} descriptors: {new}")


def _children() -> set[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return {child for child in children if RESOURCE_TRACKER not in _command(child)}


def _command(child: psutil.Process) -> str:
    try:
        return " ".join(child.cmdline()) or child.name()
    except psutil.ZombieProcess:
        return "a process that ended and was not waited for"
    except psutil.NoSuchProcess:
        return "gone"


def _descriptors() -> dict[str, str]:
    """Open descriptors and what they are, by number."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # the listing's own
            continue
    return found
