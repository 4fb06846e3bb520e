"""Review a Python package with a swarm on a small model: one typed finding per module, each held against the code.

Run it:  swarmkv run examples/code_review.py PATH [--report FILE] [--store FILE] [--body-lines N] [--model NAME]
         [--workers N] [--kv-budget SIZE]

The planner makes one task per module (a long module in parts) and a final task that writes the overview from all
findings. Of each function the reader sees the signature and the first lines. The gate parses each module itself: a
finding is accepted only if its symbol really is defined there.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from swarmkv.agents import Agent, Context, MapReduce, Sampling, TaskResult
from swarmkv.swarm import Event, Pursuit, Swarm, SwarmError
from swarmkv.verify import Reject, Verdict, check

BODY_LINES = 4
"""of a function that are read, unless --body-lines says otherwise"""
PART_CHARS = 6_000
"""source text of one task, some 1,700 tokens"""
NAMED_SYMBOLS = 6
"""symbols that a rejection names"""
SHOWN_SYMBOLS = 4
"""symbols that the model is shown after a rejection"""
OUTLINE_LINES = 8
"""lines with definitions that stand below the source"""


NAME = r"^[A-Za-z0-9_.-]+$"
SENTENCE = r"^[A-Z][a-z]* [A-Za-z0-9 ,;'()_-]+\.$"


class Finding(msgspec.Struct, frozen=True):
    """What a reader says of one module. The patterns constrain decoding: a name is a name, a sentence a sentence."""

    module: Annotated[str, msgspec.Meta(pattern=NAME, max_length=120)]
    symbol: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=60)]
    kind: Literal["class", "function"]
    purpose: Annotated[str, msgspec.Meta(pattern=SENTENCE, min_length=30, max_length=140)]


class Overview(msgspec.Struct, frozen=True):
    """What the reporter says of the whole package."""

    package: Annotated[str, msgspec.Meta(pattern=NAME, max_length=120)]
    summary: Annotated[str, msgspec.Meta(pattern=SENTENCE, min_length=30, max_length=240)]


# The checks: invariants beyond the schema.


@check
def names_its_module(finding: Finding, ctx: Context) -> Reject | None:
    module = ctx.input["module"]
    if finding.module != module:
        return Reject(f"The module is named {module}.", path="module")
    return None


@check
def symbol_is_defined(finding: Finding, ctx: Context) -> Reject | None:
    """The symbol stands in the module's syntax tree, with the kind that was named."""
    symbols: Mapping[str, str] = ctx.input["symbols"]
    kind = symbols.get(finding.symbol)
    if kind == finding.kind:
        return None
    if kind:
        return Reject(f"{finding.symbol} is a {kind}.", path="kind")
    named = ", ".join(f"{kind} {name}" for name, kind in list(symbols.items())[:NAMED_SYMBOLS])
    return Reject(f"there is no {finding.symbol}; {ctx.input['module']} defines {named}.", path="symbol")


def show_symbols(verdict: Verdict[Finding], ctx: Context) -> str:
    """What does exist, in the answer's own form, below the other remarks: a small model goes on from a form, and copies
    what it is told not to write."""
    task = ctx.input
    named = ("module", "symbol", "kind")
    remarks = [reason.message for reason in verdict.reasons if reason.path not in named]
    lines = [
        msgspec.json.encode({"module": task["module"], "symbol": symbol, "kind": kind}).decode()
        for symbol, kind in list(task["symbols"].items())[:SHOWN_SYMBOLS]
    ]
    return "\n".join([" ".join(["Wrong.", *remarks]), "", f"Module {task['module']} defines:", *lines])


def judge_sentence(text: str, known: str, prompt: str, path: str) -> Reject | None:
    """A sentence, that says more than the names that were given, in words of its own."""
    words = re.findall(r"[A-Za-z']+", text)
    if not re.fullmatch(r"[A-Z`'\"].*[.!]", text) or len(words) < 5 or "\n" in text:
        return Reject(
            "write one full sentence that begins with a capital and ends with a full stop", path=path
        )
    given = set(re.findall(r"[a-z]+", known.lower())) | _EMPTY_WORDS
    if len({word.lower() for word in words} - given) < 3:
        return Reject("say what it does, beyond repeating its name", path=path)
    plain = _plain(text).split()
    runs = Counter(zip(plain, plain[1:], plain[2:], strict=False))
    if any(count > 2 for count in runs.values()):
        return Reject("say it once, do not repeat yourself", path=path)
    if _plain(text) in _plain(prompt):
        return Reject("say it in your own words, do not copy the text", path=path)
    return None


