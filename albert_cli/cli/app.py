"""Register commands with the application, and report their errors as a line, a hint and an exit code.

The decorator `command` registers a command. `invoke` runs a command in this process, as the quickstart and experiments
do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import json
import os
import re
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ParamSpec

import typer
import typer.core
import typer.main

from albert_cli import __version__, console, ranks
from albert_cli.errors import AlbertError, InputError, Interrupted, ReportedError, is_compile_error
from albert_cli.os_errors import errno_of, from_os_error

P = ParamSpec("P")
EPILOGUE = (
    "Exit codes: 0 done, 1 bug, out of memory, dead worker process or network failure, 2 usage or configuration, 3 bad "
    "input, 4 checkpoint or integrity, 5 diverged or output not finite, 6 output directory in use, 7 score not "
    "reached, 75 interrupted and saved, 77 skipped, 130, 138 and 143 interrupted with nothing to save, 137 a rank of "
    "`pretrain` or `bench pretrain` with `--nproc` was killed."
)
_MAX_MESSAGE_LENGTH = 800  # characters

# The headings of `albert --help`, in their order.
STAGES = (
    "Start here",
    "Prepare text",
    "Pretrain",
    "Fine-tune and score",
    "Use a model",
    "Look inside",
    "The paper",
    "This machine and recipes",
)


class _ByStage(typer.core.TyperGroup):
    """A group that lists its commands by stage, and within a stage in the order of their registration.

    Commands without a stage come last.
    """

    def list_commands(self, ctx: object) -> list[str]:
        def stage_index(name: str) -> int:
            stage = getattr(self.commands[name], "rich_help_panel", None)
            return STAGES.index(stage) if stage in STAGES else len(STAGES)

        return sorted(self.commands, key=stage_index)


app = typer.Typer(name="albert", cls=_ByStage, epilog=EPILOGUE, no_args_is_help=True, pretty_exceptions_enable=False)
recipes_app = typer.Typer(help="List, show, copy and validate recipes.", no_args_is_help=True)
bench_app = typer.Typer(help="Measure speeds on this machine.", no_args_is_help=True)
app.add_typer(bench_app, name="bench", rich_help_panel=STAGES[-1])
app.add_typer(recipes_app, name="recipes", rich_help_panel=STAGES[-1])

# The beginning of messages about failed allocations. Later in a message, the same words may come from a file name.
_OUT_OF_MEMORY = re.compile(
    r"\[enforce fail at alloc_cpu|(CUDA|HIP|MPS)( backend| error:)? out of memory"
    r"|could not create a (primitive|memory object)$"  # of oneDNN, under `ulimit -v`
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        print(f"albert {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """From raw text to a scored, shareable ALBERT encoder."""


def command(
    group: typer.Typer, name: str | None = None, *, stage: str | None = None
) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Decorate a function as a command of a group; its errors become one line, a hint and an exit code.

    name: the command's name, by default the function's; stage: for a command of `app`, its heading in `albert --help`.
    """

    def register(function: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                function(*args, **kwargs)
            except typer.Exit:
                raise
            except BaseException as error:
                raise typer.Exit(report_error(error)) from None

        group.command(name, rich_help_panel=stage)(run)
        return run

    return register


def report_error(error: BaseException) -> int:
    """Print an error on stderr and return its exit code."""
    if console.settings.debug:
        traceback.print_exception(error)
    if isinstance(error, BrokenPipeError):
        # The reader of stdout is gone, as `head` is once it has its lines. This is no error of the command, so the code
        # is 0. Python flushes stdout again on exit, and would exit with 120 if that failed too, so the rest of the text
        # goes to the null device.
        with contextlib.suppress(OSError, ValueError):  # stdout is no file
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if isinstance(error, ReportedError):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        # Where Ctrl-C saves the state, it ends with `Interrupted`. Here nothing is saved, and the launcher kills the
        # other ranks as after an error.
        return _print_error("interrupted", None, 130, is_fatal=True)
    translated = translate_error(error)
    if translated is None:
        hint = "this is a bug in albert; run again with --debug and report the traceback"
        return _print_error(f"{type(error).__name__}: {error}", hint, 1, is_fatal=True)
    is_fatal = not isinstance(error, Interrupted)
    return _print_error(translated.message, translated.hint, translated.exit_code, is_fatal=is_fatal)


def _print_error(message: str, hint: str | None, code: int, *, is_fatal: bool) -> int:
    """Print the message as one line, then the hint, unless another rank has printed them; return the exit code `code`.

    is_fatal: True for an error, after which the launcher kills the other ranks; False for `Interrupted`, after which
    every rank saves its state and exits by itself. `ranks.claim_report` explains the difference.
    """
    if not ranks.claim_report(message, is_fatal=is_fatal):
        return code
    if len(message) > _MAX_MESSAGE_LENGTH:  # a message may quote input of any length
        head = message[: _MAX_MESSAGE_LENGTH // 2]
        tail = message[-(_MAX_MESSAGE_LENGTH // 4) :]
        message = f"{head} … {tail}"
    console.print_err(f"error: {message.replace(chr(10), ' ')}")
    if hint:
        console.print_err(f"hint: {hint}")
    return code


def translate_error(error: BaseException) -> AlbertError | None:
    """Return an `AlbertError` with a message for the user and a hint; None if the error is a bug in albert."""
    if isinstance(error, AlbertError):
        return error
    if isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason:
        return _file_name_error(error)
    if _is_out_of_memory(error):
        reason = str(error).strip().partition("\n")[0] or "nothing is left"  # a `MemoryError` has no message
        hint = (
            "in training, use -s train.checkpoint_activations=true, or lower -s batch.micro_tokens "
            "(train.micro_batch_size if the recipe has none), which samples other dropout masks and needs a new --out"
        )
        return AlbertError(f"out of memory: {reason}", hint)
    translated = from_os_error(error)
    if translated is not None:
        return translated
    if is_compile_error(error):
        from albert_cli.training.device import summarize_compile_error

        return AlbertError(summarize_compile_error(error), "use -s train.compile=off: it computes the same, slower")
    return None


def _file_name_error(error: UnicodeEncodeError) -> InputError:
    """Return the error for a file whose name is not UTF-8.

    `error.object` is the whole text that was to be written, such as a JSON file; the name in it is a string with lone
    surrogates (U+D800 to U+DFFF).
    """
    match = re.search(r'[^"\n]*[\ud800-\udfff][^"\n]*', error.object)
    name = match[0][-200:] if match else error.object[error.start : error.end]
    return InputError(f"{name}: the name is not valid UTF-8", "rename the file or the folder")


def _is_out_of_memory(error: BaseException) -> bool:
    """Return True for a failed allocation by the system, Python, torch or oneDNN."""
    number = errno_of(error)
    if number is not None:
        return number == errno.ENOMEM
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and _OUT_OF_MEMORY.match(str(error)) is not None


def _report_thread_error(
    arguments: threading.ExceptHookArgs, print_traceback: Callable[[threading.ExceptHookArgs], object]
) -> None:
    """Print the traceback of the error that ended a thread if the error is a bug, or with --debug.

    Libraries start threads, as TensorBoard does to write its files. If the error is no bug, such as a full disk, the
    library also raises it in the main thread, where `command` reports it.
    """
    error = arguments.exc_value
    if console.settings.debug or error is None or translate_error(error) is None:
        print_traceback(arguments)


threading.excepthook = functools.partial(_report_thread_error, print_traceback=threading.excepthook)


def invoke_json(arguments: Sequence[str]) -> dict[str, Any]:
    """Run an `albert` command in this process and return the object that it prints; `arguments` include `--json`.

    Raises `typer.Exit` with the command's exit code if the command fails.
    """
    code, printed = invoke(arguments)
    if code:
        raise typer.Exit(code)
    result: dict[str, Any] = json.loads(printed)
    return result


@functools.cache
def command_line() -> Callable[..., object]:
    """Return the command line; it is cached, because building it takes a tenth of a second."""
    return typer.main.get_command(app)


def invoke(arguments: Sequence[str]) -> tuple[int, str]:
    """Run an `albert` command in this process; return its exit code and what it and its ranks print on stdout."""
    settings = dataclasses.replace(console.settings)  # a copy, because the command changes them
    argv = sys.argv
    flags = {"--quiet": settings.quiet, "--debug": settings.debug}
    options = [name for name, is_set in flags.items() if is_set]
    end = arguments.index("--") if "--" in arguments else len(arguments)  # words after "--" are no options
    sys.argv = ["albert", *arguments[:end], *options, *arguments[end:]]  # the command starts its ranks with these
    code = 0
    stdout = os.dup(1)  # ranks are processes: they write to the file descriptor, not to `sys.stdout`
    with tempfile.TemporaryFile("w+", encoding="utf-8") as printed:
        try:
            os.dup2(printed.fileno(), 1)
            with contextlib.redirect_stdout(printed):
                command_line()(sys.argv[1:])
        except SystemExit as exit_:
            if isinstance(exit_.code, int):
                code = exit_.code
            elif exit_.code is not None:  # a message: Python prints it and exits with 1
                code = 1
        finally:
            os.dup2(stdout, 1)
            os.close(stdout)
            sys.argv = argv
            console.configure(**dataclasses.asdict(settings))
        printed.seek(0)
        return code, printed.read()
