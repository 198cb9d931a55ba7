"""Describe the state of the work in an output directory, on whichever machines it runs (`albert status`).

The state is read from the files in the directory: the plans of unfinished commands (`work_plan`), the locks and notes
on their units, the `status.json` of training runs, and the records of experiments' stages.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from typing_extensions import TypedDict

from albert_cli import store
from albert_cli.errors import AlbertError, ConfigError, InputError
from albert_cli.evaluation.output import CONTROLS_FOLDER
from albert_cli.results import RESULTS
from albert_cli.work_plan import (
    PLAN_FILE,
    STAGE_LOCKS,
    UNIT_LOCKS,
    RunStatus,
    UnitNote,
    command_here,
    list_plan_files,
    read_note,
    read_plans,
)

State = Literal["done", "running", "failed", "interrupted", "remaining"]
_STATES: tuple[State, ...] = ("done", "running", "failed", "interrupted", "remaining")
_STATES_TO_ATTEND_TO = ("running", "failed", "interrupted")  # all units in these states are shown
_MAX_SHOWN = 5  # units that are shown in a state that needs no attention; there may be thousands


class _SeedsResult(TypedDict, total=False):
    """The entry on diverged seeds in a result; a point of a search also has its directory."""

    diverged: dict[str, str]  # the reason by seed
    directory: str


class _RunsResult(_SeedsResult, total=False):
    """The entries on diverged seeds in the `results.json` of an evaluation or a search."""

    controls: dict[str, _SeedsResult]
    points: list[_SeedsResult]


@dataclass(frozen=True)
class WorkUnitStatus:
    """The state of one unit of work: a run, a work unit of `albert data`, or a stage of an experiment."""

    name: str  # the unit's directory, relative to the output directory
    state: State
    detail: str = ""  # the unit's title, progress or error
    command: str = ""  # the command that continues the unit


@dataclass(frozen=True)
class DirectoryStatus:
    """The state of all units of work below a directory, and the commands that do what remains."""

    directory: str
    units: list[WorkUnitStatus]
    commands: list[str]

    @property
    def counts(self) -> dict[str, int]:
        """The number of units by state."""
        counted = Counter(unit.state for unit in self.units)
        return {state: counted[state] for state in _STATES if counted[state]}

    @property
    def is_finished(self) -> bool:
        """True if every unit is done and no plan is left; a command that still merges or reports has a plan."""
        return set(self.counts) <= {"done"} and not self.commands

    def to_json(self) -> dict[str, object]:
        """Return the status as `--json` prints it."""
        units = [asdict(unit) for unit in self.units]
        return {"directory": self.directory, "counts": self.counts, "units": units, "commands": self.commands}

    def to_text(self) -> str:
        """Return the counts, the units that need attention, and the commands that continue them."""
        counts = ", ".join(f"{count:,} {state}" for state, count in self.counts.items())
        lines = [f"{self.directory}: {counts}"]
        for state in _STATES:
            units = [unit for unit in self.units if unit.state == state]
            n_shown = len(units) if state in _STATES_TO_ATTEND_TO else _MAX_SHOWN
            lines += [f"  {state:<11}  {unit.name}  {unit.detail}".rstrip() for unit in units[:n_shown]]
            if n_shown < len(units):
                lines.append(f"  {state:<11}  and {len(units) - n_shown:,} more")
        if self.commands:
            lines += ["to continue:", *(f"  {command}" for command in self.commands)]
        return "\n".join(lines)


def read_status(directory: Path) -> DirectoryStatus:
    """Read the state of all units of work in an output directory; raise `InputError` if there is no work."""
    if not directory.is_dir():
        raise InputError(*store.no_directory_message(directory, "check the path"))
    folders = store.walk_folders(directory)
    plans = read_plans(directory, folders)
    runs = {unit.name: unit for unit in _iter_runs(directory, folders)}
    titles = {name: title for plan in plans for name, title in plan.units.items()}
    planned = {name: runs.get(name) or _read_unit(directory, name) for name in titles}
    running = [unit.name for unit in runs.values() if unit.state == "running"]
    running_folders = {parent.as_posix() for name in running for parent in PurePosixPath(name).parents}
    for name, unit in planned.items():
        if unit.state == "remaining" and name in running_folders:  # a part of the unit is running
            planned[name] = replace(unit, state="running")
    # A stage is finished if it has a record. The stages of a finished experiment are in no plan.
    planned |= {name: WorkUnitStatus(name, "done") for name in _iter_finished_stages(directory, folders)}
    planned = {name: _add_title(unit, titles.get(name, "")) for name, unit in planned.items()}
    # A run in the directory of a planned unit is a part of the unit.
    runs = {name: unit for name, unit in runs.items() if not _is_below(name, planned)}
    units = list((runs | planned).values())
    if not units and (store.read_manifest(directory) is not None or (directory / RESULTS).is_file()):
        units = [WorkUnitStatus(".", "done")]
    if not units:
        raise InputError(f"{directory}: no work of albert", "name an output directory of data, pretrain, eval, …")
    commands = [plan.command for plan in plans]  # a finished command removes its plan, so these are unfinished
    # The command of a plan does the plan's units again, so only the other units need commands of their own.
    stopped_units = [unit for unit in units if unit.name not in titles and unit.state in ("failed", "interrupted")]
    commands += [unit.command for unit in stopped_units if unit.command]
    return DirectoryStatus(str(directory), units, list(dict.fromkeys(commands)))


def _read_unit(directory: Path, name: str) -> WorkUnitStatus:
    """Read the state of a unit that has no `status.json` from the unit's manifest or result, its lock and its note."""
    path = directory / name
    # An evaluation has no manifest; until it is finished, it has a plan.
    has_result = (path / RESULTS).is_file() and not (path / PLAN_FILE).is_file()
    if has_result or (path / store.MANIFEST).is_file():
        return WorkUnitStatus(name, "done")
    # The command determines which of these directories has the lock and the note of its units.
    lock_directories = [path, path.parent / STAGE_LOCKS / path.name]
    lock_directories += [directory / parent / UNIT_LOCKS / path.name for parent in PurePosixPath(name).parents]
    notes = [note for note in map(read_note, lock_directories) if note.host]
    note = notes[0] if notes else UnitNote()
    if any(map(store.is_locked, lock_directories)):
        detail = f"on {note.host}" if note.host else ""
        return WorkUnitStatus(name, "running", detail)
    if note.error:
        return WorkUnitStatus(name, "failed", f"on {note.host}: {note.error}")
    return WorkUnitStatus(name, "remaining")