_EMPTY_WORDS = set(
    re.findall(
        r"\w+",
        "a an and are as be by class code contains define defines for from function functions in is it its module of "
        "on or package provides python that the this to used uses which with",
    )
)


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


@check
def purpose_is_a_sentence(finding: Finding, ctx: Context) -> Reject | None:
    known = f"{ctx.input['module']} {finding.symbol}"
    return judge_sentence(finding.purpose, known, read_prompt(ctx.input, ctx) + READER, "purpose")


@check
def summary_is_a_sentence(overview: Overview, ctx: Context) -> Reject | None:
    return judge_sentence(overview.summary, ctx.input["package"], overview_prompt(ctx.input, ctx), "summary")


@check
def summary_is_of_this_package(overview: Overview, ctx: Context) -> Reject | None:
    """It names the package, and most of what the sentence speaks of stands in what the readers found."""
    package = ctx.input["package"]
    if overview.package != package:
        return Reject(f"The package is named {package}.", path="package")
    known = set(_plain(" ".join([package, *ctx.input["findings"]])).split()) | _EMPTY_WORDS
    said = set(re.findall(r"[a-z]+", overview.summary.lower())) - _EMPTY_WORDS
    foreign = sorted(said - known)
    if 2 * len(foreign) > len(said):
        return Reject(f"the modules say nothing of {', '.join(foreign[:5])}", path="summary")
    return None


# The agents.


def read_prompt(task: Any, ctx: Context) -> str:
    """The source, and below it its outline: a small model loses the thread of a long text."""
    outline = "\n".join(
        re.findall(r"^(?:class|def|async def) .*", task["text"], re.MULTILINE)[:OUTLINE_LINES]
    )
    part = f", part {task['part']}" if task["part"] else ""
    return (
        f"Module {task['module']}{part}:\n```python\n{task['text']}\n```\n\n"
        f"Module {task['module']}:\n```python\n{outline}\n```"
    )


def overview_prompt(task: Any, ctx: Context) -> str:
    lines = "\n".join(f"- {finding}" for finding in task["findings"])
    return f"Modules of the package {task['package']}:\n{lines}\n\nSum up the package {task['package']}."


READER = """\
You review Python modules: name one class or function that the code defines, and say in one sentence what the module \
is for.

Module json.decoder:
```python
class JSONDecodeError(ValueError):
    \"\"\"Subclass of ValueError with the position of the error.\"\"\"

class JSONDecoder(object):
    \"\"\"Simple JSON decoder\"\"\"
    def decode(self, s):
```
{"module":"json.decoder","symbol":"JSONDecoder","kind":"class","purpose":"Reads JSON text and turns it into dicts, \
lists and numbers."}

Module shutil:
```python
def copytree(src, dst, symlinks=False):
    \"\"\"Recursively copy a directory tree and return the destination directory.\"\"\"
```
{"module":"shutil","symbol":"copytree","kind":"function","purpose":"Helps to copy, move and delete whole folders of \
files."}

Module logging.handlers:
```python
class RotatingFileHandler(BaseRotatingHandler):
    \"\"\"Handler for logging to a set of files\"\"\"
```
{"module":"logging.handlers","symbol":"RotatingFileHandler","kind":"class","purpose":"Sends the messages of a program \
to files, sockets and mail servers."}"""

REPORTER = """\
You sum up what a Python package is for, from one sentence about each of its modules.

Modules of the package email:
- email.parser: Reads the text of a message into headers and parts.
- email.generator: Writes a message as text.
- email.policy: Decides how long lines and odd characters are treated.

Sum up the package email.
{"package":"email","summary":"Reads the text of messages into their parts, and writes messages as text by a policy."}"""

