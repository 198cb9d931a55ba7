"""Whether a data directory is intact: hashed once, and again where a file looks different."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from albert_cli import store
from albert_cli.data.shards import read_data_facts
from albert_cli.errors import AlbertError, CheckpointError

_VERIFIED = ".verified.json"  # a hint that saves hashing, and no part of the artefact
_verified_in_process: dict[Path, dict[str, list[int]]] = {}  # the same, while this process lives


def verify_data(directory: Path, everything: bool = False) -> int:
    """Re-hash a data directory and its shards, and return how many files that was; `CheckpointError` for a damaged one.

    Without `everything` not where each file still has the size, time and inode that it had when its hash was right: a
    terabyte takes a quarter of an hour to hash.
    """
    stamps, noted = collect_file_signatures(directory), _verified_in_process.get(directory.resolve())
    if noted != stamps:
        with suppress(CheckpointError):
            noted = store.read_json(directory / _VERIFIED).get("stamps")
    if not everything and noted == stamps:
        return 0
    files = len(store.verify(directory, "data").files)
    for name, fingerprint in read_data_facts(directory)["fingerprints"].items():
        shard = directory / "shards" / name
        found = store.verify(shard, "shard")
        files += len(found.files)
        if found.fingerprint() != fingerprint:
            raise CheckpointError(f"{shard}: not the shard that {directory / 'data.json'} names")
    record_verified(directory, stamps)
    return files


def collect_file_signatures(directory: Path) -> dict[str, list[int]]:
    """Size, time of the last change (ns) and inode of every file that is not hidden."""
    found, folders = dict[str, list[int]](), [str(directory)]
    while folders:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    folders.append(entry.path)
                    continue
                name = os.path.relpath(entry.path, directory)
                try:
                    status = os.stat(entry.path)  # noqa: PTH116  (of tens of thousands of files)
                    found[name] = [status.st_size, status.st_mtime_ns, status.st_ino]
                except OSError:  # a link that leads nowhere
                    found[name] = []
    return found


def record_verified(directory: Path, stamps: dict[str, list[int]]) -> None:
    """Note what the files looked like when all hashes were right; beside a directory that cannot be written, here."""
    _verified_in_process[directory.resolve()] = stamps
    with suppress(OSError, AlbertError):
        store.write_json(directory / _VERIFIED, {"stamps": stamps})
