"""Print a command's result on stdout, and notes, warnings and progress on stderr; only rank 0 prints.

With `--json` the result is exactly one JSON object. Progress is a bar on a terminal, and a line every few seconds
elsewhere. The package also formats tables and durations, and removes control characters from text.
"""

from albert_cli.console.output import (
    ConsoleSettings,
    configure,
    info,
    is_stderr_terminal,
    print_err,
    print_partial_result,
    print_result,
    settings,
    supports_color,
    warn,
)
from albert_cli.console.progress_display import Progress, show_progress
from albert_cli.console.sanitize import escape_control_chars, escape_markdown, strip_control_chars
from albert_cli.console.tables import (
    format_duration,
    format_markdown_table,
    format_named_values,
    format_table,
    text_width,
    wrap_notes,
)

__all__ = [
    "ConsoleSettings",
    "Progress",
    "configure",
    "escape_control_chars",
    "escape_markdown",
    "format_duration",
    "format_markdown_table",
    "format_named_values",
    "format_table",
    "info",
    "is_stderr_terminal",
    "print_err",
    "print_partial_result",
    "print_result",
    "settings",
    "show_progress",
    "strip_control_chars",
    "supports_color",
    "text_width",
    "warn",
    "wrap_notes",
]