reader = Agent(
    "reader",
    instructions=READER,
    output=Finding,
    checks=[names_its_module, symbol_is_defined, purpose_is_a_sentence],
    attempts=4,
    prompt=read_prompt,
    feedback=show_symbols,
    sampling=Sampling(top_p=0.9, max_tokens=140),
)

reporter = Agent(
    "reporter",
    instructions=REPORTER,
    output=Overview,
    checks=[summary_is_a_sentence, summary_is_of_this_package],
    attempts=4,
    prompt=overview_prompt,
    sampling=Sampling(top_p=0.9, max_tokens=140),
)


# Reading the package.


class Skipped(msgspec.Struct, frozen=True):
    module: str
    reason: str


class ReviewError(SystemExit):
    """The input cannot be reviewed at all; the message says why."""


def find_modules(path: Path) -> list[Path]:
    """All Python files of a package, a folder or a single file.

    Raises: ReviewError if there is nothing to review.
    """
    if not path.exists():
        raise ReviewError(f"{path}: there is no such file or folder")
    if path.is_file():
        if path.suffix != ".py":
            raise ReviewError(f"{path}: not a Python file (its name does not end in .py)")
        return [path]
    files = sorted(
        file
        for file in path.rglob("*.py")
        if file.is_file() and not {"__pycache__", "tests"} & set(file.parts)
    )
    if not files:
        raise ReviewError(f"{path}: no Python file in this folder")
    return files


def module_symbols(tree: ast.Module) -> dict[str, str]:
    """Classes and functions (methods too) of a module with their kinds, outer ones first; the public ones, or if there
    are none all."""
    every: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            every.setdefault(node.name, "class" if isinstance(node, ast.ClassDef) else "function")
    return {name: kind for name, kind in every.items() if not name.startswith("_")} or every


class Condense(ast.NodeTransformer):
    """Leaves of each docstring the first paragraph, and of each function as many whole statements as fit some lines."""

    def __init__(self, body_lines: int) -> None:
        self.body_lines = body_lines

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            documented = ast.get_docstring(node)
            if documented is not None:
                node.body[0] = ast.Expr(ast.Constant(documented.split("\n\n")[0]))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = self._first_of(node.body)
            return node
        return self.generic_visit(node)

    def _first_of(self, body: list[ast.stmt]) -> list[ast.stmt]:
        lines = 0
        for i, statement in enumerate(body):
            lines += len(ast.unparse(statement).splitlines())
            if lines > self.body_lines:
                return [*body[:i], ast.Expr(ast.Constant(...))]
        return body


def split_source(source: str, tree: ast.Module, limit: int = PART_CHARS) -> list[str]:
    """Cut a long source between statements, never inside one that fits. A part that goes on inside a class begins
    with the class's own line, so that its reader knows where it is."""
    lines = source.splitlines(keepends=True)
    parts: list[str] = []
    current = ""
    for header, first, last in _pieces(tree, lines, limit):
        piece = "".join(lines[first:last])
        for start in range(0, len(piece), limit):  # a single statement longer than a part
            text = piece[start : start + limit]
            if current and len(current) + len(text) > limit:
                parts.append(current)
                current = header
            current += text
    return [part for part in [*parts, current] if part.strip()]


def _pieces(tree: ast.Module, lines: list[str], limit: int) -> Iterator[tuple[str, int, int]]:
    """Statements as (header, first line, end line), covering every line; long classes by their members."""
    done = 0
    for node in tree.body:
        end = node.end_lineno or done
        size = sum(map(len, lines[done:end]))
        if isinstance(node, ast.ClassDef) and size > limit:
            header = lines[node.lineno - 1].rstrip() + "  # continued\n"
            for member in node.body:
                yield ("" if done < node.lineno else header), done, member.end_lineno or done
                done = max(done, member.end_lineno or done)
        else:
            yield "", done, end
            done = max(done, end)
    yield "", done, len(lines)


