"""The one module that writes bytes: every artefact appears whole, verified, or not at all.

A directory is built as a hidden sibling, its files are flushed to the disk, a manifest with the size and SHA-256 of
each is written last, and one rename makes it visible. Without a valid manifest it does not exist for readers.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import shutil
import tomllib
import uuid
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from typing_extensions import TypedDict  # pydantic takes the standard library's from Python 3.12 on

from albert_cli import __version__
from albert_cli.errors import DISK_FULL, BusyError, CheckpointError, errno_of, from_os_error

T = TypeVar("T")
MANIFEST = "manifest.json"
_NOT_HASHED = (MANIFEST, "README.md")  # a model card may be edited without breaking anything
_MODEL_FILES = ("config.json", "model.safetensors", "spiece.model", "tokenizer_config.json")
_RENAME_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV, errno.EPERM, errno.EINVAL)


# ---------------------------------------------------------------- single files


@contextmanager
def translate_os_errors(path: Path, needed: int | None = None) -> Iterator[None]:
    """Turn what the system refuses into one line; of a full disk how much is free, and `needed` where that is known."""
    try:
        yield
    except Exception as error:
        ours = from_os_error(error, path)
        if ours is None:
            raise
        if errno_of(error) not in DISK_FULL:
            raise ours from error
        wanted = "" if needed is None else f"{needed / 1e6:.1f} MB needed, "
        hint = "free some space and run the same command again; what was complete before is intact"
        what = f"{path}: the disk is full ({wanted}{free_bytes(path) / 1e6:.1f} MB free)"
        raise CheckpointError(what, hint) from error


def free_bytes(path: Path) -> int:
    """What is free on the disk that holds, or would hold, the path."""
    return shutil.disk_usage(next(p for p in (path, *path.absolute().parents) if p.exists())).free


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some file systems cannot sync a directory
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def _temporary_sibling(path: Path) -> Path:
    """A hidden sibling's name; the random part keeps two processes apart."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


