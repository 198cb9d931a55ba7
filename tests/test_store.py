"""Every artifact appears whole, verified, or not at all, whatever fails and whenever."""

from __future__ import annotations

import errno
import io
import json
import os
import pathlib
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
from albert_cli.errors import BusyError, CheckpointError
from albert_cli.journal import Journal, read_journal
from tests.helpers.leftovers import leftover, of_living_process, of_other_machine
from tests.helpers.namespaces import has_namespaces

CALLS = ("fsync", "replace", "rename", "open", "mkdir", "rmdir", "unlink", "chmod")


class _FailingStream(io.FileIO):
    """A file whose writes are calls that may fail."""

    fail: Callable[[], None]

    def write(self, data: Any) -> int:
        self.fail()
        return super().write(data)


class Killed(BaseException):
    """The process is no more: whatever would still tidy up changes nothing on the disk."""


class Faults:
    """Lets the n-th call that changes the disk fail: by an OSError, or with all that follow, as if it were killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, *, crash: bool) -> None:
        self.left, self.crash = number, crash
        for name in CALLS:
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))
        plain_open = pathlib.Path.open

        def open_path(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if "r" in mode:
                return plain_open(path, mode, *args, **kwargs)
            self._count()
            stream = _FailingStream(path, mode.replace("b", ""))
            stream.fail = self._count
            buffered = io.BufferedWriter(stream)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding="utf-8", newline="\n")

        monkeypatch.setattr(pathlib.Path, "open", open_path)

    def _count(self) -> None:
        self.left -= 1
        if self.crash and self.left <= 0:
            raise Killed
        if self.left == 0:
            raise OSError(errno.EIO, "Input/output error")

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._count()
            return function(*args, **kwargs)

        return call


def survives(action: Callable[[], None], number: int, *, crash: bool) -> bool:
    """Run the action while its n-th call fails; whether there was no n-th call any more."""
    with pytest.MonkeyPatch.context() as patch:
        faults = Faults(patch, number, crash=crash)
        try:
            action()
        except Killed:
            pass
        except (OSError, CheckpointError) as error:
            assert "Input/output error" in str(error)
        return faults.left > 0


def sweep(
    tmp_path: Path,
    prepare: Callable[[Path], None],
    action: Callable[[Path], None],
    check: Callable[[Path], None],
    *,
    crash: bool,
) -> None:
    """Fail at the first call, the second, … until the action succeeds; `check` the state after each."""
    for number in range(1, 200):
        folder = tmp_path / str(number)
        folder.mkdir()
        prepare(folder)
        done = survives(lambda folder=folder: action(folder), number, crash=crash)  # type: ignore[misc]
        check(folder)
        store.remove_leftovers(folder)
        store.remove_leftovers(folder / "it")
        assert not list(folder.rglob(".*"))
        if done:
            assert number > 2
            return
    raise AssertionError("it never succeeded")


def fill(directory: Path, text: str) -> None:
    for name in ("a", "b", "c"):
        store.write_text(directory / name, text + name)


def content(directory: Path) -> str:
    """The common content of the files of a directory that verifies."""
    manifest = store.verify(directory, "checkpoint")
    assert set(manifest.files) == {"a", "b", "c"}
    (text,) = {(directory / name).read_text()[:-1] for name in manifest.files}
    return text


crashing = pytest.mark.parametrize("crash", [False, True], ids=["error", "crash"])


@crashing
@pytest.mark.parametrize("write", ["write_text", "text_writer"])
def test_a_file_is_the_old_one_or_the_new_one(write: str, crash: bool, tmp_path: Path) -> None:
    def action(folder: Path) -> None:
        if write == "write_text":
            store.write_text(folder / "it", "new" * 10_000)
        else:
            with store.open_text_writer(folder / "it") as stream:
                stream.write("new" * 10_000)

    def check(folder: Path) -> None:
        assert (folder / "it").read_text() in ("old", "new" * 10_000)
        assert crash or [p.name for p in folder.iterdir()] == ["it"]

    sweep(tmp_path, lambda folder: store.write_text(folder / "it", "old"), action, check, crash=crash)


@crashing
def test_a_directory_is_there_whole_or_not_at_all(crash: bool, tmp_path: Path) -> None:
    def action(folder: Path) -> None:
        with store.commit_directory(folder / "it", "checkpoint", {"data": "abc"}) as staging:
            fill(staging, "new")

    def check(folder: Path) -> None:
        if (folder / "it").exists() and any((folder / "it").iterdir()):
            assert content(folder / "it") == "new"
        assert crash or all(p.name == "it" for p in folder.iterdir())

    sweep(tmp_path, lambda _: None, action, check, crash=crash)
    (tmp_path / "onto an empty one").mkdir()
    sweep(tmp_path / "onto an empty one", lambda folder: (folder / "it").mkdir(), action, check, crash=crash)


@crashing
def test_what_is_published_is_never_a_mixture_that_verifies(crash: bool, tmp_path: Path) -> None:
    def prepare(folder: Path) -> None:
        with store.publish(folder / "it", "checkpoint") as staging:
            fill(staging, "old")

    def action(folder: Path) -> None:
        with store.publish(folder / "it", "checkpoint") as staging:
            fill(staging, "new")

    def check(folder: Path) -> None:
        try:
            assert content(folder / "it") in ("old", "new")
        except CheckpointError as error:
            assert "SHA-256" in error.message

    sweep(tmp_path, prepare, action, check, crash=crash)


@crashing
def test_a_directory_that_is_being_deleted_is_whole_or_gone(crash: bool, tmp_path: Path) -> None:
    def prepare(folder: Path) -> None:
        with store.commit_directory(folder / "it", "checkpoint") as staging:
            fill(staging, "old")

    def check(folder: Path) -> None:
        if (folder / "it").exists():
            assert content(folder / "it") == "old"

    sweep(tmp_path, prepare, lambda folder: store.remove_directory(folder / "it"), check, crash=crash)


@crashing
def test_a_journal_is_cut_back_whole_or_not_at_all(crash: bool, tmp_path: Path) -> None:
    lines = [json.dumps({"step": n}) + "\n" for n in range(50)]

    def check(folder: Path) -> None:
        assert len(read_journal(folder / "it")) in (11, 50)

    def action(folder: Path) -> None:
        Journal(folder / "it").truncate_after(10)

    sweep(tmp_path, lambda folder: store.write_text(folder / "it", "".join(lines)), action, check, crash=crash)


def test_an_error_inside_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(write: Callable[[], Any]) -> None:
        with pytest.raises(KeyboardInterrupt), write() as target:
            if isinstance(target, Path):
                fill(target, "new")
            raise KeyboardInterrupt

    interrupted(lambda: store.commit_directory(tmp_path / "a", "checkpoint"))
    interrupted(lambda: store.open_text_writer(tmp_path / "b"))
    assert not list(tmp_path.iterdir())
    interrupted(lambda: store.publish(tmp_path / "c", "checkpoint"))
    assert not list((tmp_path / "c").iterdir())


# ---------------------------------------------------------------- manifests


@pytest.fixture
def committed(tmp_path: Path) -> Path:
    with store.commit_directory(tmp_path / "it", "checkpoint", {"data": "abc"}) as staging:
        fill(staging, "x")
        (staging / "sub").mkdir()
        store.write_text(staging / "sub" / "d", "deep")
        store.write_text(staging / "README.md", "a card")
    return tmp_path / "it"


def test_a_manifest_says_what_is_there(committed: Path) -> None:
    manifest = store.verify(committed, "checkpoint")
    assert set(manifest.files) == {"a", "b", "c", "sub/d"}
    assert manifest.parents == {"data": "abc"} and manifest.created_by.startswith("albert ")
    assert manifest.files["a"] == {"size": 2, "sha256": store.sha256_file(committed / "a")}
    assert store.fingerprint(committed) == manifest.fingerprint()


def test_a_model_card_may_be_edited(committed: Path) -> None:
    before = store.fingerprint(committed)
    (committed / "README.md").write_text("a better card")
    store.verify(committed)
    assert store.fingerprint(committed) == before


def test_every_change_is_found_and_the_file_named(committed: Path) -> None:
    def flip(path: Path) -> None:
        whole = bytearray(path.read_bytes())
        whole[-1] ^= 1
        path.write_bytes(whole)

    def replace_by_directory(path: Path) -> None:
        path.unlink()
        path.mkdir()

    changes: dict[str, Callable[[Path], object]] = {
        "damaged": flip,
        "1 bytes, but 2 in the manifest": lambda path: path.write_bytes(b"x"),
        "3 bytes, but 2 in the manifest": lambda path: path.write_bytes(b"xab"),
        "missing": lambda path: path.unlink(),
        r"missing \(listed": replace_by_directory,
    }
    for printed, change in changes.items():
        change(committed / "b")
        with pytest.raises(CheckpointError, match=printed) as raised:
            store.verify(committed)
        assert str(committed / "b") in raised.value.message
        if (committed / "b").is_dir():
            (committed / "b").rmdir()
        (committed / "b").write_text("xb")
        store.verify(committed)


def test_another_kind_is_refused(committed: Path, tmp_path: Path) -> None:
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
    """A manifest by somebody who knows how its hash is made."""
    value = json.loads((directory / store.MANIFEST).read_text()) | changes
    value.pop("sha256")
    store.write_json(directory / store.MANIFEST, {**value, "sha256": store.hash_json(value)})


@pytest.mark.parametrize("name", ["../outside", "sub/../../outside", "/etc/hostname", "..", "sub/../a"])
def test_a_manifest_does_not_lead_outside(name: str, committed: Path) -> None:
    (committed.parent / "outside").write_text("secret")
    entry = {"size": 6, "sha256": store.sha256_file(committed.parent / "outside")}
    forge(committed, files={name: entry})
    with pytest.raises(CheckpointError, match="leads out of"):
        store.verify(committed)


@pytest.mark.parametrize(
    "changes",
    [{"files": []}, {"files": {"a": 1}}, {"files": {"a": {"size": 2}}}, {"kind": None}, {"parents": "x"}],
)
def test_a_manifest_of_another_form_is_refused(changes: dict[str, Any], committed: Path) -> None:
    forge(committed, **changes)
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        store.verify(committed)


@given(st.binary(max_size=300))
def test_a_manifest_of_any_bytes_is_an_error_of_ours(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    directory = tmp_path_factory.getbasetemp() / "any"
    directory.mkdir(exist_ok=True)
    (directory / store.MANIFEST).write_bytes(data)
    with pytest.raises(CheckpointError):
        store.read_manifest(directory)


@pytest.mark.parametrize("changed", ["config.json", "model.safetensors", "spiece.model", "tokenizer_config.json"])
def test_a_model_from_elsewhere_is_identified_by_its_content(tmp_path: Path, changed: str) -> None:
    for name in ("config.json", "model.safetensors", "spiece.model", "tokenizer_config.json", "README.md"):
        (tmp_path / name).write_text("one")
    before = store.fingerprint(tmp_path)
    assert before.startswith("unverified-")
    (tmp_path / "README.md").write_text("a longer text")
    assert store.fingerprint(tmp_path) == before
    (tmp_path / changed).write_text("two")  # of the same size
    assert store.fingerprint(tmp_path) != before


def test_what_is_no_model_has_no_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(CheckpointError, match="nor a model"):
        store.fingerprint(tmp_path)


# ---------------------------------------------------------------- directories


def test_what_is_there_is_not_overwritten(committed: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for target in (committed, tmp_path / "file"):
        with pytest.raises(BusyError, match="already exists"), store.commit_directory(target, "checkpoint"):
            raise AssertionError
    assert (tmp_path / "file").read_text() == "mine"
    store.verify(committed)


def test_leftovers_of_others_stay(tmp_path: Path) -> None:
    """Two names of which one begins like the other, or looks like a pattern, do not disturb each other."""
    with store.commit_directory(tmp_path / "data2", "data") as other:
        for name in ("data", "data[12]", "*"):
            with store.commit_directory(tmp_path / name, "data"):
                assert other.is_dir()
    assert {p.name for p in tmp_path.iterdir()} == {"data", "data2", "data[12]", "*"}


def test_leftovers_of_a_killed_process_go(tmp_path: Path) -> None:
    staging = leftover(tmp_path / "it")
    other = leftover(tmp_path / "other")
    staging.mkdir()
    (staging / "weights").write_text("x")
    other.write_text("x")
    (tmp_path / ".hidden").write_text("mine")
    with store.commit_directory(tmp_path / "it", "checkpoint"):
        assert not staging.exists()
    assert {p.name for p in tmp_path.iterdir()} == {"it", other.name, ".hidden"}
    store.remove_leftovers(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"it", ".hidden"}
    (tmp_path / "new").mkdir()
    leftover(tmp_path / "new" / "request.json").write_text("x")  # of the first file of all
    assert store.read_finished_manifest(tmp_path / "new", "vocabulary", "request.json") is None


@pytest.mark.parametrize("name", [of_living_process, of_other_machine])
def test_leftovers_of_running_processes_stay(name: Callable[[Path], Path], tmp_path: Path) -> None:
    """If locks do not reach other machines, a second run must not delete what the first one is writing."""
    staging = name(tmp_path / "it")
    staging.mkdir()
    store.remove_leftovers(tmp_path)
    assert staging.exists()


def test_commit_after_another_process_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(BusyError, match="already exists"), store.commit_directory(tmp_path / "it", "checkpoint"):
        fill(tmp_path / "it", "first")
        store.seal(tmp_path / "it", "checkpoint")
    assert content(tmp_path / "it") == "first"


def test_artifacts_can_be_read_by_others(tmp_path: Path) -> None:
    with store.commit_directory(tmp_path / "it", "checkpoint") as staging:
        (staging / "private").write_text("x")
        (staging / "private").chmod(0o600)
    assert (tmp_path / "it" / "private").stat().st_mode & 0o777 == 0o644


def test_one_run_a_directory(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from albert_cli import store\n"
        "with store.lock(Path(sys.argv[1])):\n    print('held', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "out")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as holder:  # fmt: skip
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(BusyError, match="another run"), store.lock(tmp_path / "out"):
            raise AssertionError
        holder.kill()
    leftover(tmp_path / "out" / "results.json").write_text("half a resu")
    with store.lock(tmp_path / "out"):
        assert [p.name for p in (tmp_path / "out").iterdir()] == [".lock"]
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(BusyError), store.lock(target):
            raise AssertionError


# ---------------------------------------------------------------- a full disk


_FULL_DISK = """
import json, sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from albert_cli import store
from albert_cli.journal import Journal
from albert_cli.errors import CheckpointError
place, big = Path(sys.argv[1]), torch.zeros(100_000)
with store.commit_directory(place / "small", "checkpoint") as staging:
    store.write_text(staging / "a", "x")