def module_tasks(file: Path, name: str, body_lines: int) -> list[tuple[str, dict[str, Any]]] | Skipped:
    """One task, or one a part; or why the module cannot be reviewed."""
    try:
        source = file.read_text(encoding="utf-8")
        tree = ast.parse(source, str(file))
        symbols = module_symbols(tree)
        if body_lines:
            source = ast.unparse(ast.fix_missing_locations(Condense(body_lines).visit(tree)))
            tree = ast.parse(source)
    except UnicodeDecodeError as error:
        return Skipped(name, f"not text in UTF-8 (byte {error.start})")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) else ""
        return Skipped(name, f"no valid Python{line}: {getattr(error, 'msg', error)}")
    except OSError as error:
        return Skipped(name, f"cannot be read: {error.strerror}")
    if not symbols:
        return Skipped(name, "it defines no class and no function")
    parts = split_source(source, tree)
    total = len(parts)
    return [
        (
            name if total == 1 else f"{name}#{number}",
            {
                "module": plain_name(name),
                "part": "" if total == 1 else f"{number} of {total}",
                "text": part.strip("\n"),
                "symbols": symbols_of_part(symbols, part) if total > 1 else symbols,
            },
        )
        for number, part in enumerate(parts, 1)
    ]


def symbols_of_part(symbols: dict[str, str], part: str) -> dict[str, str]:
    """The module's symbols, those that this part defines first."""
    here = {
        name: kind
        for name, kind in symbols.items()
        if re.search(rf"^\s*(class|def|async def) {re.escape(name)}\b", part, re.MULTILINE)
    }
    return here | symbols


def plain_name(name: str) -> str:
    """What a model is asked to repeat: a folder may be named with anything, a finding's module only with these."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)[-120:]


def module_name(file: Path, root: Path) -> str:
    if root.is_file():
        return file.stem
    return ".".join([root.name, *file.relative_to(root).with_suffix("").parts])


def read_package(root: Path, body_lines: int) -> tuple[list[tuple[str, dict[str, Any]]], list[Skipped]]:
    """The tasks of all modules, and the modules that cannot be reviewed.

    Raises: ReviewError if no module can.
    """
    skipped: list[Skipped] = []
    items: list[tuple[str, dict[str, Any]]] = []
    for file in find_modules(root):
        found = module_tasks(file, module_name(file, root), body_lines)
        if isinstance(found, Skipped):
            skipped.append(found)
        else:
            items += found
    if not items:
        reasons = "; ".join(f"{skip.module}: {skip.reason}" for skip in skipped[:5])
        raise ReviewError(f"{root}: nothing to review ({reasons})")
    return items, skipped


def combine(results: Mapping[str, TaskResult], package: str) -> dict[str, Any]:
    """The reporter's input: a sentence a module, as many as fit one prompt."""
    findings: dict[str, str] = {}
    for result in results.values():
        if result.accepted:
            findings.setdefault(result.value.module, f"{result.value.module}: {result.value.purpose}")
    return {"package": plain_name(package), "findings": list(findings.values())[:30]}


# Progress and the report.


def progress(event: Event) -> None:
    if event.kind == "rejected":
        print(f"  {event.task:<40} attempt {event.attempt} rejected: {event.text}", flush=True)
    elif event.kind in ("committed", "failed"):
        print(f"{'✓' if event.kind == 'committed' else '✗'} {event.task:<40} {event.text}", flush=True)


def require_writable(path: Path) -> None:
    """Before the work begins. Raises: ReviewError."""
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ReviewError(f"{path}: the report cannot be written there; name another file with --report")


def write_report(package: str, pursuit: Pursuit, skipped: list[Skipped]) -> str:
    lines = [f"# Review of {package}", ""]
    overview = pursuit.tasks.get("reduce")
    if overview is not None:
        lines += [
            overview.value.summary if overview.accepted else "_The overview was not accepted by its gate._",
            "",
        ]
    lines += ["| module | defines | what it is for | attempts |", "| --- | --- | --- | --- |"]
    failed = []
    for task_id, outcome in pursuit.tasks.items():
        if task_id == "reduce":
            continue
        if outcome.accepted:
            found = outcome.value
            purpose = found.purpose.replace("|", "\\|")
            lines.append(
                f"| {task_id} | {found.kind} `{found.symbol}` | {purpose} | {len(outcome.attempts)} |"
            )
        else:
            failed.append(f"- **{task_id}**: {outcome.reason}")
    if failed:
        lines += ["", "## Not accepted", "", *failed]
    if skipped:
        lines += ["", "## Skipped", "", *(f"- **{skip.module}**: {skip.reason}" for skip in skipped)]
    return "\n".join(lines) + "\n"


