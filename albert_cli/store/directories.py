"""Write and remove directories so that readers see each of them whole or not at all.

`commit_directory` creates a new directory; `publish` adds the last files to a directory that exists already.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from albert_cli.errors import BusyError
from albert_cli.os_errors import translate_os_errors
from albert_cli.store import files
from albert_cli.store.manifests import MANIFEST, seal
from albert_cli.store.temporaries import remove_leftovers, temporary_sibling


@contextmanager
def _staging_directory(sibling: Path, needed: int | None = None) -> Iterator[Path]:
    """Yield a hidden temporary directory next to `sibling`; needed: its expected bytes, for messages."""
    # The removal comes first, so that the message of a full disk reports the free space without this directory.
    with translate_os_errors(sibling, needed):
        sibling.parent.mkdir(parents=True, exist_ok=True)
        staging = temporary_sibling(sibling)
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
    """Yield an empty directory to fill; if the block succeeds, it becomes `final`, with a manifest, in one rename.

    kind, parents: entries of the manifest. needed: expected size in bytes, for the message of a full disk.
    replace: replace an existing `final`; between two renames there is none, so use this only for a directory that can
    be created again. Without `replace` only an empty directory is replaced, and anything else is a `BusyError`.
    Raises `CheckpointError` if the disk is full.
    """
    exists_error = BusyError(f"{final}: already exists", "choose another --out or remove it")
    if not replace and final.exists() and (not final.is_dir() or any(final.iterdir())):
        raise exists_error
    remove_leftovers(final.parent, final.name)
    with _staging_directory(final, needed) as staging:
        yield staging
        seal(staging, kind, parents)
        files.fsync(staging)
        if final.is_dir():
            if not any(final.iterdir()):
                final.rmdir()
            elif replace:
                remove_directory(final)
            else:  # another process has committed it in the meantime
                raise exists_error
        staging.rename(final)
        files.fsync(final.parent)


@contextmanager
def publish(directory: Path, kind: str, parents: Mapping[str, str] | None = None) -> Iterator[Path]:
    """Yield a directory to fill; if the block succeeds, its files move into `directory`, and its manifest last.

    The manifest lists these files only. While files are moved, an older manifest does not match all of them, so no
    reader accepts a mixture of old and new files.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with _staging_directory(directory / "publish") as staging:
        yield staging
        seal(staging, kind, parents)
        names = sorted(p.name for p in staging.iterdir() if p.name != MANIFEST)
        for name in (*names, MANIFEST):
            (staging / name).replace(directory / name)
        staging.rmdir()
        files.fsync(directory)


def remove_directory(directory: Path) -> None:
    """Delete a committed directory; it is hidden by a rename first, so that a crash leaves no visible part of it."""
    hidden = temporary_sibling(directory)
    directory.rename(hidden)
    files.fsync(hidden.parent)  # after a loss of power, some files could be deleted and the directory still visible
    shutil.rmtree(hidden)
