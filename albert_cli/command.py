"""Registering verbs, and turning what goes wrong in them into one line, a hint and an exit code."""

from __future__ import annotations

import errno
import functools
import inspect
import re
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer

from albert_cli import console, distributed
from albert_cli.errors import AlbertError, InputError, Interrupted

_COMMON: dict[str, tuple[str, str]] = {
    "json": ("--json", "Print one JSON object on stdout."),
    "quiet": ("--quiet", "No progress and no notes."),
    "debug": ("--debug", "Show the traceback of an error."),
}
# The system refuses a path that was named: no bug of ours.
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG)


def verb(target: typer.Typer, **options: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a verb with `--json --quiet --debug`, and map its errors to exit codes."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(**arguments: Any) -> None:
            console.configure(**{name: arguments.pop(name) for name in _COMMON})
            try:
                function(**arguments)
            except typer.Exit:
                raise
            except BaseException as error:
                raise typer.Exit(report(error)) from None

        signature = inspect.signature(function, eval_str=True)
        common = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=False,
                annotation=Annotated[bool, typer.Option(flag, help=text, rich_help_panel="Output")],
            )
            for name, (flag, text) in _COMMON.items()
        ]
        parameters = [*signature.parameters.values(), *common]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        target.command(**options)(run)
        return run

    return register


def report(error: BaseException) -> int:
    """Say what went wrong on stderr, and return the exit code."""
    if console.settings.debug:
        traceback.print_exception(error)
    error = _as_ours(error)
    if isinstance(error, BrokenPipeError):
        sys.stderr.close()  # the reader of our output went away; there is nobody left to tell
        return 0
    message, hint, code = _in_words(error)
    if distributed.another_says(message, and_ends_us=not isinstance(error, Interrupted)):
        return code
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    return code


def _in_words(error: BaseException) -> tuple[str, str | None, int]:
    """Its message, the hint, and the exit code."""
    if isinstance(error, AlbertError):
        return error.message, error.hint, error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", None, 130
    hint = "this is a bug in albert; run again with --debug and report what it shows"
    return f"{type(error).__name__}: {error}", hint, 1


def _as_ours(error: BaseException) -> BaseException:
    """What the system or torch refuses, in our words; anything else as it is."""
    if isinstance(error, OSError) and error.errno in _REFUSED and error.filename:
        return InputError(f"{error.filename}: {error.strerror}", "check the path and the rights to it")
    if isinstance(error, MemoryError) or re.search("out of memory|can't allocate memory", str(error)):
        said = str(error).strip().partition("\n")[0] or "nothing is left"
        hint = "a smaller -s train.micro_batch_size needs less and computes the same"
        return AlbertError(f"out of memory: {said}", hint)
    return error
