"""Write and remove directories so that readers see each of them whole or not at all.

`commit_directory` creates a new directory; `publish` adds the last files to a directory that exists already.
`walk_folders` finds the directories below one.
"""

from __future__ import annotations

import heapq
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from albert_cli.errors import BusyError, CheckpointError
from albert_cli.os_errors import from_os_error, translate_write_errors
from albert_cli.store import files
from albert_cli.store.manifests import MANIFEST, seal
from albert_cli.store.run_steps import is_broken_link
from albert_cli.store.temporaries import remove_leftovers, temporary_sibling


def resolve_dots(directory: Path) -> Path:
    """Return a path that ends in the directory's name; "." (whose `name` is "") and ".." do not contain it."""
    return directory.resolve() if directory.name in ("", "..") else directory


def walk_folders(*directories: Path) -> list[Path]:
    """Return the directories and all folders below them that are not hidden, each once, sorted by directory and path.

    Links to folders are followed. A folder that can be reached without a link is returned with that path.
    Raises `InputError` for a folder that cannot be read, and `CheckpointError` for a broken link to a folder.
    """
    seen: set[Path] = set()
    folders: list[tuple[int, Path]] = []  # with the index of the start directory
    # A heap of (number of links, index of the start directory, depth, folder). A folder is therefore reached first by
    # the path with the fewest links and, below one start directory, by the shortest such path.
    pending = [(0, root_index, 0, directory) for root_index, directory in enumerate(directories)]
    heapq.heapify(pending)
    while pending:
        links, root_index, depth, folder = heapq.heappop(pending)
        resolved = folder.resolve()
        if resolved in seen:  # for example a link to a folder above it
            continue
        paths = _list_folder(folder)
        if paths is None:
            continue
        seen.add(resolved)
        folders.append((root_index, folder))
        for path in paths:
            # `Path.is_dir` raises an error for a link to a folder that this user may not see.
            if not os.path.isdir(path):  # noqa: PTH112
                _require_intact_link(path)
            elif not path.name.startswith("."):
                heapq.heappush(pending, (links + path.is_symlink(), root_index, depth + 1, path))
    return [folder for _, folder in sorted(folders)]


def _list_folder(folder: Path) -> list[Path] | None:
    """Return the paths in a folder in alphabetic order; None if another process has just removed the folder.

    Raises `InputError` for a folder that cannot be read.
    """
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return None
    except OSError as error:
        translated = from_os_error(error)
        if translated is None:
            raise
        raise translated from error


def _require_intact_link(path: Path) -> None:
    """Raise `CheckpointError` for a broken link that may have led to a folder.

    A name with a file extension, such as `status.json`, is a file's: the reader of the file reports the broken link.
    """
    may_be_folder = not path.name.startswith(".") and re.search(r"\.[A-Za-z]\w*$", path.name) is None
    if may_be_folder and is_broken_link(path):
        raise CheckpointError(f"{path}: is a broken link", "restore the folder it leads to, or remove the link")


@contextmanager
def _staging_directory(sibling: Path, needed: int | None = None) -> Iterator[Path]:
    """Yield a new hidden directory next to `sibling`, and remove it after the block if it still exists.

    needed: its expected size in bytes, for the message of a full disk.
    """
    with translate_write_errors(sibling, needed):
        sibling.parent.mkdir(parents=True, exist_ok=True)
        staging = temporary_sibling(sibling)
        staging.mkdir()
        try:
            yield staging
        finally:
            # Inside `translate_write_errors`: the message of a full disk reports the free space after this removal.
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

    * `kind` and `parents` are entries of the manifest.
    * `needed` is the expected size in bytes, for the message of a full disk.
    * With `replace`, an existing `final` is replaced. For a moment neither the old nor the new directory is visible, so
      use this only for a directory that can be created again.

    Raises `CheckpointError` if the disk is full. Without `replace`, raises `BusyError` if `final` exists, unless it is
    an empty directory.
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
    """Yield a directory to fill; if the block succeeds, its files move into `directory`, the manifest last.

    The manifest lists only the files of the block. If `directory` has an older manifest, it does not match the files
    that have been moved, so no reader accepts a mixture of old and new files.
    """
    directory.mkdir(parents=True, exist_ok=True)
    # A hidden directory inside `directory`, named as if next to a file "publish".
    with _staging_directory(directory / "publish") as staging:
        yield staging
        seal(staging, kind, parents)
        names = sorted(p.name for p in staging.iterdir() if p.name != MANIFEST)
        for name in (*names, MANIFEST):
            (staging / name).replace(directory / name)
        staging.rmdir()
        files.fsync(directory)


def remove_directory(directory: Path) -> None:
    """Delete a committed directory; a rename hides it first, so that a crash leaves no visible part of it.

    The directory counts as removed once it is hidden. Files that cannot be deleted now, such as mapped files on NFS,
    are deleted later by `remove_leftovers`. If `directory` is a link, only the link is deleted.
    """
    if directory.is_symlink():
        directory.unlink()
        return
    hidden = temporary_sibling(directory)
    directory.rename(hidden)
    files.fsync(hidden.parent)  # a loss of power must not undo the rename after some files are deleted
    shutil.rmtree(hidden, ignore_errors=True)
