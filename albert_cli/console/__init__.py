"""Print results on stdout and everything else on stderr, from rank 0 only.

`--json` prints exactly one object; progress bars appear on a terminal, sparse lines elsewhere.
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
