"""Print a command's result on stdout, and notes, warnings and progress on stderr; only rank 0 prints.

With the global option `--json` the result is exactly one JSON object. Progress is a bar on a terminal, and a line every
few seconds elsewhere. The module also formats tables and durations, and removes control characters from text.
"""

from __future__ import annotations

import io
import json as json_module
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Protocol

from albert_cli.os_errors import translate_stdout_errors
from albert_cli.ranks import is_main

_COLOR_CODE = re.compile(r"(\x1b\[[0-9;]*m)")  # an ANSI escape sequence for colors and bold text
# The C0 and C1 control codes except tab and newline, Unicode's line separators, and its marks that change the direction
# of writing.
_CONTROL_CHARS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_SECONDS_BETWEEN_LINES = 15.0  # of progress, where stderr is no terminal
_UNLIMITED_WIDTH = 10_000  # columns; rich would truncate the cells of a wider table


@dataclass
class ConsoleSettings:
    """The global options of the command line."""

    json: bool = False  # print results as JSON
    quiet: bool = False  # print no notes and no progress
    debug: bool = False  # print tracebacks


settings = ConsoleSettings()


def configure(*, json: bool = False, quiet: bool = False, debug: bool = False) -> None:
    """Set all global options; an option that is left out is turned off."""
    settings.json = json
    settings.quiet = quiet
    settings.debug = debug


# ---------------------------------------------------------------- control characters


def strip_control_chars(text: str) -> str:
    """Replace every control character, which a terminal would obey, and every mark that reorders text, by U+FFFD."""
    return _CONTROL_CHARS.sub("\N{REPLACEMENT CHARACTER}", text)


def escape_control_chars(line: str) -> str:
    """Replace the control characters in a line of JSON by Unicode escapes; the value of the JSON stays the same."""
    return _CONTROL_CHARS.sub(lambda match: f"\\u{ord(match[0]):04x}", line)


def escape_markdown(text: str) -> str:
    """Return the text on one line, with a backslash before each character of Markdown's or HTML's markup."""
    line = " ".join(strip_control_chars(text).split())
    escaped = re.sub(r"([\\`*_{}\[\]<>#|~$&!])", r"\\\1", line)
    # At the beginning of a line, "1.", "1)", "-" and "+" begin a list. A line of only "-" or "=" underlines a heading.
    return re.sub(r"^(\d+)([.)])(?=\s)|^([-+=])(?=\s|[-=]*$)", r"\1\\\2\3", escaped)


# ---------------------------------------------------------------- results and messages


def supports_color() -> bool:
    """Return True if stdout is a terminal that shows colors, and `NO_COLOR` is not set."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def print_err(text: str) -> None:
    """Print to stderr without control characters.

    Ignores errors of the stream: the command continues if its stderr was closed or its disk is full.
    """
    with suppress(OSError):
        print(strip_control_chars(text), file=sys.stderr, flush=True)


def info(text: str) -> None:
    """Print a note to stderr, unless `--quiet` is set."""
    if is_main() and not settings.quiet:
        print_err(text)


def warn(text: str) -> None:
    """Print a warning to stderr, even if `--quiet` is set."""
    if is_main():
        print_err(f"warning: {text}")


class PrefixedStream(io.TextIOBase):
    """A stream that writes a prefix before each line."""

    def __init__(self, prefix: str, stream: IO[str]) -> None:
        self._prefix = prefix
        self._stream = stream
        self._line = ""  # the incomplete last line

    def write(self, text: str) -> int:
        """Write the complete lines of a text, and keep the rest for the next call."""
        *lines, self._line = (self._line + text).split("\n")
        self._stream.write("".join(f"{self._prefix} | {line}\n" for line in lines))
        return len(text)

    def flush(self) -> None:
        """Flush the stream behind this one."""
        self._stream.flush()


def print_result(data: Mapping[str, object], text: str, *, colored: bool = False) -> None:
    """Print a command's result on stdout: `data` as one JSON object with `--json`, otherwise `text`.

    Control characters in the text are replaced. If `colored` is True, color codes are printed unchanged.
    """
    if not is_main():
        return
    if settings.json:
        printed = escape_control_chars(json_module.dumps(data, ensure_ascii=False))
    elif colored:
        parts = _COLOR_CODE.split(text)  # text and color codes in turn
        parts[::2] = [strip_control_chars(part) for part in parts[::2]]
        printed = "".join(parts)
    else:
        printed = strip_control_chars(text)
    with translate_stdout_errors():
        print(printed, flush=True)


def print_partial_result(text: str) -> None:
    """Print a part of a command's result on stdout before the rest is known; nothing with `--json`."""
    if is_main() and not settings.json:
        with translate_stdout_errors():
            print(strip_control_chars(text), flush=True)


# ---------------------------------------------------------------- tables, named values and durations


