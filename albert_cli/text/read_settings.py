"""Define the options of reading text, and parse sizes such as `64MiB` on a command line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from albert_cli.errors import ConfigError

OnBadBytes = Literal["refuse", "replace"]
OnLongLine = Literal["refuse", "skip"]
DocumentRule = Literal["blank-line", "line", "file"]
FileKind = Literal["text", "jsonl", "json", "csv", "tsv", "parquet", "arrow", "wiki"]
FileFormat = Literal["auto", FileKind]
_UNITS = {"": 1, "k": 10**3, "ki": 2**10, "m": 10**6, "mi": 2**20, "g": 10**9, "gi": 2**30}
# A number, with at most 17 digits before the point, and a unit that may end in B.
_SIZE = re.compile(r"\s*([0-9]{1,17}(?:\.[0-9]*)?|\.[0-9]+)\s*((?:[kmg]i?)?)b?\s*", re.IGNORECASE)


@dataclass(frozen=True)
class ReadSettings:
    """The options of reading text.

    on_bad_bytes: "refuse" or "replace" invalid UTF-8, lone surrogates and NUL; text_field: the field or column that
    contains the text, or a path of keys such as `content.text`; max_line: the longest line, record or row in bytes;
    on_long_line: "refuse" or "skip" longer ones; format: the format of all files, "auto" to choose it by each file's
    name; document: where a document of plain text ends; join_lines: join the lines up to each blank line, because the
    text wraps its paragraphs. Raises `ConfigError` for impossible values.
    """

    on_bad_bytes: OnBadBytes = "refuse"
    text_field: str = "text"
    max_line: int = 64 << 20
    on_long_line: OnLongLine = "refuse"
    format: FileFormat = "auto"
    document: DocumentRule = "blank-line"
    join_lines: bool = False

    def __post_init__(self) -> None:
        if self.max_line < 1 << 10:
            raise ConfigError(f"--max-line {self.max_line}: must be at least 1KiB")
        if self.join_lines and self.document == "line":
            raise ConfigError("--join-lines contradicts --document line", "omit one of them")


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `64MiB`, `500kB`, `1G` or `1024`; raise `ConfigError` for anything else."""
    match = _SIZE.fullmatch(text)
    if match:
        size = float(match[1]) * _UNITS[match[2].lower()]
        # The readers add a few bytes for a line end, and the sum must still fit in a signed 64-bit integer.
        if size < 2**62:
            return int(size)
    raise ConfigError(f"{text!r} is not a size", "write, for example, 64MiB")
