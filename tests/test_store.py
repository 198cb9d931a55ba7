"""Artifacts appear whole and verified or not at all, even if a system call fails or the process is killed."""

from __future__ import annotations

import errno
import io
import json
import mmap
import os
import pathlib
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError

from albert_cli import store
from albert_cli.errors import BusyError, CheckpointError, InputError
from albert_cli.journal import Journal, read_journal
from tests.helpers.leftovers import leftover, of_living_process, of_other_machine
from tests.helpers.namespaces import has_namespaces
from tests.helpers.nfs import emulate_nfs, needs_maps
from tests.helpers.unprivileged import print_as_nobody

# The functions of `os` that change the disk.
CALLS = ("fsync", "replace", "rename", "open", "mkdir", "rmdir", "unlink", "chmod")


class _CountedStream(io.FileIO):
    """A file that calls `before_write` before each write."""

    before_write: Callable[[], None]

    def write(self, data: Any) -> int:
        self.before_write()
        return super().write(data)


class Killed(BaseException):
    """Stands for a kill; the code that handles the exception can no longer change the disk."""


class Fault:
    """A fault in the n-th call that changes the disk: an OSError, or in a crash `Killed` in it and all later calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, *, crash: bool) -> None:
        self.remaining = number
        self.crash = crash
        for name in CALLS:
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))
        original_open = pathlib.Path.open

        def open_path(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if "r" in mode:
                return original_open(path, mode, *args, **kwargs)
            self._count()
            stream = _CountedStream(path, mode.replace("b", ""))
            stream.before_write = self._count
            buffered = io.BufferedWriter(stream)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding="utf-8", newline="\n")

        monkeypatch.setattr(pathlib.Path, "open", open_path)

    def _count(self) -> None:
        self.remaining -= 1
        if self.crash and self.remaining <= 0:
            raise Killed
        if self.remaining == 0:
            raise OSError(errno.EIO, "Input/output error")

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._count()
            return function(*args, **kwargs)

        return call


def run_with_fault(action: Callable[[], None], number: int, *, crash: bool) -> bool:
    """Run the action with a fault in its n-th call; return True if it has fewer than n calls."""
    with pytest.MonkeyPatch.context() as patch:
        fault = Fault(patch, number, crash=crash)
        try:
            action()
        except Killed:
            pass
        except (OSError, CheckpointError) as error:
            assert "Input/output error" in str(error)
        return fault.remaining > 0


def sweep(
    tmp_path: Path,
    prepare: Callable[[Path], None],
    action: Callable[[Path], None],
    check: Callable[[Path], None],
    *,
    crash: bool,
) -> None:
    """Run the action with a fault in its first call, its second call, and so on; call `check` after each run."""
    for number in range(1, 200):
        folder = tmp_path / str(number)
        folder.mkdir()
        prepare(folder)
        is_undisturbed = run_with_fault(lambda folder=folder: action(folder), number, crash=crash)  # type: ignore[misc]
        check(folder)
        store.remove_leftovers(folder)
        store.remove_leftovers(folder / "artifact")
        assert not list(folder.rglob(".*"))
        if is_undisturbed:
            assert number > 2, "the action must have calls that can fail"
            return
    raise AssertionError("the action has 200 calls or more")


def write_files(directory: Path, text: str) -> None:
    for name in ("a", "b", "c"):
        store.write_text(directory / name, text + name)


def verified_text(directory: Path) -> str:
    """Verify a directory of `write_files`; return the text of its files."""
    manifest = store.verify(directory, "checkpoint")
    assert set(manifest.files) == {"a", "b", "c"}
    (text,) = {(directory / name).read_text()[:-1] for name in manifest.files}
    return text


with_error_and_crash = pytest.mark.parametrize("crash", [False, True], ids=["error", "crash"])


@with_error_and_crash
@pytest.mark.parametrize("write", ["write_text", "text_writer"])
def test_file_has_the_old_or_the_new_content(write: str, crash: bool, tmp_path: Path) -> None:
    def action(folder: Path) -> None:
        if write == "write_text":
            store.write_text(folder / "artifact", "new" * 10_000)
        else:
            with store.open_text_writer(folder / "artifact") as stream:
                stream.write("new" * 10_000)

    def check(folder: Path) -> None:
        assert (folder / "artifact").read_text() in ("old", "new" * 10_000)
        assert crash or [path.name for path in folder.iterdir()] == ["artifact"]

    sweep(tmp_path, lambda folder: store.write_text(folder / "artifact", "old"), action, check, crash=crash)


@with_error_and_crash
def test_committed_directory_is_whole_or_missing(crash: bool, tmp_path: Path) -> None:
    def action(folder: Path) -> None:
        with store.commit_directory(folder / "artifact", "checkpoint", {"data": "abc"}) as staging:
            write_files(staging, "new")

    def check(folder: Path) -> None:
        if (folder / "artifact").exists() and any((folder / "artifact").iterdir()):
            assert verified_text(folder / "artifact") == "new"
        assert crash or all(path.name == "artifact" for path in folder.iterdir())

    sweep(tmp_path, lambda _: None, action, check, crash=crash)
    (tmp_path / "into empty directory").mkdir()
    sweep(tmp_path / "into empty directory", lambda folder: (folder / "artifact").mkdir(), action, check, crash=crash)


@with_error_and_crash
def test_published_mixture_of_files_fails_to_verify(crash: bool, tmp_path: Path) -> None:
    def prepare(folder: Path) -> None:
        with store.publish(folder / "artifact", "checkpoint") as staging:
            write_files(staging, "old")

    def action(folder: Path) -> None:
        with store.publish(folder / "artifact", "checkpoint") as staging:
            write_files(staging, "new")

    def check(folder: Path) -> None:
        try:
            assert verified_text(folder / "artifact") in ("old", "new")
        except CheckpointError as error:
            assert "SHA-256" in error.message

    sweep(tmp_path, prepare, action, check, crash=crash)


@with_error_and_crash
def test_removed_directory_is_whole_or_missing(crash: bool, tmp_path: Path) -> None:
    def prepare(folder: Path) -> None:
        with store.commit_directory(folder / "artifact", "checkpoint") as staging:
            write_files(staging, "old")

    def check(folder: Path) -> None:
        if (folder / "artifact").exists():
            assert verified_text(folder / "artifact") == "old"

    sweep(tmp_path, prepare, lambda folder: store.remove_directory(folder / "artifact"), check, crash=crash)


@needs_maps
def test_mapped_directory_on_nfs_counts_as_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.commit_directory(tmp_path / "artifact", "checkpoint") as staging:
        write_files(staging, "old")
    with (tmp_path / "artifact" / "a").open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ):
        renamed = emulate_nfs(monkeypatch)
        with store.commit_directory(tmp_path / "artifact", "checkpoint", replace=True) as staging:
            write_files(staging, "new")
        assert [path.name for path in renamed] == ["a"]
        assert verified_text(tmp_path / "artifact") == "new"
        store.remove_directory(tmp_path / "artifact")
    store.remove_leftovers(tmp_path)
    assert not list(tmp_path.iterdir())


@with_error_and_crash
def test_journal_is_truncated_completely_or_not_at_all(crash: bool, tmp_path: Path) -> None:
    lines = [json.dumps({"step": n}) + "\n" for n in range(50)]

    def check(folder: Path) -> None:
        assert len(read_journal(folder / "artifact")) in (11, 50)

    def action(folder: Path) -> None:
        Journal(folder / "artifact").truncate_after(10)

    sweep(tmp_path, lambda folder: store.write_text(folder / "artifact", "".join(lines)), action, check, crash=crash)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_written_pipe_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    store.write_text(pipe, "one")
    with store.open_text_writer(pipe) as stream:
        stream.write("two")
    assert os.read(reader, 10) == b"onetwo"
    os.close(reader)
    assert [path.is_fifo() for path in tmp_path.iterdir()] == [True]


def test_exception_while_writing_leaves_no_files(tmp_path: Path) -> None:
    def interrupt(write: Callable[[], Any]) -> None:
        with pytest.raises(KeyboardInterrupt), write() as target:
            if isinstance(target, Path):
                write_files(target, "new")
            raise KeyboardInterrupt

    interrupt(lambda: store.commit_directory(tmp_path / "a", "checkpoint"))
    interrupt(lambda: store.open_text_writer(tmp_path / "b"))
    assert not list(tmp_path.iterdir())
    interrupt(lambda: store.publish(tmp_path / "c", "checkpoint"))
    assert not list((tmp_path / "c").iterdir())


# ---------------------------------------------------------------- manifests


@pytest.fixture
def committed(tmp_path: Path) -> Path:
    with store.commit_directory(tmp_path / "artifact", "checkpoint", {"data": "abc"}) as staging:
        write_files(staging, "x")
        (staging / "sub").mkdir()
        store.write_text(staging / "sub" / "d", "deep")
        store.write_text(staging / "README.md", "a card")
    return tmp_path / "artifact"


def test_manifest_lists_the_files(committed: Path) -> None:
    manifest = store.verify(committed, "checkpoint")
    assert set(manifest.files) == {"a", "b", "c", "sub/d"}
    assert manifest.parents == {"data": "abc"}
    assert manifest.created_by.startswith("albert ")
    assert manifest.files["a"] == {"size": 2, "sha256": store.sha256_file(committed / "a")}
    assert store.fingerprint(committed) == manifest.fingerprint()


def test_edited_model_card_still_verifies(committed: Path) -> None:
    before = store.fingerprint(committed)
    (committed / "README.md").write_text("a better card")
    store.verify(committed)
    assert store.fingerprint(committed) == before


def test_verify_reports_every_changed_file(committed: Path) -> None:
    def flip_bit(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)

    def replace_by_directory(path: Path) -> None:
        path.unlink()
        path.mkdir()

    changes: dict[str, Callable[[Path], object]] = {
        "damaged": flip_bit,
        "1 bytes, but 2 in the manifest": lambda path: path.write_bytes(b"x"),
        "3 bytes, but 2 in the manifest": lambda path: path.write_bytes(b"xab"),
        "missing": lambda path: path.unlink(),
        r"missing \(listed": replace_by_directory,
    }
    for message, change in changes.items():
        change(committed / "b")
        with pytest.raises(CheckpointError, match=message) as raised:
            store.verify(committed)
        assert str(committed / "b") in raised.value.message
        if (committed / "b").is_dir():
            (committed / "b").rmdir()
        (committed / "b").write_text("xb")
        store.verify(committed)


def test_verify_rejects_another_kind_or_no_manifest(committed: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is a checkpoint directory, not a data directory"):
        store.verify(committed, "data")
    with pytest.raises(CheckpointError, match="no such directory"):
        store.verify(tmp_path / "gone")
    (tmp_path / "bare").mkdir()
    with pytest.raises(CheckpointError, match=r"no manifest\.json") as raised:
        store.verify(tmp_path / "bare")
    assert raised.value.hint
    assert store.read_manifest(tmp_path / "bare") is None


def forge(directory: Path, **changes: Any) -> None:
    """Change a manifest and update its hash, as an attacker can."""
    value = json.loads((directory / store.MANIFEST).read_text()) | changes
    value.pop("sha256")
    store.write_json(directory / store.MANIFEST, {**value, "sha256": store.hash_json(value)})


@pytest.mark.parametrize("name", ["../outside", "sub/../../outside", "/etc/hostname", "..", "sub/../a"])
def test_manifest_must_not_leave_its_directory(name: str, committed: Path) -> None:
    (committed.parent / "outside").write_text("secret")
    entry = {"size": 6, "sha256": store.sha256_file(committed.parent / "outside")}
    forge(committed, files={name: entry})
    with pytest.raises(CheckpointError, match="leads out of"):
        store.verify(committed)


@pytest.mark.parametrize(
    "changes",
    [{"files": []}, {"files": {"a": 1}}, {"files": {"a": {"size": 2}}}, {"kind": None}, {"parents": "x"}],
)
def test_malformed_manifest_is_rejected(changes: dict[str, Any], committed: Path) -> None:
    forge(committed, **changes)
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        store.verify(committed)


@given(st.binary(max_size=300))
def test_manifest_of_random_bytes_is_rejected(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    directory = tmp_path_factory.getbasetemp() / "random"
    directory.mkdir(exist_ok=True)
    (directory / store.MANIFEST).write_bytes(data)
    with pytest.raises(CheckpointError):
        store.read_manifest(directory)


@pytest.mark.parametrize("changed", ["config.json", "model.safetensors", "spiece.model", "tokenizer_config.json"])
def test_foreign_model_is_identified_by_its_content(tmp_path: Path, changed: str) -> None:
    for name in ("config.json", "model.safetensors", "spiece.model", "tokenizer_config.json", "README.md"):
        (tmp_path / name).write_text("one")
    before = store.fingerprint(tmp_path)
    assert before.startswith("unverified-")
    (tmp_path / "README.md").write_text("a longer text")
    assert store.fingerprint(tmp_path) == before
    (tmp_path / changed).write_text("two")  # has the same size
    assert store.fingerprint(tmp_path) != before


def test_directory_without_a_model_has_no_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(CheckpointError, match="nor a model"):
        store.fingerprint(tmp_path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1.5E+400", "9" * 400, "1" * 250 + "e99"])
def test_record_with_a_nonfinite_number_is_rejected(number: str, tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.write_text(f'{{"nested": [{{"loss": {number}}}]}}')
    with pytest.raises(CheckpointError, match=rf"facts\.json: contains {re.escape(number[:20])}"):
        store.read_json(path)


def test_record_with_large_finite_numbers_is_read(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.write_text('{"name": "NaN is -Infinity: 1e999", "loss": 1e308, "count": [1e+100, 12345678901234567890]}')
    assert store.read_json(path) == {
        "name": "NaN is -Infinity: 1e999", "loss": 1e308, "count": [1e100, 12345678901234567890],
    }  # fmt: skip


# ---------------------------------------------------------------- directories


def test_commit_does_not_overwrite_existing_files(committed: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for target in (committed, tmp_path / "file"):
        with pytest.raises(BusyError, match="already exists"), store.commit_directory(target, "checkpoint"):
            raise AssertionError
    assert (tmp_path / "file").read_text() == "mine"
    store.verify(committed)


def test_commit_keeps_temporary_files_of_similar_names(tmp_path: Path) -> None:
    """The names "data", "data[12]" and "*", used as prefix or pattern, would also match "data2"."""
    with store.commit_directory(tmp_path / "data2", "data") as staging:
        for name in ("data", "data[12]", "*"):
            with store.commit_directory(tmp_path / name, "data"):
                assert staging.is_dir()
    assert {path.name for path in tmp_path.iterdir()} == {"data", "data2", "data[12]", "*"}


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    staging = leftover(tmp_path / "artifact")
    unrelated = leftover(tmp_path / "unrelated")
    staging.mkdir()
    (staging / "weights").write_text("x")
    unrelated.write_text("x")
    (tmp_path / ".hidden").write_text("mine")
    with store.commit_directory(tmp_path / "artifact", "checkpoint"):
        assert not staging.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"artifact", unrelated.name, ".hidden"}
    store.remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"artifact", ".hidden"}
    (tmp_path / "new").mkdir()
    leftover(tmp_path / "new" / "request.json").write_text("x")  # a crash while writing the first file
    assert store.read_finished_manifest(tmp_path / "new", "vocabulary", "request.json") is None
    store.write_text(tmp_path / "new" / "request.json", "y")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["request.json"]


@pytest.mark.parametrize("name", [of_living_process, of_other_machine])
def test_leftovers_of_running_processes_are_kept(name: Callable[[Path], Path], tmp_path: Path) -> None:
    """If locks do not reach other machines, a second run must not delete what the first one is writing."""
    staging = name(tmp_path / "artifact")
    staging.mkdir()
    store.remove_leftovers(tmp_path)
    assert staging.exists()


def test_second_commit_of_a_directory_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(BusyError, match="already exists"), store.commit_directory(tmp_path / "artifact", "checkpoint"):
        write_files(tmp_path / "artifact", "first")
        store.seal(tmp_path / "artifact", "checkpoint")
    assert verified_text(tmp_path / "artifact") == "first"


def test_artifacts_are_readable_by_other_users(tmp_path: Path) -> None:
    with store.commit_directory(tmp_path / "artifact", "checkpoint") as staging:
        (staging / "private").write_text("x")
        (staging / "private").chmod(0o600)
    assert (tmp_path / "artifact" / "private").stat().st_mode & 0o777 == 0o644


def test_lock_allows_one_run_per_directory(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from albert_cli import store\n"
        "with store.lock(Path(sys.argv[1])):\n    print('locked', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "out")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as holder:  # fmt: skip
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(BusyError, match="another run"), store.lock(tmp_path / "out"):
            raise AssertionError
        holder.kill()
    leftover(tmp_path / "out" / "results.json").write_text("half a resu")
    with store.lock(tmp_path / "out"):
        assert [path.name for path in (tmp_path / "out").iterdir()] == [".lock"]
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(BusyError), store.lock(target):
            raise AssertionError


# ---------------------------------------------------------------- a full disk


_FULL_DISK = """
import json, sys
from pathlib import Path
import numpy as np
from safetensors.numpy import save_file
from albert_cli import store
from albert_cli.journal import Journal
from albert_cli.errors import CheckpointError
disk = Path(sys.argv[1])
big = np.zeros(100_000, np.float32)
with store.commit_directory(disk / "small", "checkpoint") as staging:
    store.write_text(staging / "a", "x")

