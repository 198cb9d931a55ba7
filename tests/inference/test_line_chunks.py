"""A file's lines are read in large chunks, a pipe's lines as soon as they arrive."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from albert_cli.errors import InputError
from albert_cli.inference.inputs import InputReader
from albert_cli.tasks.registry import find_task
from tests.helpers.processes import start


def groups(name: str) -> Iterator[list[str]]:
    """Yield the chunks of a file or of stdin, each as a list of "NUMBER TEXT"."""
    for chunk in InputReader(find_task("sst2")).read_chunks(name):
        examples: list[Any] = [row.example for row in chunk]
        yield [f"{example.id} {example.text_a}" for example in examples]


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], None]]:
    """Make stdin a pipe, and yield a function that writes into it; without bytes it closes the pipe."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as stdin, os.fdopen(writer, "wb", buffering=0) as end:

        def write(data: bytes) -> None:
            if data:
                end.write(data)
            else:
                end.close()

        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stdin))
        yield write


def test_read_chunks_of_a_file_are_full(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(b"".join(b"%d %s\r\n" % (i, b"word " * (i % 90)) for i in range(2500)))
    chunks = list(groups(str(tmp_path / "in.txt")))
    assert [len(group) for group in chunks] == [1024, 1024, 452]
    assert [int(line.split()[1]) for group in chunks for line in group] == list(range(2500))
    (tmp_path / "in.txt").write_bytes(b"")
    assert list(groups(str(tmp_path / "in.txt"))) == []
    (tmp_path / "in.txt").write_bytes(b"a\n\n" + b"x" * 200_000 + b"\nno end")
    lengths = [len(line) for group in groups(str(tmp_path / "in.txt")) for line in group]
    assert lengths == [3, 2, 200_002, 8]  # with the number and a blank, such as "1 a"


def test_read_chunks_of_a_pipe_are_not_delayed(pipe: Callable[[bytes], None]) -> None:
    chunks = groups("-")
    pipe(b"one\ntwo\nthr")
    assert next(chunks) == ["1 one", "2 two"]
    pipe(b"ee\n")
    assert next(chunks) == ["3 three"]
    pipe(b"a\n" * 3000)
    sizes = [len(next(chunks)) for _ in range(3)]
    assert sizes == [1024, 1024, 952]
    pipe(b"last")
    pipe(b"")
    assert list(chunks) == [["3004 last"]]


def test_read_chunks_blank_lines_do_not_delay_json(pipe: Callable[[bytes], None]) -> None:
    chunks = groups("-")
    pipe(b'{"text": "one"}\n\n')
    assert next(chunks) == ["1 one"]
    pipe(b'\r\n{"text": "two"}\n \n{"te')
    assert next(chunks) == ["4 two"]
    pipe(b'xt": "three"}\n')
    assert next(chunks) == ["6 three"]
    pipe(b'{"text": "four"}')
    pipe(b"\n\n")
    assert next(chunks) == ["7 four"]
    pipe(b"")
    assert list(chunks) == []


def test_read_chunks_error_follows_earlier_lines(pipe: Callable[[bytes], None]) -> None:
    chunks = groups("-")
    pipe(b"one\n")
    assert next(chunks) == ["1 one"]
    pipe(b"\xff\n")
    with pytest.raises(InputError, match=r"-:2: invalid UTF-8 at byte 4"):
        next(chunks)


def test_read_chunks_reads_a_named_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["sh", "-c", f"printf 'one\\ntwo' > '{tmp_path}/pipe'"]) as writer:
        assert [line for group in groups(str(tmp_path / "pipe")) for line in group] == ["1 one", "2 two"]
        assert writer.wait() == 0


def connect_pipes(questions: Path, answers: Path) -> None:
    """Let this process read stdin and write stdout through named pipes, with the buffers of a new process."""
    sys.stdin = os.fdopen(os.open(questions, os.O_RDONLY), encoding="utf-8")
    sys.stdout = os.fdopen(os.open(answers, os.O_WRONLY), "w", encoding="utf-8")
    # A shell starts background jobs, perhaps this test, with SIGINT ignored, and a child inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize(("command", "is_interrupted"), [("predict", False), ("predict", True), ("encode", True)])
def test_command_answers_a_pipe_line_by_line(
    command: str, is_interrupted: bool, tuned: Callable[[str], Path], tmp_path: Path
) -> None:
    for name in ("questions", "answers"):
        os.mkfifo(tmp_path / name)
    connect = partial(connect_pipes, tmp_path / "questions", tmp_path / "answers")
    service = start(tmp_path / "log", command, tuned("cola"), "--input", "-", "--device", "cpu", run_first=connect)
    with (tmp_path / "questions").open("wb", buffering=0) as questions, (tmp_path / "answers").open("rb") as answers:
        for number, text in enumerate((b"bade figo", b"luma"), start=1):
            questions.write(text + b"\n")
            assert json.loads(answers.readline())["id"] == str(number)
        if is_interrupted:
            assert service.process.pid is not None
            os.kill(service.process.pid, signal.SIGINT)
            assert service.wait() == 130
        else:
            questions.close()
            assert answers.read() == b"" and service.wait() == 0
