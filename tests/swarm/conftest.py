"""What the tests of the runtime share: agents that workers can import, and swarms without a model."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from swarmkv.swarm import Swarm
from swarmkv.swarm.process import MainModule

FOLDER = str(Path(__file__).parent)
# So that both this process and the workers, which get its sys.path, find swarm_agents.
sys.path.append(FOLDER)

OpenSwarm = Callable[..., Swarm]


@pytest.fixture(scope="session")
def no_main() -> MainModule:
    """Agents are not in `__main__` here: workers need not import pytest."""
    return MainModule(None, None, tuple(sys.path), ())


@pytest.fixture
def process_swarm(no_main: MainModule) -> OpenSwarm:
    """Makes a swarm of one worker process, unless settings say otherwise."""
    return functools.partial(Swarm, workers=1, main=no_main)


@pytest.fixture(params=["inline", "process"])
def any_swarm(request: pytest.FixtureRequest, process_swarm: OpenSwarm) -> OpenSwarm:
    """Makes a swarm of one worker, in this process or not."""
    return functools.partial(process_swarm, isolation=request.param)