def commit():
    with store.commit_directory(disk / "it", "checkpoint") as staging:
        save_file({"x": big}, staging / "it.safetensors")

def append():
    journal = Journal(disk / "journal")
    for step in range(10_000):
        journal.append({"step": step, "text": "x" * 100})

for action in (lambda: store.write_bytes(disk / "it", b"x" * 300_000), commit, append):
    try:
        action()
        print("no error")
    except CheckpointError as error:
        print(error.message)
    store.verify(disk / "small")
    print(sorted(path.name for path in disk.iterdir() if path.name.startswith((".", "it"))))
"""


@pytest.mark.parametrize(
    "message",
    [
        "Error while serializing: I/O error: No space left on device (os error 28)",
        'Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "No space left on device" })',
    ],
)
def test_full_disk_is_recognized_in_safetensors_errors(message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the disk is full"), store.translate_os_errors(tmp_path / "x"):
        raise SafetensorError(message)


@pytest.mark.skipif(not has_namespaces(), reason="no user namespaces (unshare -rm) to mount a small disk in")
def test_full_disk_is_reported_and_leaves_no_files(tmp_path: Path) -> None:
    mount = f'mount -t tmpfs -o size=200k tmpfs {tmp_path} && exec {sys.executable} -c "$0" {tmp_path}'
    command = ["unshare", "-rm", "sh", "-c", mount, _FULL_DISK]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    for message, leftovers in zip(lines[::2], lines[1::2], strict=True):
        assert "the disk is full" in message
        assert leftovers == "[]"
    assert len(lines) == 6


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP])
def test_file_system_without_locks_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(BusyError, match="no locks"), store.lock(tmp_path / "new" / "out"):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EXDEV, errno.EPERM])
def test_file_system_that_cannot_rename_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    rename = os.rename

    def files_only(source: Path, target: Path, **descriptors: int) -> None:
        if Path(source).is_dir():
            raise OSError(number, os.strerror(number))
        rename(source, target, **descriptors)

    monkeypatch.setattr("os.rename", files_only)
    with pytest.raises(BusyError, match="out: its file system cannot rename directories"), store.lock(tmp_path / "out"):
        raise AssertionError
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP])
def test_file_system_that_cannot_sync_a_directory_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fsync = os.fsync

    def files_only(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", files_only)
    with store.commit_directory(tmp_path / "artifact", "checkpoint") as staging:
        write_files(staging, "x")
    assert verified_text(tmp_path / "artifact") == "x"


@pytest.mark.parametrize("is_share", [False, True], ids=["disk", "share"])
def test_commit_makes_files_readable_where_it_may(
    is_share: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, mode: int, **_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    with store.commit_directory(tmp_path / "artifact", "checkpoint") as staging:
        write_files(staging, "x")
        (staging / "b").chmod(0o600)
        if is_share:  # with one owner and one mode for all files
            monkeypatch.setattr(os, "chmod", refuse)
    assert verified_text(tmp_path / "artifact") == "x"
    assert stat.S_IMODE((tmp_path / "artifact" / "b").stat().st_mode) == (0o600 if is_share else 0o644)


def test_walk_folders_prefers_real_folders_to_links(tmp_path: Path) -> None:
    for name in ("out/b/run", "scratch/z"):
        (tmp_path / name).mkdir(parents=True)
    links = {"out/a": "b", "out/b/up": "../..", "out/c": "../scratch", "scratch/y": "z"}
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    folders = [folder.relative_to(tmp_path).as_posix() for folder in store.walk_folders(tmp_path / "out")]
    assert folders == ["out", "out/b", "out/b/run", "out/b/up", "out/c", "out/c/z"]


def test_walk_folders_reports_an_unreadable_folder(tmp_path: Path) -> None:
    (tmp_path / "out" / "far").mkdir(mode=0, parents=True)
    imports = """
