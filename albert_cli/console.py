"""What a person or a script sees: data on stdout, everything else on stderr, both from rank 0 alone.

`--json` prints exactly one object; progress bars appear on a terminal, sparse lines elsewhere.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from albert_cli.ranks import is_main


@dataclass
class ConsoleSettings:
    """The global switches of the command line."""

    json: bool = False
    quiet: bool = False
    debug: bool = False


settings = ConsoleSettings()
# Control codes of both ranges, line separators, and what turns the direction of writing around.
_CONTROL_CHARS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_COLOR_CODE = re.compile(r"(\x1b\[[0-9;]*m)")
_SECONDS_BETWEEN_LINES = 15.0


def configure(*, json: bool = False, quiet: bool = False, debug: bool = False) -> None:
    """Set the global switches, once, by the command line."""
    settings.json, settings.quiet, settings.debug = json, quiet, debug


def is_stderr_terminal() -> bool:
    """Whether stderr is a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def supports_color() -> bool:
    """Whether to colour text on stdout: a terminal, and no `NO_COLOR`."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def print_err(text: str) -> None:
    """Print on stderr. Where nobody reads it any more, or the disk that it goes to is full, the work goes on."""
    with suppress(OSError):
        print(strip_control_chars(text), file=sys.stderr, flush=True)


def info(text: str) -> None:
    """Say something in passing (stderr; silent under `--quiet`)."""
    if is_main() and not settings.quiet:
        print_err(text)


def warn(text: str) -> None:
    """Say something that the user should know (stderr, also under `--quiet`)."""
    if is_main():
        print_err(f"warning: {text}")


def print_result(data: Mapping[str, object], text: str, *, coloured: bool = False) -> None:
    """Print the verb's result on stdout: one JSON object under `--json`, the text otherwise.

    Where the text is `coloured`, the sequences that do this are obeyed, and no other.
    """
    if is_main():
        parts = _COLOR_CODE.split(text) if coloured else [text]
        shown = "".join(part if _COLOR_CODE.fullmatch(part) else strip_control_chars(part) for part in parts)
        print(escape_control_chars(json.dumps(data, ensure_ascii=False)) if settings.json else shown, flush=True)


def print_partial_result(text: str) -> None:
    """Print a part of the verb's result before the rest is known; nothing under `--json`."""
    if is_main() and not settings.json:
        print(strip_control_chars(text), flush=True)


def strip_control_chars(text: str) -> str:
    """The text, which strangers may have written, with nothing that a terminal obeys or shows in another order."""
    return _CONTROL_CHARS.sub("\N{REPLACEMENT CHARACTER}", text)


def escape_control_chars(line: str) -> str:
    """A line of JSON with what a terminal would obey as escapes: read again, it is the same."""
    return _CONTROL_CHARS.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


def escape_markdown(text: str) -> str:
    """The text on one line, with a backslash before whatever could be read as markup, of Markdown or of HTML."""
    escaped = re.sub(r"([\\`*_{}\[\]<>#|~$&!])", r"\\\1", " ".join(strip_control_chars(text).split()))
    # A line of digits and a full stop, or of a hyphen or plus, would begin a list.
    return re.sub(r"^(\d+)([.)])(?=\s)|^([-+=])(?=\s|=*$)", r"\1\\\2\3", escaped)


def format_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A plain table: the first column to the left, the others to the right, two spaces between."""
    cells = [[str(c) for c in row] for row in (headers, *rows)]
    first, *others = widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    pattern = "  ".join([f"{{:<{first}}}", *(f"{{:>{width}}}" for width in others)])
    lines = [pattern.format(*row).rstrip() for row in cells]
    return "\n".join([lines[0], "  ".join("─" * w for w in widths), *lines[1:]])


def format_markdown_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """The same table in Markdown: the first column to the left, the others to the right."""
    rule = ["---", *(["---:"] * (len(headers) - 1))]
    return "\n".join(f"| {' | '.join(str(c).strip() for c in row)} |" for row in (headers, rule, *rows))


def format_named_values(facts: Mapping[str, object]) -> list[str]:
    """Aligned lines `name  value` of the values that are not None."""
    width = max(map(len, facts), default=0)
    return [f"  {name.ljust(width)}  {_plain(value)}" for name, value in facts.items() if value is not None]


def _plain(value: object) -> str:
    """A value for a person: no braces, quotes or brackets around what it is made of."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(v)}" for name, v in value.items() if v not in (None, ""))
    if isinstance(value, list):
        return " ".join(map(_plain, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def text_width() -> int:
    """Columns of text to use: the terminal's (100 elsewhere), but not so many that a line is hard to follow."""
    return min(max(shutil.get_terminal_size((100, 24)).columns, 60), 140)


def wrap_notes(notes: Iterable[str]) -> str:
    """Notes under a table, each from a new line, broken where the terminal ends."""
    return "\n".join(textwrap.fill(note, text_width(), subsequent_indent="  ") for note in notes)


def format_duration(seconds: float) -> str:
    """A length of time as a person says it: `42 s`, `3 min 05 s`, `2 h 10 min`."""
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


class Progress:
    """A running task: a bar on a terminal (drawn by rich), a line now and then elsewhere, or nothing."""

    def __init__(self, label: str, total: float | None, done: float) -> None:
        self._label, self._total, self._before = label, total, done
        self._start = self._last = time.monotonic()
        self.draw: Callable[[float, str], None] = self._line

    def update(self, done: float, text: str = "") -> None:
        """Set how much is done (in the unit of `total`) and a short text beside the bar."""
        self.draw(done, text)

    def _line(self, done: float, text: str) -> None:
        now = time.monotonic()
        if now - self._last < _SECONDS_BETWEEN_LINES:
            return
        self._last = now
        share = f" {100 * done / self._total:.0f} %" if self._total else ""
        left = ""
        if self._total and done > self._before:
            left = f", {format_duration((now - self._start) * (self._total - done) / (done - self._before))} left"
        print_err(f"{self._label}{share} {text}{left}")


@contextmanager
def progress(label: str, total: float | None = None, done: float = 0) -> Iterator[Progress]:
    """Show the progress of a task of `total` units (None: unknown), `done` of them before, while the block runs."""
    shown, is_silent = Progress(label, total, done), settings.quiet or not is_main()
    if is_silent or not is_stderr_terminal():
        if is_silent:
            shown.draw = lambda done, text: None
        yield shown
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), TaskProgressColumn())
    rest = (TimeRemainingColumn(compact=True), TextColumn("{task.fields[text]}", markup=False))
    with RichProgress(*columns, *rest, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(strip_control_chars(label), total=total, completed=int(done), text="")
        shown.draw = lambda done, text: bar.update(task, completed=done, text=strip_control_chars(text))
        yield shown
