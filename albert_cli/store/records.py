"""Read single files of artifacts, and compare each with its hash in the manifest next to it."""

from __future__ import annotations

import hashlib
import os
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from albert_cli.errors import CheckpointError, DiskError
from albert_cli.store.manifests import MANIFEST, ManifestEntry, damaged_error, read_manifest, read_unverified
from albert_cli.store.parsing import parse_record

T = TypeVar("T")
JsonObject: TypeAlias = dict[str, Any]  # the content of a JSON file that has no record class


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file; raise an `AlbertError` if it cannot be read, or if a manifest lists another hash."""
    data = read_unverified(path)
    for entry in _manifest_entries(path):
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise damaged_error(path)
    return data


def exists_or_is_listed(path: Path) -> bool:
    """Return True if the file exists, or if a manifest lists it.

    Callers check this before they read an optional file, so a file that is listed but missing raises an error and is
    not taken for a file that was never written.
    """
    return os.path.lexists(path) or bool(_manifest_entries(path))


def _manifest_entries(path: Path) -> list[ManifestEntry]:
    """Return the manifest entries of a file: none, one or two.

    The manifest of the file's directory may list it. If that directory is a data directory's `vocabulary`, the manifest
    of the data directory may list it, too.
    """
    if path.name == MANIFEST or path.name.startswith("."):  # no manifest lists hidden files
        return []
    entries = []
    manifest = read_manifest(path.parent)
    if manifest is not None and path.name in manifest.files:
        entries.append(manifest.files[path.name])
    if path.parent.name == "vocabulary":
        name = f"vocabulary/{path.name}"
        with suppress(CheckpointError):  # the directory above may belong to another program
            manifest = read_manifest(path.parent.parent)
            if manifest is not None and name in manifest.files:
                entries.append(manifest.files[name])
    return entries


def read_record(path: Path, record_type: type[T]) -> T:
    """Read a JSON file as a record; raise `CheckpointError` if it is damaged, or if a key is missing or mistyped."""
    return parse_record(path, read_bytes(path), record_type)


def read_optional_record(path: Path, record_type: type[T]) -> T | None:
    """Read a JSON file as `read_record`; return None if there is no such file.

    The file may disappear at any time, because another process, perhaps on another machine, may remove it.
    """
    try:
        return read_record(path, record_type)
    except DiskError:  # the file may exist, although `lexists` does not find it
        raise
    except CheckpointError:
        if os.path.lexists(path):
            raise
        return None


def read_json(path: Path) -> JsonObject:
    """Read a JSON object with any keys; raise `CheckpointError` if the file is damaged."""
    return read_record(path, dict)


def read_toml(path: Path) -> dict[str, object]:
    """Read a TOML file of an artifact, such as a run's recipe; raise `CheckpointError` if the file is damaged."""
    try:
        return tomllib.loads(read_bytes(path).decode())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid TOML ({error})") from None
