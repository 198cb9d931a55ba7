"""Commit, publish and remove directories: each is visible whole or not at all."""

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
    """Yield a hidden temporary directory next to `sibling`; it is removed before an error reports the free space."""
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
    """Yield an empty directory to fill; on a clean exit it becomes `final`, with a manifest, in one rename.

    An existing empty `final` is replaced. With `replace` any existing one is, and for a moment between two renames
    there is none: use it only for what can be created again. Raises `BusyError` if something exists already, and
    `CheckpointError` on a full disk, which names the `needed` bytes.
    """
    if not replace and final.exists() and (not final.is_dir() or any(final.iterdir())):
        raise BusyError(f"{final}: already exists", "choose another --out or remove it")
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
            else:  # another process has committed it since
                raise BusyError(f"{final}: already exists", "choose another --out or remove it")
        staging.rename(final)
        files.fsync(final.parent)


@contextmanager
def publish(directory: Path, kind: str, parents: Mapping[str, str] | None = None) -> Iterator[Path]:
    """Yield a directory to fill; on a clean exit its files move into the existing `directory`, the manifest last.

    Between the first move and the last the old manifest does not match, so no reader accepts a mixture.
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
    """Delete a committed directory: hide it in one rename first, so that a crash leaves no partial directory."""
    hidden = temporary_sibling(directory)
    directory.rename(hidden)
    files.fsync(hidden.parent)  # otherwise a loss of power could keep the deletions and not the rename
    shutil.rmtree(hidden)
