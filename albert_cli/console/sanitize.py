"""Make text from unknown sources safe to show: remove or escape control characters and markup."""

from __future__ import annotations

import re

# The C0 and C1 control codes except tab and newline, Unicode's line separators, and its marks that change the direction
# of writing.
_CONTROL_CHARS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def strip_control_chars(text: str) -> str:
    """Replace every control character, which a terminal would obey, and every mark that reorders text."""
    return _CONTROL_CHARS.sub("\N{REPLACEMENT CHARACTER}", text)


def escape_control_chars(line: str) -> str:
    """Write the characters of `strip_control_chars` in a line of JSON as its Unicode escapes; the value is the same."""
    return _CONTROL_CHARS.sub(lambda match: f"\\u{ord(match[0]):04x}", line)


def escape_markdown(text: str) -> str:
    """Return the text on one line, with a backslash before each character of Markdown's or HTML's markup."""
    line = " ".join(strip_control_chars(text).split())
    escaped = re.sub(r"([\\`*_{}\[\]<>#|~$&!])", r"\\\1", line)
    # At the beginning of a line, "1.", "1)", "-" and "+" begin a list, and "-" or "=" alone underlines a heading.
    return re.sub(r"^(\d+)([.)])(?=\s)|^([-+=])(?=\s|=*$)", r"\1\\\2\3", escaped)
