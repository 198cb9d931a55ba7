"""Verify the files of a data directory against the hashes in its manifests.

To hash a terabyte takes one core a quarter of an hour. So all cores hash, the signatures of verified files (size, mtime
and inode) are recorded, and files with the same signatures are not hashed again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from albert_cli import console, store
from albert_cli.data.records import read_data_facts, require_data_directory
from albert_cli.errors import AlbertError, CheckpointError
from albert_cli.machine import available_cores
from albert_cli.text.source_parts import FileSignature

# The recorded signatures: a cache, not a part of the artifact. For a data directory the file has {"signatures": …}, for
# the shards of a work unit a `VerifiedUnit`.
_VERIFIED = ".verified.json"

# The same record in memory, by data directory. It is needed for read-only directories, to which no file can be written.
_verified_in_process: dict[Path, dict[str, list[int]]] = {}


def verify_data(directory: Path, everything: bool = False) -> int:
    """Hash the files of a data directory and its shards; raise `CheckpointError` if one is missing or damaged.

    Also raises `CheckpointError` for a path that is not a complete data directory. Hashes nothing if all signatures are
    those of the last verification, unless `everything` is True. Returns the number of hashed files.
    """
    require_data_directory(directory)
    signatures = collect_file_signatures(directory)
    if not everything and _is_verified(directory, signatures):
        return 0
    n_files = len(store.verify(directory, "data").files)
    fingerprints = read_data_facts(directory).fingerprints
    with (
        console.show_progress(f"verifying {directory.name}", len(fingerprints)) as progress,
        ThreadPoolExecutor(available_cores()) as pool,  # threads, because `hashlib` releases the GIL
    ):
        # `map` keeps the order of the shards, so the first damaged one is reported. Its error cancels the rest.
        counts = pool.map(partial(_verify_shard, directory), fingerprints, fingerprints.values())
        for number, count in enumerate(counts, start=1):
            n_files += count
            progress.update(number)
    record_verified_data(directory, signatures)
    return n_files


def _verify_shard(directory: Path, name: str, fingerprint: str) -> int:
    """Hash the files of a shard and return their number; raise `CheckpointError` for damage or another fingerprint."""
    shard_directory = directory / "shards" / name
    manifest = store.verify(shard_directory, "shard")
    if manifest.fingerprint() != fingerprint:
        raise CheckpointError(f"{shard_directory}: not the shard that {directory / 'data.json'} lists")
    return len(manifest.files)


# ---------------------------------------------------------------- the shards of one work unit


@dataclass(frozen=True)
class VerifiedUnit:
    """The signatures of a work unit's files just after its shards were written.

    shard_signatures: those of the shard files, as `collect_file_signatures` returns them.
    source_signatures: those of the source files; None for a source that is not a file.
    """

    shard_signatures: dict[str, list[int]]
    source_signatures: list[FileSignature | None]


def record_verified_unit(directory: Path, source_signatures: Sequence[FileSignature | None]) -> None:
    """Record the signatures of shards that have just been written, and of their sources."""
    verified = VerifiedUnit(collect_file_signatures(directory), list(source_signatures))
    with suppress(OSError, AlbertError):  # without the record the files are hashed again
        store.write_json(directory / _VERIFIED, asdict(verified))


def read_verified_unit(directory: Path) -> VerifiedUnit | None:
    """Read the recorded signatures of a work unit; None if they are missing or unreadable."""
    path = directory / _VERIFIED
    if path.is_file():
        with suppress(CheckpointError):  # the file is damaged
            return store.read_record(path, VerifiedUnit)
    return None


def are_shards_unchanged(directory: Path, verified: VerifiedUnit | None) -> bool:
    """Return True if the shard files still have their recorded signatures."""
    return verified is not None and collect_file_signatures(directory) == verified.shard_signatures


def are_sources_unchanged(source_signatures: Sequence[FileSignature | None], verified: VerifiedUnit | None) -> bool:
    """Return True if the sources still have their recorded signatures.

    Returns False if a source is not a file, or if its signature may hide a change (`FileSignature.has_version`).
    """
    have_versions = all(signature is not None and signature.has_version for signature in source_signatures)
    return verified is not None and have_versions and list(source_signatures) == verified.source_signatures


# ---------------------------------------------------------------- signatures


def collect_file_signatures(directory: Path) -> dict[str, list[int]]:
    """Return size, mtime (ns) and inode of every file that is not hidden, by its path relative to the directory.

    The list of a broken link is empty.
    """
    signatures: dict[str, list[int]] = {}
    folders = [str(directory)]
    while folders:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if _is_folder(entry):
                    folders.append(entry.path)
                else:
                    signatures[os.path.relpath(entry.path, directory)] = _size_mtime_inode(entry.path)
    return signatures


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _size_mtime_inode(path: str) -> list[int]:
    try:
        status = os.stat(path)  # noqa: PTH116  (a Path for each of tens of thousands of files would be slow)
    except OSError:  # a broken link
        return []
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _is_verified(directory: Path, signatures: dict[str, list[int]]) -> bool:
    """Return True if these are the signatures that `record_verified_data` has recorded."""
    if _verified_in_process.get(directory.resolve()) == signatures:
        return True
    with suppress(CheckpointError):  # the file is missing or damaged
        return bool(store.read_json(directory / _VERIFIED).get("signatures") == signatures)
    return False


def record_verified_data(directory: Path, signatures: dict[str, list[int]]) -> None:
    """Record the signatures of a data directory whose hashes are correct: in memory and, if possible, on disk."""
    _verified_in_process[directory.resolve()] = signatures
    with suppress(OSError, AlbertError):  # the directory is read-only
        store.write_json(directory / _VERIFIED, {"signatures": signatures})
