from __future__ import annotations

import os
import re
import shutil
import threading
from pathlib import Path

import pytest

from albert_cli import console
from albert_cli.data import verification
from albert_cli.data.records import read_data_facts
from albert_cli.data.verification import verify_data
from albert_cli.errors import CheckpointError
from albert_cli.store import files, manifests
from tests.helpers.data_directories import TENTH_HELD_OUT, WriteFiles, build
from tests.helpers.processes import PATIENCE


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.mark.parametrize("everything", [False, True])
def test_verify_data_of_a_text_file_asks_for_a_directory(tmp_path: Path, everything: bool) -> None:
    text = tmp_path / "ko.txt"
    text.touch()
    with pytest.raises(CheckpointError, match="is a file, not a directory") as raised:
        verify_data(text, everything)
    assert "albert data" in str(raised.value.hint)


def test_verify_data_of_other_files_is_not_called_incomplete(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").touch()
    with pytest.raises(CheckpointError, match="not a data directory"):
        verify_data(tmp_path)
    (tmp_path / "shards").mkdir()
    with pytest.raises(CheckpointError, match="not a complete data directory"):
        verify_data(tmp_path)


def test_verify_data_detects_swapped_shards(small_vocabulary: Path, write_files: WriteFiles, out: Path) -> None:
    build(write_files(2), small_vocabulary, out, TENTH_HELD_OUT, workers=1)
    first, second, *_ = sorted((out / "shards").iterdir())
    first.rename(out / "kept")
    second.rename(first)
    (out / "kept").rename(second)
    with pytest.raises(CheckpointError, match=re.escape(first.name)):
        verify_data(out)


def test_verify_data_hashes_again_only_after_a_change(
    small_vocabulary: Path, write_files: WriteFiles, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(write_files(2), small_vocabulary, out, TENTH_HELD_OUT, workers=1)
    hashed: list[Path] = []
    sha256_file = manifests.sha256_file

    def counted(path: Path) -> str:
        hashed.append(path)
        return sha256_file(path)

    def fail(path: Path, data: bytes) -> None:
        raise CheckpointError(f"{path}: the disk is full")

    monkeypatch.setattr(manifests, "sha256_file", counted)
    verify_data(out)
    assert not hashed, "the build has hashed what it wrote"
    verify_data(out, everything=True)
    assert len(hashed) > 20
    ids = next(out.glob("shards/*/*.ids"))
    before = ids.stat()
    content = ids.read_bytes()
    ids.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(ids, ns=(before.st_atime_ns, before.st_mtime_ns - 10**12))  # by a clock that was set back
    with pytest.raises(CheckpointError, match=re.escape(ids.name)):
        verify_data(out)
    with pytest.raises(CheckpointError, match=re.escape(ids.name)):
        verify_data(out)
    ids.write_bytes(content)
    verify_data(out)
    hashed.clear()
    verify_data(out)
    assert not hashed
    copy = shutil.copytree(out, out.with_name("copy"))  # with the note of what was verified
    verify_data(copy)
    assert hashed
    os.utime(ids, ns=(before.st_atime_ns, before.st_mtime_ns))
    (ids.parent / "more").touch()
    hashed.clear()
    with monkeypatch.context() as full:
        full.setattr(files, "write_bytes", fail)
        verify_data(out)  # where nothing can be noted, data are read all the same
        assert hashed
        hashed.clear()
        verify_data(out)
        assert not hashed, "and hashed once per process"


def test_verify_data_hashes_in_parallel_and_names_the_first(
    small_vocabulary: Path,
    write_files: WriteFiles,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    build(write_files(2), small_vocabulary, out, TENTH_HELD_OUT, workers=1)
    shards = [out / "shards" / name for name in read_data_facts(out).fingerprints]
    contents = {path: path.read_bytes() for shard in shards for path in shard.glob("*.ids")}
    for path, content in contents.items():
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    has_begun_last = threading.Event()
    sha256_file = manifests.sha256_file

    def hash_last_shard_first(path: Path) -> str:
        if path.parent == shards[-1]:
            has_begun_last.set()
        elif path.parent == shards[0]:
            assert has_begun_last.wait(PATIENCE)
        return sha256_file(path)

    monkeypatch.setattr(manifests, "sha256_file", hash_last_shard_first)
    monkeypatch.setattr(verification, "available_cores", lambda: len(shards))
    with pytest.raises(CheckpointError, match=rf"{re.escape(str(shards[0]))}/\S+\.ids: damaged"):
        verify_data(out)
    for path, content in contents.items():
        path.write_bytes(content)
    monkeypatch.setattr(console, "_SECONDS_BETWEEN_LINES", -1.0)
    verify_data(out)
    assert "verifying data 100 %" in capsys.readouterr().err
