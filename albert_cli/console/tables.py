"""Format tables, named values, notes and durations for stdout, as plain text or Markdown."""

from __future__ import annotations

import io
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence

_UNLIMITED_WIDTH = 10_000  # columns; rich would truncate the cells of a wider table


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
    """Return a value as text; dictionaries and lists have no brackets, and floats six significant digits."""
    if isinstance(value, dict):
        entries = {name: inner for name, inner in value.items() if inner not in (None, "")}
        return ", ".join(f"{name} {_format_value(inner)}" for name, inner in entries.items())
    if isinstance(value, list):
        return " ".join(map(_format_value, value))
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def text_width() -> int:
    """Return the width of lines of text: that of the terminal, but at least 60 and at most 140; 100 if unknown."""
    return min(max(shutil.get_terminal_size((100, 24)).columns, 60), 140)


def wrap_notes(notes: Iterable[str]) -> str:
    """Wrap the notes below a table to `text_width`; each note begins a new line, and its other lines are indented."""
    return "\n".join(textwrap.fill(note, text_width(), subsequent_indent="  ") for note in notes)


def format_duration(seconds: float) -> str:
    """Return a duration such as `42 s`, `3 min 05 s`, `2 h 10 min`."""
    total_seconds = round(seconds)
    if total_seconds < 60:
        return f"{seconds:.0f} s"
    minutes, remaining_seconds = divmod(total_seconds, 60)
    if minutes < 60:
        return f"{minutes} min {remaining_seconds:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
