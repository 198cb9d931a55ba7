"""Show the progress of an operation: a rich progress bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from albert_cli.console.output import is_stderr_terminal, print_err, settings
from albert_cli.console.sanitize import strip_control_chars
from albert_cli.console.tables import format_duration
from albert_cli.ranks import is_main

_SECONDS_BETWEEN_LINES = 15.0


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
    if settings.quiet or not is_main():
        yield _SilentProgress()
    elif is_stderr_terminal():
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
