"""The application that the verbs register with; what goes wrong in them becomes one line, a hint and an exit code."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import inspect
import os
import re
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from albert_cli import __version__, console, ranks
from albert_cli.errors import AlbertError, InputError, Interrupted
from albert_cli.os_errors import errno_of, from_os_error

EPILOGUE = (
    "Exit codes: 0 done, 1 bug, 2 usage or configuration, 3 bad input, 4 checkpoint or integrity, "
    "5 diverged, 6 output directory in use, 7 score not reached, 75 interrupted and saved, 77 skipped, "
    "130 interrupted with nothing to save."
)
_LONGEST = 800  # characters of an error
app = typer.Typer(name="albert", epilog=EPILOGUE, no_args_is_help=True, pretty_exceptions_enable=False)
recipes_app = typer.Typer(help="List, show, copy and validate recipes.", no_args_is_help=True)
bench_app = typer.Typer(help="Measure speeds on this machine.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")
app.add_typer(recipes_app, name="recipes")

_COMMON = {
    "json": "Print one JSON object on stdout.",
    "quiet": "No progress and no notes.",
    "debug": "Show the traceback of an error.",
}
# How torch's messages begin where an allocation failed; other words than the first may come from a file's name.
_NO_MEMORY = re.compile(
    r"\[enforce fail at alloc_cpu|(CUDA|HIP|MPS)( backend| error:)? out of memory"
    r"|could not create a (primitive|memory object)$"  # of oneDNN, under `ulimit -v`
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"albert {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """From raw text to a scored, shareable ALBERT encoder."""


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
                raise typer.Exit(report_error(error)) from None

        signature = inspect.signature(function, eval_str=True)
        common = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=False,
                annotation=Annotated[bool, typer.Option(f"--{name}", help=text, rich_help_panel="Output")],
            )
            for name, text in _COMMON.items()
        ]
        parameters = [*signature.parameters.values(), *common]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        target.command(**options)(run)
        return run

    return register


def report_error(error: BaseException) -> int:
    """Print what went wrong on stderr, and return the exit code."""
    if console.settings.debug:
        traceback.print_exception(error)
    if isinstance(error, BrokenPipeError):
        sys.stderr.close()  # the reader of our output went away; there is nobody left to tell
        return 0
    if isinstance(error, KeyboardInterrupt):
        message, hint, code = "interrupted", None, 130
    elif (known := _translate_error(error)) is not None:
        message, hint, code = known.message, known.hint, known.exit_code
    else:
        hint = "this is a bug in albert; run again with --debug and report what it shows"
        message, code = f"{type(error).__name__}: {error}", 1
    if ranks.is_already_reported(message, is_fatal=not isinstance(error, Interrupted)):
        return code
    if len(message) > _LONGEST:  # it quotes what is wrong, which may be anything
        message = f"{message[: _LONGEST // 2]} … {message[-_LONGEST // 4 :]}"
    console.print_err(f"error: {message.replace(chr(10), ' ')}")
    if hint:
        console.print_err(f"hint: {hint}")
    return code


def _translate_error(error: BaseException) -> AlbertError | None:
    """An error of ours, or what the system or torch refuses in our words; None for a bug."""
    if isinstance(error, AlbertError):
        return error
    if isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason:
        found = re.search(r'[^"\n]*[\ud800-\udfff][^"\n]*', error.object)  # of what may be a whole JSON file
        name = found[0][-200:] if found else error.object[error.start : error.end]
        return InputError(f"{name}: a name that is no UTF-8", "rename the file or the folder")
    number = errno_of(error)
    torch_says = isinstance(error, RuntimeError) and _NO_MEMORY.match(str(error)) is not None
    is_without = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or torch_says
    if number == errno.ENOMEM or (number is None and is_without):
        reason = str(error).strip().partition("\n")[0] or "nothing is left"
        hint = "a smaller -s train.micro_batch_size needs less and computes the same"
        return AlbertError(f"out of memory: {reason}", hint)
    if (said := from_os_error(error)) is not None:
        return said
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        from albert_cli.training.device import summarize_compile_error

        return AlbertError(summarize_compile_error(error), "-s train.compile=off computes the same without, slower")
    return None


def _report_thread_error(ended: threading.ExceptHookArgs, show: Callable[[threading.ExceptHookArgs], object]) -> None:
    """Show the traceback of a thread's bug; what the system refuses is reported once, by the call that waits for it."""
    if console.settings.debug or ended.exc_value is None or _translate_error(ended.exc_value) is None:
        show(ended)


threading.excepthook = functools.partial(_report_thread_error, show=threading.excepthook)


def invoke(arguments: Sequence[str]) -> tuple[int, str]:
    """An `albert` command in this process: its exit code, and what it and the ranks that it starts print on stdout."""
    before, argv, code, stdout = dataclasses.replace(console.settings), sys.argv, 0, os.dup(1)
    more = [flag for flag, wanted in (("--quiet", before.quiet), ("--debug", before.debug)) if wanted]
    sys.argv = ["albert", *arguments, *more]  # what ranks are started with
    with tempfile.TemporaryFile("w+", encoding="utf-8") as printed:
        try:
            os.dup2(printed.fileno(), 1)
            with contextlib.redirect_stdout(printed):
                app(sys.argv[1:])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        finally:
            os.dup2(stdout, 1)
            os.close(stdout)
            sys.argv = argv
            console.configure(**dataclasses.asdict(before))
        printed.seek(0)
        return code, printed.read()
