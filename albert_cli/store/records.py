"""Read the files of artifacts, each verified against the manifest next to it."""

from __future__ import annotations

import hashlib
import os
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from albert_cli.errors import CheckpointError
from albert_cli.store.manifests import MANIFEST, ManifestEntry, damaged_error, read_manifest, read_unverified
from albert_cli.store.parsing import parse_record

T = TypeVar("T")
JsonObject: TypeAlias = dict[str, Any]  # of a file without a record of its own


def read_bytes(path: Path) -> bytes:
    """Return an artifact's file; raise `CheckpointError` if it is unreadable or differs from its manifest's entry."""
    data = read_unverified(path)
    entries = _manifest_entries(path)
    if entries and any(hashlib.sha256(data).hexdigest() != entry["sha256"] for entry in entries):
        raise damaged_error(path)
    return data


def is_listed(path: Path) -> bool:
    """Return True if the file exists or is listed in a manifest: then reading a missing one is an error."""
    return os.path.lexists(path) or bool(_manifest_entries(path))


def _manifest_entries(path: Path) -> list[ManifestEntry]:
    """Return a file's entries in the manifest next to it and, for a vocabulary, in the data directory's above."""
    if path.name == MANIFEST or path.name.startswith("."):  # no manifest lists hidden files
        return []
    entries = []
    manifest = read_manifest(path.parent)
    if manifest is not None:
        entries.append(manifest.files.get(path.name))
    if path.parent.name == "vocabulary":
        with suppress(CheckpointError):  # the directory above may belong to another program
            above = read_manifest(path.parent.parent)
            if above is not None:
                entries.append(above.files.get(f"vocabulary/{path.name}"))
    return [entry for entry in entries if entry]


def read_record(path: Path, kind: type[T]) -> T:
    """Read a JSON file as a record; raise a `CheckpointError` that names what is missing or of another type."""
    return parse_record(path, read_bytes(path), kind)


def read_json(path: Path) -> JsonObject:
    """Read any JSON object; a damaged file is a `CheckpointError` that names it."""
    return read_record(path, dict)


def read_toml(path: Path) -> dict[str, object]:
    """Read the recipe that is saved in an artifact; a damaged file is a `CheckpointError` that names it."""
    try:
        return tomllib.loads(read_bytes(path).decode())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid TOML ({error})") from None
