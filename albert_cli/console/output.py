"""Print results on stdout and messages on stderr, by the global options `--json`, `--quiet` and `--debug`."""

from __future__ import annotations

import json as json_module
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from albert_cli.console.sanitize import escape_control_chars, strip_control_chars
from albert_cli.ranks import is_main

_COLOR_CODE = re.compile(r"(\x1b\[[0-9;]*m)")  # an ANSI escape sequence for colors and weights


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


def is_stderr_terminal() -> bool:
    """Return True if stderr is a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def supports_color() -> bool:
    """Return True if stdout is a terminal and `NO_COLOR` is not set."""
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


def print_result(data: Mapping[str, object], text: str, *, colored: bool = False) -> None:
    """Print a command's result on stdout: `data` as one JSON object with `--json`, otherwise `text`.

    Control characters in the text are replaced, except for color codes if it is `colored`.
    """
    if not is_main():
        return
    if settings.json:
        print(escape_control_chars(json_module.dumps(data, ensure_ascii=False)), flush=True)
    elif colored:
        parts = _COLOR_CODE.split(text)  # text and color codes in turn
        parts[::2] = [strip_control_chars(part) for part in parts[::2]]
        print("".join(parts), flush=True)
    else:
        print(strip_control_chars(text), flush=True)


def print_partial_result(text: str) -> None:
    """Print a part of a command's result on stdout before the rest is known; nothing with `--json`."""
    if is_main() and not settings.json:
        print(strip_control_chars(text), flush=True)
