"""Write, read and verify manifests, which list the files of a finished directory with their size and SHA-256."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from albert_cli import __version__
from albert_cli.errors import BusyError, CheckpointError
from albert_cli.os_errors import from_os_error, no_directory_message, translate_os_errors
from albert_cli.store import files
from albert_cli.store.parsing import check_relative, invalid_record_error, parse_record, type_adapter

MANIFEST = "manifest.json"
_NOT_HASHED = (MANIFEST, "README.md")  # README.md is the model card, which users may edit
# The files that identify a model that another program has written.
_MODEL_FILES = (
    "config.json",
    "model*.safetensors",
    "pytorch_model*.bin",
    "spiece.model",
    "tokenizer_config.json",
    "tokenizer.json",
    "vocab.txt",
    "added_tokens.json",
)


class ManifestEntry(TypedDict):
    """Size and hash of a file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The content of a directory's manifest."""

    kind: str  # of the directory, such as "data" or "vocabulary"
    files: Mapping[str, ManifestEntry]  # by path relative to the directory
    # Fingerprints of the directories that this directory was built from, by their role, such as "vocabulary".
    parents: Mapping[str, str] = field(default_factory=dict)
    created_by: str = f"albert {__version__}"

    def __post_init__(self) -> None:
        for name in self.files:
            check_relative(name)

    def fingerprint(self) -> str:
        """Return 16 hex digits that change when any listed file changes."""
        lines = [f"{name} {entry['sha256']}" for name, entry in sorted(self.files.items())]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def hash_json(entries: Mapping[str, object]) -> str:
    """Return the SHA-256 of a JSON object, in hex; the order of its keys does not matter."""
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def seal(directory: Path, kind: str, parents: Mapping[str, str] | None = None) -> Manifest:
    """Make all files of a directory readable if possible, flush them, and write the directory's manifest.

    Files whose names begin with "." are left out. The manifest has a key "sha256", the hash of all other keys, by which
    `read_manifest` detects damage.
    """
    paths = {p.relative_to(directory).as_posix(): p for p in directory.rglob("[!.]*") if p.is_file()}
    entries: dict[str, ManifestEntry] = {}
    for name, path in sorted(paths.items()):
        mode = path.stat().st_mode
        if mode & 0o444 != 0o444:  # safetensors makes its files private, but other users read artifacts
            with suppress(PermissionError):  # a network file system may set permissions itself
                path.chmod(mode | 0o444)
        files.fsync(path)
        if name not in _NOT_HASHED:
            entries[name] = {"size": path.stat().st_size, "sha256": sha256_file(path)}
    manifest = Manifest(kind, entries, dict(parents or {}))
    values = {"kind": kind, "created_by": manifest.created_by, "parents": manifest.parents, "files": entries}
    files.write_json(directory / MANIFEST, {**values, "sha256": hash_json(values)})
    return manifest


def read_manifest(directory: Path) -> Manifest | None:
    """Read the manifest of a directory; return None if there is none, raise `CheckpointError` if it is damaged."""
    from pydantic import ValidationError

    path = directory / MANIFEST
    if _stat_or_none(path, follow_symlinks=False) is None:
        return None
    values = parse_record(path, read_unverified(path), dict[str, object])
    recorded_hash = values.pop("sha256", None)
    if recorded_hash != hash_json(values):
        raise CheckpointError(f"{path}: damaged, or not written by albert: its SHA-256 does not match its entries")
    try:
        return type_adapter(Manifest).validate_python(values)
    except ValidationError as error:
        raise invalid_record_error(path, error) from None


def _stat_or_none(path: Path, *, follow_symlinks: bool = True) -> os.stat_result | None:
    """Return a path's status, None if the path does not exist; raise an `AlbertError` if the status cannot be read.

    `os.path.lexists`, and `Path.is_file` since Python 3.14, would take a file on a failing disk for a missing file.
    """
    with translate_os_errors(path):
        try:
            return path.stat(follow_symlinks=follow_symlinks)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return None
            raise


def read_unverified(path: Path) -> bytes:
    """Return a file's bytes without comparing them with a manifest; raise an `AlbertError` if they cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except OSError as error:
        translated = from_os_error(error, path)
        if translated is None:
            raise
        raise translated from error


def verify(directory: Path, kind: str | None = None) -> Manifest:
    """Compare every listed file with the manifest, and return the manifest.

    kind: the required kind of directory, None for any. Raises `CheckpointError` for the first file that is missing,
    truncated or changed. Only the hashes show a flipped bit: safetensors, for example, loads a damaged tensor without
    an error.
    """
    status = _stat_or_none(directory)
    if status is None or not stat.S_ISDIR(status.st_mode):
        raise CheckpointError(*no_directory_message(directory, "check the path"))
    manifest = read_manifest(directory)
    if manifest is None:
        message = f"{directory}: no {MANIFEST}, so the directory is incomplete"
        raise CheckpointError(message, "run the command that creates it again")
    if kind is not None and manifest.kind != kind:
        raise CheckpointError(f"{directory}: is a {manifest.kind} directory, not a {kind} directory", "check the path")
    for name, entry in manifest.files.items():
        path = directory / name
        status = _stat_or_none(path)
        if status is None or not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{path}: missing (listed in the manifest)")
        if status.st_size != entry["size"]:
            raise CheckpointError(f"{path}: {status.st_size} bytes, but {entry['size']} in the manifest")
        if sha256_file(path) != entry["sha256"]:
            raise damaged_error(path)
    return manifest


def damaged_error(path: Path) -> CheckpointError:
    """Return the error for a file whose hash differs from the manifest's."""
    return CheckpointError(f"{path}: damaged, its SHA-256 differs from the manifest's")


def read_finished_manifest(directory: Path, kind: str, *unfinished: str) -> Manifest | None:
    """Return the manifest of a finished artifact, or None if the artifact still has to be built.

    unfinished: names of files or folders, one of which exists while the artifact is being built. Raises `BusyError` if
    the directory contains anything other than an artifact of this kind.
    """
    if not directory.exists():
        return None
    if not directory.is_dir():
        raise BusyError(f"{directory}: is a file", "choose another --out")
    visible_names = sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))
    if not visible_names:  # a killed process may have left hidden files
        return None
    manifest = read_manifest(directory)
    if manifest is None:
        if any((directory / name).exists() for name in unfinished):
            return None
        raise BusyError(
            f"{directory}: contains {visible_names[0]} and is not a {kind} directory", "choose another --out"
        )
    if manifest.kind != kind:
        raise BusyError(f"{directory}: is a {manifest.kind} directory", "choose another --out")
    return manifest


def fingerprint(directory: Path) -> str:
    """Return the fingerprint of a directory: its manifest's or, without a manifest, a hash of the model's files.

    A model that another program has written has no manifest; its fingerprint begins with "unverified-". Raises
    `CheckpointError` if there is no model either.
    """
    manifest = read_manifest(directory)
    if manifest is not None:
        return manifest.fingerprint()
    paths = [path for pattern in _MODEL_FILES for path in sorted(directory.glob(pattern)) if path.is_file()]
    lines = [f"{path.name} {sha256_file(path)}" for path in paths]
    if not lines:
        raise CheckpointError(f"{directory}: neither a {MANIFEST} nor a model to identify it by")
    return "unverified-" + hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
