"""Record unfinished work for `albert status`: the units of work of a command, and the machine that works on each.

A unit is a directory, such as the run of a seed or the shards of a part of the text. A command writes its plan into the
output directory, and removes it when all units are finished.
"""

from __future__ import annotations

import shlex
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from albert_cli import store
from albert_cli.array_jobs import ARRAY_FILE
from albert_cli.errors import AlbertError, BusyError, ConfigError, Interrupted
from albert_cli.formatting import format_command

PLAN_FILE: Final = ".work.json"  # the plan of an experiment is .work-NAME.json
# Folders with a directory for the lock and the note of each unit, for units whose own directory must not exist before
# they are finished.
UNIT_LOCKS: Final = ".tasks"  # of the units of `albert data`; in the output directory
STAGE_LOCKS: Final = ".locks"  # of the stages of an experiment; in the folder of the stages
_QUICKSTART_OUT: Final = "quickstart"  # the default of `albert quickstart --out`; other commands have no default
_NOTE_FILE: Final = "note.json"  # in the directory of a unit's lock


@dataclass(frozen=True)
class WorkPlan:
    """The units of work of a command, and the command line, which does the remaining units when it runs again.

    `working_directory` and `directory`: of the command and of the plan's file, as in `command_here`.
    """

    command: str
    units: dict[str, str]  # the title of each unit, or "", by its directory relative to the output directory
    working_directory: str = ""
    directory: str = ""


@dataclass(frozen=True)
class UnitNote:
    """The machine that works, or last worked, on a unit, and the error that ended the work; "" if there is none."""

    host: str = ""
    error: str = ""


@dataclass
class RunStatus:
    """`status.json`: the state of a run for schedulers; `exit_code` is None while the run's process is alive.

    `state` is "starting", "running", "done", "failed", "diverged" or "interrupted"; while it is "starting", the file is
    not written. `command` is the command line that resumes the run; `working_directory` and `directory` are those of
    the command and of the run, as in `command_here`.
    """

    state: str
    exit_code: int | None = None
    step: int = 0
    total_steps: int = 0
    message: str = ""
    host: str = ""
    command: str = ""
    working_directory: str = ""
    directory: str = ""


def current_command() -> str:
    """Return this process's command line without `--task`, so that it does the remaining work of all jobs.

    The secrets of URLs are left out.
    """
    words: list[str] = []
    arguments = iter(sys.argv[1:])
    for word in arguments:
        if word == "--task":
            next(arguments, None)  # skips the option's value
        elif not word.startswith("--task="):
            words.append(word)
    return format_command(["albert", *words])


def command_here(command: str, working_directory: str, recorded: str, directory: Path) -> str:
    """Return a recorded command as it continues the work in `directory` from the present working directory.

    working_directory: in which the command ran, or "" if it is not recorded. recorded: the path that `directory` had
    then. If it has another path now, because it was moved or copied, or is visible elsewhere on this machine, the path
    after `--out` changes in the same way; a quickstart without `--out` gets it. The working directory changes, too, if
    it no longer exists, for example because both were in a folder that has another name now.
    """
    if not working_directory:
        return command
    current = directory.resolve()
    if Path(recorded) != current:
        words = shlex.split(command)
        if words[1:2] == ["quickstart"] and not any(word.startswith(("--out", "-o")) for word in words):
            words[2:2] = ["--out", _QUICKSTART_OUT]
        for index, word in enumerate(words[1:], 1):
            option, equals, value = word.partition("=") if word.startswith("--out=") else ("", "", word)
            if equals or words[index - 1] in ("--out", "-o"):
                out = _move_path((Path(working_directory) / value).resolve(), Path(recorded), current)
                words[index] = f"{option}{equals}{out or value}"
        command = shlex.join(words)
        moved = _move_path(Path(working_directory), Path(recorded), current)
        if moved is not None and moved.is_dir() and not Path(working_directory).is_dir():
            working_directory = str(moved)
    if Path(working_directory) != Path.cwd():
        command = f"cd {shlex.quote(working_directory)} && {command}"
    return command