def commit():
    with store.commit_directory(place / "it", "checkpoint") as staging:
        save_file({"x": big}, staging / "it.safetensors")

def append():
    lines = Journal(place / "journal")
    for step in range(10_000):
        lines.append({"step": step, "text": "x" * 100})

for action in (lambda: store.write_bytes(place / "it", b"x" * 300_000), commit, append):
    try:
        action()
        print("went through")
    except CheckpointError as error:
        print(error.message)
    store.verify(place / "small")
    print(sorted(p.name for p in place.iterdir() if p.name.startswith((".", "it"))))
"""


@pytest.mark.parametrize(
    "printed",
    [
        "Error while serializing: I/O error: No space left on device (os error 28)",
        'Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "No space left on device" })',
    ],
)
def test_safetensors_of_any_release_tells_that_the_disk_is_full(printed: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the disk is full"), store.translate_os_errors(tmp_path / "x"):
        raise SafetensorError(printed)


@pytest.mark.skipif(not has_namespaces(), reason="no user namespaces (unshare -rm) to mount a small disk in")
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    mount = f'mount -t tmpfs -o size=200k tmpfs {tmp_path} && exec {sys.executable} -c "$0" {tmp_path}'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount, _FULL_DISK], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for message, left in zip(lines[::2], lines[1::2], strict=True):
        assert "the disk is full" in message
        assert left == "[]"
    assert len(lines) == 6


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(BusyError, match="no locks"), store.lock(tmp_path / "out"):
        pass


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV, errno.EPERM])
def test_a_file_system_that_renames_no_folder_is_named_at_once(
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
