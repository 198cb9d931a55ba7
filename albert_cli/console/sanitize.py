"""Remove or escape what a terminal or a Markdown viewer would interpret in text from unknown sources."""

from __future__ import annotations

import re

# Control codes of both ranges, line separators, and marks that change the direction of writing.
_CONTROL_CHARS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def strip_control_chars(text: str) -> str:
    """Replace every character that a terminal would obey or that reorders the text."""
    return _CONTROL_CHARS.sub("\N{REPLACEMENT CHARACTER}", text)


def escape_control_chars(line: str) -> str:
    """Escape such characters in a line of JSON, which means the same afterwards."""
    return _CONTROL_CHARS.sub(lambda match: f"\\u{ord(match[0]):04x}", line)


def escape_markdown(text: str) -> str:
    """Return the text on one line, with a backslash before all markup of Markdown and HTML."""
    escaped = re.sub(r"([\\`*_{}\[\]<>#|~$&!])", r"\\\1", " ".join(strip_control_chars(text).split()))
    # Digits and a full stop, or a hyphen or plus, would begin a list.
    return re.sub(r"^(\d+)([.)])(?=\s)|^([-+=])(?=\s|=*$)", r"\1\\\2\3", escaped)