def format_table(headers: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """Return a plain table: the first column left-aligned, the others right-aligned."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for index, header in enumerate(headers):
        table.add_column(Text(str(header)), justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    stream = io.StringIO()
    Console(file=stream, width=_UNLIMITED_WIDTH, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in stream.getvalue().rstrip().splitlines())


def format_markdown_table(headers: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table: the first column left-aligned, the others right-aligned."""
    rule = ["---", *(["---:"] * (len(headers) - 1))]
    lines = []
    for row in (headers, rule, *rows):
        cells = " | ".join(str(cell).strip() for cell in row)
        lines.append(f"| {cells} |")
    return "\n".join(lines)


def format_named_values(values: Mapping[str, object]) -> list[str]:
    """Return one line `name  value` for each value that is not None; the values are aligned."""
    width = max(map(len, values), default=0)
    return [f"  {name.ljust(width)}  {_format_value(value)}" for name, value in values.items() if value is not None]


def _format_value(value: object) -> str:
    """Return a value as text, lists and dictionaries without brackets, and floats with six significant digits.

    Entries of a dictionary that are None or "" are left out.
    """
    if isinstance(value, dict):
        entries = {name: inner for name, inner in value.items() if inner not in (None, "")}
        return ", ".join(f"{name} {_format_value(inner)}" for name, inner in entries.items())
    if isinstance(value, list):
        return " ".join(map(_format_value, value))
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def text_width() -> int:
    """Return the width of lines of text in columns: the terminal's, within 60 and 140; 100 without a terminal."""
    return min(max(shutil.get_terminal_size((100, 24)).columns, 60), 140)


def wrap_notes(notes: Iterable[str]) -> str:
    """Wrap the notes below a table to `text_width`; each note begins a new line, and its other lines are indented."""
    return "\n".join(textwrap.fill(note, text_width(), subsequent_indent="  ") for note in notes)


def format_duration(seconds: float) -> str:
    """Return a duration such as `42 s`, `3 min 05 s`, `2 h 10 min`."""
    total_seconds = round(seconds)
    if total_seconds < 60:
        return f"{total_seconds} s"
    minutes, remaining_seconds = divmod(total_seconds, 60)
    if minutes < 60:
        return f"{minutes} min {remaining_seconds:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


# ---------------------------------------------------------------- progress


class Progress(Protocol):
    """A display of the progress of a running operation."""

    def update(self, done: float, text: str = "") -> None:
        """Show how many units are done, including those before the start, and a short text."""


class _SilentProgress:
    """A display that shows nothing."""

    def update(self, done: float, text: str = "") -> None:
        """Do nothing."""


class _LineProgress:
    """A display that prints a line to stderr every few seconds, with the time left."""

    def __init__(self, label: str, total: float | None, done_before: float) -> None:
        self._label = label
        self._total = total
        self._done_before = done_before
        self._start = time.monotonic()
        self._last_line = self._start

    def update(self, done: float, text: str = "") -> None:
        """Print a line unless the last line was printed a short time ago."""
        now = time.monotonic()
        if now - self._last_line < _SECONDS_BETWEEN_LINES:
            return
        self._last_line = now
        percent = ""
        remaining = ""
        if self._total:
            percent = f" {100 * done / self._total:.0f} %"
            if done > self._done_before:
                seconds_per_unit = (now - self._start) / (done - self._done_before)
                remaining = f", {format_duration(seconds_per_unit * (self._total - done))} left"
        print_err(f"{self._label}{percent} {text}{remaining}")


@contextmanager
def show_progress(label: str, total: float | None = None, done_before: float = 0) -> Iterator[Progress]:
    """Show the progress of an operation while the `with` block runs.

    total: the number of units of the whole operation, None if unknown.
    done_before: the number of units that were done before the block, by an interrupted run.
    """
    can_redraw_line = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    if settings.quiet or not is_main():
        yield _SilentProgress()
    elif can_redraw_line:
        with _rich_progress(label, total, done_before) as bar:
            yield bar
    else:
        yield _LineProgress(label, total, done_before)


@contextmanager
def _rich_progress(label: str, total: float | None, done_before: float) -> Iterator[Progress]:
    """Show a bar of rich while the `with` block runs; the bar disappears at the end."""
    from rich import progress as rich_progress
    from rich.console import Console

    columns = (
        rich_progress.TextColumn("{task.description}", markup=False),
        rich_progress.BarColumn(bar_width=24),
        rich_progress.TaskProgressColumn(),
        rich_progress.TimeRemainingColumn(compact=True),
        rich_progress.TextColumn("{task.fields[text]}", markup=False),
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task(strip_control_chars(label), total=total, completed=int(done_before), text="")

        class RichProgress:
            """A display that draws a bar on the terminal."""

            def update(self, done: float, text: str = "") -> None:
                """Redraw the bar and the text."""
                display.update(task, completed=done, text=strip_control_chars(text))

        yield RichProgress()
