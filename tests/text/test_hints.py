"""Hints for bad text: a command gets no option that it lacks, unless the hint names the commands that have it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.command import albert, list_options

VALID_RECORDS = b'{"text": "A line of text."}\n' * 500  # `reproduce` reads the first texts before its first stage
VALID_LINES = b"A line of text.\n\n" * 500


def list_foreign_options(hint: str, command: str) -> list[str]:
    """Return the options in a hint that neither the command has, nor each of the commands that the hint names."""
    foreign = []
    for clause in hint.split("; "):
        match = re.match(r"for ([\w-]+(?:(?:, | and )[\w-]+)*),", clause)
        commands = re.split(", | and ", match[1]) if match else [command]
        for option in re.findall(r"--[a-z][a-z-]+", clause):
            foreign += [f"{name}: {option}" for name in commands if option not in list_options(name)]
    return foreign


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", VALID_RECORDS + b'{"body": "A line of text."}\n'),
        ("a.jsonl", VALID_RECORDS + b'{"text": {"body": "A line of text."}}\n'),
        ("a.jsonl", VALID_RECORDS + b'{"text": 3}\n'),
        ("a.jsonl", VALID_RECORDS + b'{"text": "A line of text.\\u0000"}\n'),
        ("a.txt", VALID_LINES + b"A word: caf\xe9.\n"),
        ("a.txt", VALID_LINES + b"A line of text.\0\n"),
        ("wiki_00", b'<doc id="1">\nA line of text.\n</doc>\n' * 500 + b"A line of text.\n"),
        ("a.txt", b"A text with few words.\n"),
        ("a.txt", "".join(map(chr, range(0x4E00, 0x9E00))).encode()),
    ],
)
def test_hint_for_bad_text_fits_the_command(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    arguments = ["--scale", "smoke", "--text", tmp_path / name, "--out", tmp_path / "out"]
    printed = albert("reproduce", "sharing", *arguments, "--device", "cpu", expect=3).err
    (hint,) = re.findall(r"^hint: (.*)", printed, re.MULTILINE)
    assert list_foreign_options(hint, "reproduce") == []
