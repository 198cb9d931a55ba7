"""Results go to stdout; messages, warnings and progress go to stderr."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from albert_cli import console
from albert_cli.cli.app import report_error
from albert_cli.errors import CheckpointError, InputError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class ClosedPipe(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.fixture(autouse=True)
def _restore_settings() -> Iterator[None]:
    yield
    console.configure()


def test_results_go_to_stdout_and_notes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    console.info("in passing")
    console.warn("mind this")
    console.print_result({"a": 1}, "one")
    assert capsys.readouterr() == ("one\n", "in passing\nwarning: mind this\n")


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    console.configure(json=True)
    console.print_result({"a": [1, None, "ü"]}, "text")
    assert json.loads(capsys.readouterr().out) == {"a": [1, None, "ü"]}


def test_quiet_leaves_results_and_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    console.configure(quiet=True)
    console.info("in passing")
    console.warn("mind this")
    console.print_result({}, "one")
    with console.show_progress("train", 10) as bar:
        bar.update(5, "x")
    assert capsys.readouterr() == ("one\n", "warning: mind this\n")


def test_closed_stderr_does_not_stop_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `albert pretrain … 2>&1 | head -1`, the run continues, and its exit code still reports errors."""
    monkeypatch.setattr(sys, "stderr", ClosedPipe())
    monkeypatch.setattr(console, "_SECONDS_BETWEEN_LINES", -1.0)
    console.info("in passing")
    console.warn("mind this")
    with console.show_progress("train", 10) as bar:
        bar.update(5, "x")
    assert report_error(InputError("it is not there", "look elsewhere")) == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
@pytest.mark.parametrize("as_json", [False, True])
def test_full_disk_behind_stdout_names_standard_output(as_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    console.configure(json=as_json)
    full = Path("/dev/full").open("w")  # noqa: SIM115  (closing it fails, too)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", full)
        with pytest.raises(CheckpointError, match=r"^standard output: "):
            console.print_result({"a": 1}, "a 1")
    with suppress(OSError):
        full.close()


def test_only_rank_0_prints(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    console.info("a")
    console.warn("b")
    console.print_result({}, "c")
    with console.show_progress("train", 10) as bar:
        bar.update(5)
    assert capsys.readouterr() == ("", "")


def test_progress_in_a_log_is_an_occasional_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with console.show_progress("train", 200) as bar:
        for done in range(1, 101):
            now[0] += 1.0
            bar.update(done, f"loss {done}")
    out, err = capsys.readouterr()
    assert not out
    lines = err.splitlines()
    assert len(lines) == 6
    assert lines[0] == "train 8 % loss 15, 3 min 05 s left"


def test_progress_on_a_terminal_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with console.show_progress("train", 10) as bar:
        bar.update(10, "loss 3.210")
    assert "train" in terminal.getvalue()


def test_progress_on_a_dumb_terminal_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "dumb")
    with console.show_progress("train", 10) as bar:
        bar.update(10, "loss 3.210")
    assert terminal.getvalue() == ""


def test_color_needs_a_terminal_and_no_opt_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert not console.supports_color()
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert console.supports_color()
    monkeypatch.setenv("NO_COLOR", "")
    assert not console.supports_color()


def test_table_columns_are_aligned() -> None:
    lines = console.format_table(("model", "score"), [("a", 1), ("longer", 22.5)]).split("\n")
    assert lines == ["model   score", "─────────────", "a           1", "longer   22.5"]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.4, "0 s"), (42, "42 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")],
)
def test_format_duration_uses_at_most_two_units(seconds: float, expected: str) -> None:
    assert console.format_duration(seconds) == expected


@pytest.mark.parametrize(
    ("text", "escaped"),
    [("---", "\\---"), ("==", "\\=="), ("- a", "\\- a"), ("-a", "-a"), ("--a", "--a"), ("1. a", "1\\. a")],
)
def test_markdown_at_the_beginning_of_a_line_is_escaped(text: str, escaped: str) -> None:
    assert console.escape_markdown(text) == escaped
