"""Records of unfinished work, for `albert status`: the units of a command, and who does each of them.

A unit is a directory, such as the run of a seed or the shards of a task. The plan is removed once the work is finished.
"""

from __future__ import annotations

import shlex
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from albert_cli import store
from albert_cli.errors import AlbertError, Interrupted

PLAN_FILE: Final = ".work.json"  # in the output directory; of an experiment with its name: .work-NAME.json
_NOTE_FILE: Final = "note.json"  # next to a unit's lock


@dataclass(frozen=True)
class WorkPlan:
    """The units of a command, and the command that does those that remain."""

    command: str
    units: dict[str, str]  # title by directory, relative to the output directory; "" if the directory says enough


@dataclass(frozen=True)
class UnitNote:
    """The machine that works, or has worked, on a unit, and the error that ended the work."""

    host: str = ""
    error: str = ""


def current_command() -> str:
    """Return this process's command, without the option that chooses a job of an array."""
    words = list[str]()
    arguments = iter(sys.argv[1:])
    for word in arguments:
        if word == "--task":
            next(arguments, None)
        elif not word.startswith("--task="):
            words.append(word)
    return shlex.join(["albert", *words])


def record_plan(path: Path, units: Mapping[str, str]) -> None:
    """Write a plan."""
    store.write_json(path, asdict(WorkPlan(current_command(), dict(units))))


@contextmanager
def recorded_plan(path: Path, units: Mapping[str, str]) -> Iterator[None]:
    """Write a plan, unless it is empty, and remove it if the block succeeds or fails before any unit has begun."""
    folder = path.parent
    existed = folder.exists()
    if units and (folder.is_dir() or not existed):  # the block rejects a file in place of the folder
        record_plan(path, units)
    try:
        yield
    except AlbertError:
        if not existed and list(folder.glob("*")) == [path]:
            path.unlink()
            folder.rmdir()
        raise
    path.unlink(missing_ok=True)


def read_plans(directory: Path) -> Sequence[WorkPlan]:
    """Return the plans of a directory."""
    pattern = f"{Path(PLAN_FILE).stem}*.json"
    return [store.read_record(path, WorkPlan) for path in sorted(directory.glob(pattern))]


@contextmanager
def locked_unit(lock_directory: Path) -> Iterator[None]:
    """Lock a unit and note the machine, and the error if the work fails; raise `LockedError` if it is locked."""
    with store.lock(lock_directory):
        host = socket.gethostname()
        store.write_json(lock_directory / _NOTE_FILE, asdict(UnitNote(host)))
        try:
            yield
        except Interrupted:
            raise
        except AlbertError as error:
            store.write_json(lock_directory / _NOTE_FILE, asdict(UnitNote(host, error.message)))
            raise


def read_note(lock_directory: Path) -> UnitNote:
    """Return the note on a unit; an empty one if nobody has worked on it."""
    path = lock_directory / _NOTE_FILE
    return store.read_record(path, UnitNote) if path.is_file() else UnitNote()