def _move_path(path: Path, old: Path, new: Path) -> Path | None:
    """Return the new path of `path` after `old` was moved to `new`; None if `path` did not move with it.

    If `old` and `new` end in the same names, a folder above `old` was moved, with everything in it.
    """
    while old != new and old.name == new.name:
        old = old.parent
        new = new.parent
    return new / path.relative_to(old) if path.is_relative_to(old) else None


def record_plan(path: Path, units: Mapping[str, str]) -> None:
    """Write the plan of this process's command; units: as in `WorkPlan`."""
    plan = WorkPlan(current_command(), dict(units), str(Path.cwd()), str(path.parent.resolve()))
    store.write_json(path, asdict(plan))


def read_command(path: Path) -> str:
    """Return the command that continues the work of a plan's file, as `command_here`; "" if there is no plan."""
    plan = store.read_optional_record(path, WorkPlan)
    if plan is None:
        return ""
    return command_here(plan.command, plan.working_directory, plan.directory, path.parent)


def remove_plan(path: Path) -> None:
    """Remove the plan of finished work and the recorded size of its array; a later array may have another size."""
    path.unlink(missing_ok=True)
    (path.parent / ARRAY_FILE).unlink(missing_ok=True)


@contextmanager
def recorded_plan(path: Path, units: Mapping[str, str]) -> Iterator[None]:
    """Write a plan, if it has any units, before the block runs, and call `remove_plan` if the block succeeds.

    If the block raises `AlbertError`, and the output directory is new and contains nothing but the plan, both are
    removed. If the block rejects the command with `BusyError` or `ConfigError` in a directory that existed before, the
    directory's earlier plan is restored; without an earlier plan, the new plan is removed.
    """
    out = path.parent
    is_new = not out.exists()
    previous = path.read_bytes() if path.is_file() else None
    if units and (is_new or out.is_dir()):  # if `out` is a file, the block raises an error
        record_plan(path, units)
    try:
        yield
    except AlbertError as error:
        if is_new and list(out.glob("*")) == [path]:
            path.unlink()
            out.rmdir()
        elif isinstance(error, BusyError | ConfigError) and not is_new and out.is_dir():
            if previous is None:
                path.unlink(missing_ok=True)
            else:
                store.write_bytes(path, previous)
        raise
    remove_plan(path)


def list_plan_files(folder: Path) -> list[Path]:
    """Return the files of the plans in a folder; several experiments may share a directory."""
    return sorted(folder.glob(f"{Path(PLAN_FILE).stem}*.json"))


def read_plans(directory: Path, folders: Sequence[Path]) -> list[WorkPlan]:
    """Read all plans in an output directory and below it, with the names of the units relative to `directory`.

    The commands are as `command_here` returns them. The plan of a command that works on a unit of another plan is left
    out. folders: the directory and the folders below it, each before its subfolders (`store.walk_folders`).
    """
    plans: list[WorkPlan] = []
    names: set[str] = set()  # of the units of all plans
    for folder in folders:
        prefix = PurePosixPath(folder.relative_to(directory).as_posix())
        if any(path.as_posix() in names for path in (prefix, *prefix.parents)):
            continue
        for path in list_plan_files(folder):
            plan = store.read_optional_record(path, WorkPlan)
            if plan is None:  # the command has just finished, or a network file system shows its plan for a while
                continue
            units = {(prefix / name).as_posix(): title for name, title in plan.units.items()}
            command = command_here(plan.command, plan.working_directory, plan.directory, folder)
            plans.append(WorkPlan(command, units))
            names |= units.keys()
    return plans


@contextmanager
def locked_unit(lock_directory: Path) -> Iterator[None]:
    """Lock a unit while the block works on it, and write a note with the machine and, if the block fails, the error.

    Raises `LockedError` if another process has locked the unit.
    """
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
    """Read the note on a unit; return an empty one if no process has worked on it."""
    return store.read_optional_record(lock_directory / _NOTE_FILE, UnitNote) or UnitNote()