@contextmanager
def _atomic_replacement(path: Path) -> Iterator[Path]:
    """A hidden sibling to write, which becomes the file on a clean exit: readers see the old content or the new."""
    temporary = _temporary_sibling(path)
    with translate_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            _fsync(temporary)
            temporary.replace(path)
            _fsync(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically: readers see the old content or the new, never a part."""
    with _atomic_replacement(path) as temporary:
        temporary.write_bytes(data)


@contextmanager
def open_text_writer(path: Path) -> Iterator[IO[str]]:
    """A UTF-8 text stream whose content becomes the file on a clean exit, and nothing otherwise."""
    with _atomic_replacement(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as stream:
        yield stream


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: object) -> None:
    """Write a JSON file atomically, indented, with the keys in the order given."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_bytes(path: Path) -> bytes:
    """A file of an artefact; `CheckpointError` where it cannot be read or is not what a manifest beside it says."""
    try:
        data = path.read_bytes()
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise CheckpointError(f"{path}: no such file") from None
        raise from_os_error(error, path) or error from error
    if any(hashlib.sha256(data).hexdigest() != entry["sha256"] for entry in _manifest_entries(path)):
        raise _damaged_error(path)
    return data


def is_listed(path: Path) -> bool:
    """Whether the file exists or a manifest names it: then reading a missing one is an error."""
    return os.path.lexists(path) or bool(_manifest_entries(path))


def _manifest_entries(path: Path) -> list[ManifestEntry]:
    """A file's entries: in the manifest beside it, and for a vocabulary's in that of the data directory above."""
    if path.name == MANIFEST or path.name.startswith("."):  # hidden files are in no manifest
        return []
    entries = [manifest.files.get(path.name)] if (manifest := read_manifest(path.parent)) else []
    with suppress(CheckpointError):  # any other above is somebody else's
        if path.parent.name == "vocabulary" and (above := read_manifest(path.parent.parent)):
            entries.append(above.files.get(f"vocabulary/{path.name}"))
    return [entry for entry in entries if entry]


def read_record(path: Path, kind: type[T]) -> T:
    """A JSON file as a record of this type; raises `CheckpointError` that names what is missing or of another type."""
    from pydantic import ValidationError

    try:
        return cast(T, type_adapter(cast(Hashable, kind)).validate_json(read_bytes(path), strict=True))
    except ValidationError as error:
        raise _invalid_record_error(path, error) from None


def read_json(path: Path) -> dict[str, Any]:
    """Any JSON object; a damaged file is a `CheckpointError` that names it."""
    return read_record(path, dict[str, Any])


def read_toml(path: Path) -> dict[str, Any]:
    """The recipe that was saved in an artefact; a damaged file is a `CheckpointError` that names it."""
    try:
        return tomllib.loads(read_bytes(path).decode())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid TOML ({error})") from None


@cache
def type_adapter(kind: Hashable) -> Any:
    """pydantic's reader of a type."""
    from pydantic import TypeAdapter

    return TypeAdapter(cast(Any, kind))


def _invalid_record_error(path: Path, error: Any) -> CheckpointError:
    """What pydantic found first, in one line."""
    first = error.errors()[0]
    what, reason = first["msg"], first.get("ctx", {}).get("error")
    if first["type"] == "json_invalid":
        what = f"not valid JSON ({reason})"
    elif first["type"] == "value_error":  # a check of ours
        what = str(reason)
    elif first["type"] != "missing":
        what += f", not {repr(first['input'])[:40]}"
    where = ".".join(map(str, first["loc"]))[:100]
    return CheckpointError(": ".join(filter(None, (str(path), where, what))))


def _damaged_error(path: Path) -> CheckpointError:
    return CheckpointError(f"{path}: damaged, its SHA-256 is not the manifest's")


def require_keys(*names: str) -> Callable[[dict[str, T]], dict[str, T]]:
    """A check for a record's mapping: it has these keys."""

    def check(value: dict[str, T]) -> dict[str, T]:
        if missing := [name for name in names if name not in value]:
            raise ValueError(f"no key {missing[0]!r}")
        return value

    return check


def check_relative(name: str) -> str:
    """A check for a record's field: it names something below the record's directory."""
    if not name or Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name:
        raise ValueError(f"{name}: leads out of this directory")
    return name


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# ---------------------------------------------------------------- manifests


class ManifestEntry(TypedDict):
    """A file as a manifest knows it."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a directory holds: `files` by their names in it, `parents` names its inputs."""

    kind: str
    files: Mapping[str, ManifestEntry]
    parents: Mapping[str, str] = field(default_factory=dict)
    created_by: str = f"albert {__version__}"

    def __post_init__(self) -> None:
        for name in self.files:
            check_relative(name)

    def fingerprint(self) -> str:
        """16 hex digits that change when any file of the directory changes."""
        lines = [f"{name} {entry['sha256']}" for name, entry in sorted(self.files.items())]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def seal(directory: Path, kind: str, parents: Mapping[str, str] | None = None) -> Manifest:
    """Flush the files that are there and write their manifest, whose last entry is a hash of the others."""
    found = {p.relative_to(directory).as_posix(): p for p in directory.rglob("[!.]*") if p.is_file()}
    files: dict[str, ManifestEntry] = {}
    for name, path in sorted(found.items()):
        path.chmod(path.stat().st_mode | 0o444)  # safetensors makes its files private; artefacts are to be shared
        _fsync(path)
        if name not in _NOT_HASHED:
            files[name] = {"size": path.stat().st_size, "sha256": sha256_file(path)}
    manifest = Manifest(kind, files, dict(parents or {}))
    entries = {"kind": kind, "created_by": manifest.created_by, "parents": manifest.parents, "files": files}
    write_json(directory / MANIFEST, {**entries, "sha256": hash_json(entries)})
    return manifest


def hash_json(entries: Mapping[str, Any]) -> str:
    """A hash of a record that is written as JSON, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest of a directory, or None where there is none; a damaged one is a `CheckpointError`."""
    from pydantic import ValidationError

    path = directory / MANIFEST
    if not os.path.lexists(path):
        return None
    value = read_json(path)
    if value.pop("sha256", None) != hash_json(value):
        raise CheckpointError(f"{path}: damaged, or not of this program: its entries do not have the SHA-256 it says")
    try:
        return cast(Manifest, type_adapter(Manifest).validate_python(value))
    except ValidationError as error:
        raise _invalid_record_error(path, error) from None


def verify(directory: Path, kind: str | None = None) -> Manifest:
    """Check every file against the manifest and return it.

    Raises `CheckpointError` naming the first file that is missing, cut, or changed: arrays load a flipped bit silently.
    """
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: no such directory", "check the path")
    manifest = read_manifest(directory)
    if manifest is None:
        what = f"{directory}: no {MANIFEST}, so the directory is incomplete"
        raise CheckpointError(what, "run the verb that makes it again")
    if kind is not None and manifest.kind != kind:
        raise CheckpointError(f"{directory}: is a {manifest.kind} directory, not a {kind} directory", "check the path")
    for name, entry in manifest.files.items():
        path = directory / name
        if not path.is_file():
            raise CheckpointError(f"{path}: missing, though the manifest names it")
        if path.stat().st_size != entry["size"]:
            raise CheckpointError(f"{path}: {path.stat().st_size} bytes, the manifest says {entry['size']}")
        if sha256_file(path) != entry["sha256"]:
            raise _damaged_error(path)
    return manifest


def read_finished_manifest(directory: Path, kind: str, *unfinished: str) -> Manifest | None:
    """The manifest of a directory that is to hold a `kind`, or None where that is still to be made.

    unfinished: files or folders, one of which is there while it is made. Raises `BusyError` where anything else is.
    """
    if not directory.exists() or (directory.is_dir() and all(p.name.startswith(".") for p in directory.iterdir())):
        return None  # a kill may have left a hidden file
    manifest = read_manifest(directory) if directory.is_dir() else None
    if manifest is None and any((directory / name).exists() for name in unfinished):
        return None
    if manifest is None or manifest.kind != kind:
        other = "holds something else" if directory.is_dir() else "is a file"
        what = f"is a {manifest.kind} directory" if manifest else other
        raise BusyError(f"{directory}: {what}", "choose another --out")
    return manifest


def fingerprint(directory: Path) -> str:
    """The directory's identity, from its manifest; of a model from elsewhere, from the files that make its results."""
    manifest = read_manifest(directory)
    if manifest is not None:
        return manifest.fingerprint()
    lines = [f"{name} {sha256_file(directory / name)}" for name in _MODEL_FILES if (directory / name).is_file()]
    if not lines:
        raise CheckpointError(f"{directory}: neither a {MANIFEST} nor a model to identify it by")
    return "unverified-" + hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


# ---------------------------------------------------------------- directories


@contextmanager
def _staging_directory(beside: Path, needed: int | None = None) -> Iterator[Path]:
    """A hidden temporary directory beside `beside`, removed at the end (before an error tells what is free)."""
    with translate_os_errors(beside, needed):
        beside.parent.mkdir(parents=True, exist_ok=True)
        staging = _temporary_sibling(beside)
        staging.mkdir()
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def commit_directory(
    final: Path,
    kind: str,
    parents: Mapping[str, str] | None = None,
    needed: int | None = None,
    *,
    replace: bool = False,
) -> Iterator[Path]:
    """Yield an empty directory to fill; on a clean exit it becomes `final`, with a manifest, in one rename.

    An existing empty `final` is replaced; under `replace` any is, and for a moment between two renames there is none:
    only for what can be made again. Raises `BusyError` when something is already there, and `CheckpointError` on a full
    disk, which names the `needed` bytes.
    """
    if not replace and final.exists() and (not final.is_dir() or any(final.iterdir())):
        raise BusyError(f"{final}: already exists", "choose another --out or remove it")
    remove_leftovers(final.parent, final.name)
    with _staging_directory(final, needed) as staging:
        yield staging
        seal(staging, kind, parents)
        _fsync(staging)
        if final.is_dir():
            remove_directory(final) if any(final.iterdir()) else final.rmdir()
        staging.rename(final)
        _fsync(final.parent)


@contextmanager
def publish(directory: Path, kind: str, parents: Mapping[str, str] | None = None) -> Iterator[Path]:
    """Yield a directory to fill; on a clean exit its files move into the existing `directory`, manifest last.

    Between the first move and the last the old manifest no longer fits, so no reader takes a mixture.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with _staging_directory(directory / "publish") as staging:
        yield staging
        seal(staging, kind, parents)
        names = sorted(p.name for p in staging.iterdir())
        for name in [*(n for n in names if n != MANIFEST), MANIFEST]:
            (staging / name).replace(directory / name)
        staging.rmdir()
        _fsync(directory)


def remove_leftovers(directory: Path, name: str | None = None) -> None:
    """Delete what a killed process left half-written: hidden temporary siblings of `name`, or all of them."""
    pattern = "*" if name is None else glob.escape(name)
    if directory.is_dir():
        for path in directory.glob(f".{pattern}.{'[0-9a-f]' * 8}.tmp"):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def remove_directory(directory: Path) -> None:
    """Delete a committed directory: hidden in one rename first, so that a crash half-way leaves no ruin."""
    hidden = _temporary_sibling(directory)
    directory.rename(hidden)
    _fsync(hidden.parent)  # or a loss of power could keep the deletions and not the rename
    shutil.rmtree(hidden)


@contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Hold the output directory for this process; the lock dies with it, so `kill -9` leaves nothing stale.

    What a killed process left half-written in it is deleted first. A directory that was made for the lock and is still
    empty when the block fails is removed again.
    """
    from filelock import FileLock, Timeout

    made = [p for p in (directory, *directory.parents) if not p.exists()]
    with translate_os_errors(directory):
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise BusyError(f"{directory}: is a file, not a directory", "choose another --out") from None
        except PermissionError as error:
            raise BusyError(f"{directory}: cannot be written ({error.strerror})", "choose another --out") from None
    guard = FileLock(directory / ".lock", timeout=0)
    try:
        with warnings.catch_warnings():
            # Newer releases warn and take a file's presence for a lock, which outlives a process that was killed.
            warnings.filterwarnings("error", "flock not supported")
            guard.acquire()
    except Timeout:
        raise BusyError(f"{directory}: another run is writing here", "wait for it or choose another --out") from None
    except (NotImplementedError, UserWarning, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            raise
        what = "its file system has no locks, which keep two runs apart"
        raise BusyError(f"{directory}: {what}", "choose an --out on another disk") from None
    try:
        remove_leftovers(directory)
        _check_renames(directory)
        yield
    except BaseException:
        if directory in made and [p.name for p in directory.glob("*")] == [".lock"]:
            (directory / ".lock").unlink()
            with suppress(OSError):  # a folder above it that is not empty stays
                for path in made:
                    path.rmdir()
        raise
    finally:
        guard.release()


def _check_renames(directory: Path) -> None:
    """Raise `BusyError` where a folder cannot be renamed, as on disks that are mounted from an object store."""
    probe, renamed = _temporary_sibling(directory / "rename"), _temporary_sibling(directory / "renamed")
    try:
        probe.mkdir()
        (probe / "file").touch()
        probe.rename(renamed)
    except OSError as error:
        if error.errno in _RENAME_UNSUPPORTED:  # of anything else speaks what is written next, if anything is
            what = "its file system does not rename folders, by which they appear whole or not at all"
            raise BusyError(f"{directory}: {what}", "choose an --out on another disk") from None
    finally:
        for folder in (probe, renamed):
            shutil.rmtree(folder, ignore_errors=True)


# ---------------------------------------------------------------- the steps of a run


def saved_steps(run: Path) -> list[Path]:
    """The directories of a run's finished steps, oldest first: the zeros in their names make them sort as numbers."""
    return sorted(p for p in run.glob("step-*") if os.path.lexists(p / MANIFEST))