import sys
from pathlib import Path
from albert_cli import store
from albert_cli.errors import InputError
"""
    code = """
try:
    store.walk_folders(Path(sys.argv[1]))
except InputError as error:
    print(error.message)
"""
    assert "far: Permission denied" in print_as_nobody(imports, code, tmp_path / "out")


def test_output_of_another_user_is_not_writable(tmp_path: Path) -> None:
    with store.lock(tmp_path / "out"):
        (tmp_path / "out" / "run").touch()
    imports = """
import contextlib
import sys
from pathlib import Path
from albert_cli import store
from albert_cli.errors import BusyError
import filelock
"""
    code = """
out = Path(sys.argv[1])
for writer in (
    lambda: store.lock(out), lambda: store.lock(out / "new"), lambda: store.open_text_writer(out / "file"),
    lambda: store.open_text_writer(out / "new" / "file"), lambda: store.commit_directory(out / "made", "data"),
):
    try:
        with writer():
            print("written")
    except BusyError as error:
        print(error.message.replace(str(out), "OUT"), error.hint)
"""
    names = ["OUT", "OUT/new", "OUT/file", "OUT/new/file", "OUT/made"]
    expected = [f"{name}: not writable (Permission denied) choose another --out" for name in names]
    assert print_as_nobody(imports, code, tmp_path / "out").splitlines() == expected


def test_writer_reports_an_unreadable_input(tmp_path: Path) -> None:
    error = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "input"))
    with pytest.raises(InputError, match="input: Permission denied"), store.open_text_writer(tmp_path / "out"):
        raise error


def test_saved_steps_include_a_broken_link(committed: Path, tmp_path: Path) -> None:
    run = tmp_path / "links"
    run.mkdir()
    (run / "step-00000001").symlink_to(committed)
    (run / "step-00000002").symlink_to("/nowhere/step-00000002")
    (run / "step-00000003").mkdir()
    assert [step.name for step in store.saved_steps(run)] == ["step-00000001", "step-00000002"]