def summarise(pursuit: Pursuit, skipped: list[Skipped], wall_s: float) -> str:
    readings = {task_id: outcome for task_id, outcome in pursuit.tasks.items() if task_id != "reduce"}
    found: dict[str, list[bool]] = {}
    for task_id, outcome in readings.items():
        found.setdefault(task_id.split("#")[0], []).append(outcome.accepted)
    reviewed = sum(map(any, found.values()))
    at_attempt = Counter(len(outcome.attempts) for outcome in readings.values() if outcome.accepted)
    usage = pursuit.usage
    rows = [
        ("modules", f"{len(found)} in {len(readings)} tasks ({len(skipped)} skipped)"),
        (
            "modules accepted",
            f"{reviewed} ({reviewed / max(1, len(found)):.0%}) have a finding; "
            f"{sum(map(all, found.values()))} one for each of their parts",
        ),
        (
            "tasks accepted",
            f"{sum(at_attempt.values())} of {len(readings)}: "
            + ", ".join(f"{count} at attempt {attempt}" for attempt, count in sorted(at_attempt.items())),
        ),
        ("tokens prefilled", f"{usage.prefilled_tokens:,}"),
        ("tokens reused", f"{usage.reused_tokens:,}"),
        ("tokens decoded", f"{usage.decoded_tokens:,}"),
        ("tokens rolled back", f"{usage.rolled_back_tokens:,}"),
        ("pages evicted", f"{usage.evicted_pages:,}"),
        ("tokens/s", f"{(usage.prefilled_tokens + usage.decoded_tokens) / wall_s:,.0f}"),
        ("wall time", f"{wall_s:.1f} s"),
    ]
    return "\n".join(f"{name:<20} {value}" for name, value in rows)


class Options(
    msgspec.Struct, frozen=True, rename=lambda name: f"--{name.replace('_', '-')}", forbid_unknown_fields=True
):
    report: str = "code_review.md"
    store: str | None = None
    body_lines: Annotated[int, msgspec.Meta(ge=0)] = BODY_LINES
    """0 for whole functions"""
    model: str = "smollm2-135m"
    workers: int = 4
    kv_budget: str = "1GiB"


def read_options(options: tuple[str, ...]) -> Options:
    known = ", ".join(field.encode_name for field in msgspec.structs.fields(Options))
    if len(options) % 2:
        raise ReviewError(f"{options[-1]} has no value; known: {known}, each with a value")
    try:
        return msgspec.convert(dict(zip(options[::2], options[1::2], strict=True)), Options, strict=False)
    except msgspec.ValidationError as error:
        raise ReviewError(f"{' '.join(options)}: {error}; known: {known}") from error


async def main(path: str, *options: str) -> None:
    given = read_options(options)
    root = Path(path).resolve()
    items, skipped = read_package(root, given.body_lines)
    require_writable(Path(given.report))
    print(f"reviewing {root.stem}: {len(items)} tasks, {len(skipped)} modules skipped", flush=True)
    started = time.monotonic()
    try:
        async with Swarm(
            model=given.model,
            workers=given.workers,
            tasks_per_worker=4,
            kv_budget=given.kv_budget,
            store=given.store,
        ) as swarm:
            pursuit = await review(swarm, root.stem, items)
    except SwarmError as error:
        raise ReviewError(f"the review could not run: {error}") from error
    report = write_report(root.stem, pursuit, skipped)
    print("\n" + report)
    print(summarise(pursuit, skipped, time.monotonic() - started))
    try:
        Path(given.report).write_text(report, encoding="utf-8")
    except OSError as error:
        raise ReviewError(f"{given.report}: the report could not be written: {error.strerror}") from error
    print(f"report written to    {given.report}")


async def review(swarm: Swarm, package: str, items: list[tuple[str, Any]]) -> Pursuit:
    """Read every module, then write the overview."""
    planner = MapReduce(
        items, map="reader", reduce="reporter", combine=lambda results: combine(results, package)
    )
    return await swarm.pursue(
        f"review {package}", planner=planner, agents=[reader, reporter], on_event=progress
    )


if __name__ == "__main__":
    import anyio

    anyio.run(main, *sys.argv[1:])
