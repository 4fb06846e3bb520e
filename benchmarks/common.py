"""What every benchmark shares: the machine, the table, the JSON file."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def arguments(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="end within 60 s; the figures are rough")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the figures to this file")
    return parser.parse_args()


def machine() -> dict[str, Any]:
    """The processor, its cores and the memory, as the kernel tells them."""
    cpu, flags = platform.processor() or platform.machine(), set[str]()
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
        elif line.startswith("flags"):
            flags = set(line.split(":", 1)[1].split())
    memory_kb = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if "MemTotal" in line), 0)
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "matrix_units": sorted(flags & {"amx_bf16", "avx512_bf16", "avx512f", "avx2"}),
        "memory_gib": round(memory_kb / 2**20, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def versions(*names: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def alternate(
    repeats: int, contestants: dict[str, Callable[[], float]], *, warm_up: bool = True
) -> dict[str, list[float]]:
    """Run each contestant `repeats` times, taking turns, after one warm-up each; their results in order."""
    for run in contestants.values() if warm_up else ():
        run()
    results: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            results[name].append(run())
    return results


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def ratio(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or not theirs else round(ours / theirs, 3)


def report(
    benchmark: str,
    *,
    figures: dict[str, float | None],
    rows: list[dict[str, Any]],
    package_versions: dict[str, str | None],
    args: argparse.Namespace,
) -> None:
    """Print the table and the figures, and write the file."""
    from rich.console import Console
    from rich.table import Table

    here = machine()
    console = Console(width=120)
    console.print(
        f"{here['cpu']}, {here['cores']} cores, {', '.join(here['matrix_units'])}; {here['system']}"
    )
    if args.quick:
        console.print("quick run: the figures are rough")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(*columns)
    for row in rows:
        table.add_row(*(_shown(row.get(column)) for column in columns))
    console.print(table)
    for key, value in figures.items():
        console.print(f"{key:<40} {_shown(value)}")
    if args.json:
        document = {
            "benchmark": benchmark,
            "quick": args.quick,
            "machine": here,
            "versions": package_versions,
            "figures": figures,
            "rows": rows,
        }
        args.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return "" if value is None else str(value)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