def _add_title(unit: WorkUnitStatus, title: str) -> WorkUnitStatus:
    """Put a title, if there is one, in front of the unit's detail."""
    return replace(unit, detail="  ".join(filter(None, (title, unit.detail))))


def _is_below(name: str, planned: Mapping[str, WorkUnitStatus]) -> bool:
    """Return True if a directory is inside the directory of a planned unit."""
    return any(parent.as_posix() in planned for parent in PurePosixPath(name).parents)


def _iter_finished_stages(directory: Path, folders: Sequence[Path]) -> Iterator[str]:
    """Yield the names, relative to `directory`, of the finished stages of all experiments in `folders`."""
    for folder in folders:
        for path in sorted(folder.glob("stages/*.json")):
            yield (folder / "stages" / path.stem).relative_to(directory).as_posix()


def _iter_runs(directory: Path, folders: Sequence[Path]) -> Iterator[WorkUnitStatus]:
    """Yield the state of each training run in `folders`, named relative to `directory`.

    A folder that a command has locked counts as a run if it has no plan: a run first writes `status.json` when its
    training begins.
    """
    for folder in folders:
        name = folder.relative_to(directory).as_posix()
        if not os.path.lexists(folder / "status.json"):
            if store.is_locked(folder) and not list_plan_files(folder):
                yield _read_unit(directory, name)
            continue
        try:
            yield _describe_run(folder, name)
        except AlbertError as error:
            yield WorkUnitStatus(name, "failed", error.message)


def _describe_run(run: Path, name: str) -> WorkUnitStatus:
    """Return the state of a run from its `status.json` and its lock.

    A locked run is running: a resumed run replaces the `status.json` of its previous process when its training begins.
    A diverged run and one with wrong settings (exit code 2) have no command, because it would fail again.
    """
    status = store.read_record(run / "status.json", RunStatus)
    state = status.state
    is_locked = state != "done" and store.is_locked(run)
    is_killed = state in ("starting", "running") and not is_locked  # before it could change the state
    step = status.step
    checkpoints = store.saved_steps(run)
    if is_killed and checkpoints:
        step = store.step_number(checkpoints[-1])  # the run resumes from it, not from its last step
    progress = f"step {step:,} of {status.total_steps:,}"
    host = f" on {status.host}" if status.host else ""
    command = command_here(status.command, status.working_directory, status.directory, run)
    if state == "diverged" or status.exit_code == ConfigError.exit_code:
        command = ""
    if state == "done":
        return WorkUnitStatus(name, "done", progress)
    if is_killed:
        when = "" if checkpoints else " before its first checkpoint"
        return WorkUnitStatus(name, "interrupted", f"{progress}; its process{host} was killed{when}", command)
    if is_locked:
        if state != "running":  # then it is the host of the previous process
            host = ""
        return WorkUnitStatus(name, "running", f"{progress}{host}", command)
    detail = f"{progress}: {state}: {status.message}".rstrip(": ")
    if state == "interrupted":
        return WorkUnitStatus(name, "interrupted", detail, command)
    if state == "diverged" and _is_in_result(run):
        return WorkUnitStatus(name, "done", detail)
    return WorkUnitStatus(name, "failed", detail, command)


def _is_in_result(run: Path) -> bool:
    """Return True if the result of the run's evaluation, control or search point lists the seed as diverged."""
    run = store.resolve_dots(run)
    folder = run.parent.resolve()  # of an evaluation, a control or a point
    control: _SeedsResult = {}
    if folder.parent.name == CONTROLS_FOLDER:
        control = _read_runs_result(folder.parent.parent).get("controls", {}).get(folder.name, {})
    points = _read_runs_result(folder.parent).get("points", [])
    points = [point for point in points if point.get("directory") == folder.name]
    seed = run.name.removeprefix("run-")
    return any(seed in result.get("diverged", {}) for result in (_read_runs_result(folder), control, *points))


def _read_runs_result(directory: Path) -> _RunsResult:
    """Read the `results.json` of an evaluation or a search; return an empty result if there is no such file."""
    return store.read_optional_record(directory / RESULTS, _RunsResult) or {}
