"""The command line: `swarmkv run SCRIPT [ARGS]`, `swarmkv model pull`, `swarmkv model list`."""

from __future__ import annotations

import asyncio
import inspect
import sys
import types
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Swarms of LLM agents on models that you host."
)
model_app = typer.Typer(no_args_is_help=True, help="The embedded model.")
app.add_typer(model_app, name="model")

INTERRUPTED = 130


def main() -> None:
    """The console script."""
    app()


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="a Python file with `async def main(...)`")],
) -> None:
    """Run a script's `main` with the remaining arguments, as strings."""
    try:
        _run(load_main(script, context.args), context.args)
    except KeyboardInterrupt:
        typer.echo("interrupted; nothing is left running", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except _user_errors() as error:
        fail(str(error))


@model_app.command()
def pull(name: Annotated[str, typer.Argument(help="an embedded model's name")] = "smollm2-135m") -> None:
    """Fetch and convert an embedded model, once; then say where it is."""
    from ..kvcore.model import ModelError
    from ..kvcore.model import pull as pull_model

    try:
        folder = pull_model(name, progress=lambda step: typer.echo(step, err=True))
    except ModelError as error:
        fail(str(error))
    typer.echo(folder)


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    typer.echo(installed("swarmkv"))


def load_main(script: Path, args: list[str]) -> Any:
    """The script's `main`, with the script as `__main__`, so that workers find its agents there.

    Raises: ScriptInvalid if there is no such script or no async `main`, or the arguments do not fit it; whatever
            the script raises.
    """
    from .errors import ScriptInvalid

    if not script.is_file():
        raise ScriptInvalid(f"{script}: there is no such script")
    sys.argv[:] = [str(script), *args]
    sys.path.insert(0, str(script.resolve().parent))
    # The name that a worker imports the script under, so that agents are found in both alike.
    module = types.ModuleType("__mp_main__")
    module.__file__ = str(script.resolve())
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    try:
        code = compile(script.read_bytes(), str(script), "exec")
    except (SyntaxError, ValueError) as error:
        raise ScriptInvalid(f"{script}: {error}") from error
    exec(code, module.__dict__)
    entry = getattr(module, "main", None)
    if not inspect.iscoroutinefunction(entry):
        raise ScriptInvalid(f"{script}: it defines no `async def main(...)`")
    try:
        inspect.signature(entry).bind(*args)
    except TypeError as error:
        raise ScriptInvalid(
            f"{script}: its main{inspect.signature(entry)} was given {args}: {error}"
        ) from error
    return entry


def _run(entry: Any, args: list[str]) -> None:
    async def call() -> None:
        await entry(*args)

    try:
        import uvloop
    except ImportError:
        asyncio.run(call())
    else:
        uvloop.run(call())


def _user_errors() -> tuple[type[Exception], ...]:
    """Errors that are the user's to mend: shown as a sentence, not as a traceback."""
    from ..agents.errors import AgentError
    from ..verify import VerifyError
    from .errors import SwarmError
    from .fabric import FabricError
    from .stores import StoreError

    return (SwarmError, AgentError, VerifyError, FabricError, StoreError)


def fail(message: str) -> NoReturn:
    typer.echo(f"swarmkv: {message}", err=True)
    raise typer.Exit(1)
