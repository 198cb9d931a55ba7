"""`albert status`: the state of the work in a directory, whatever process of whatever machine does it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from typing_extensions import TypedDict

from albert_cli import store
from albert_cli.errors import CheckpointError, InputError

State = Literal["done", "running", "failed", "interrupted", "remaining"]
_STATES: tuple[State, ...] = ("done", "running", "failed", "interrupted", "remaining")
_PLAN = "plan.json"  # the plan of an unfinished `albert data`
_TASK_LOCKS = ".tasks"
_MAX_NAMES = 5  # of finished and remaining units, which may be thousands


class _RunStatus(TypedDict, total=False):
    state: str
    step: int
    total_steps: int
    message: str
    host: str
    command: str


class _PlanNames(TypedDict):
    names: list[str]


@dataclass(frozen=True)
class WorkUnitStatus:
    """The state of one unit of work: a run, a shard task, or a stage of an experiment."""

    name: str
    state: State
    detail: str = ""
    command: str = ""  # continues it


@dataclass(frozen=True)
class DirectoryStatus:
    """The state of all units of work below a directory."""

    directory: str
    units: list[WorkUnitStatus]

    @property
    def counts(self) -> dict[str, int]:
        """The number of units by state."""
        counted = Counter(unit.state for unit in self.units)
        return {state: counted[state] for state in _STATES if counted[state]}

    @property
    def is_finished(self) -> bool:
        """True if no unit is left to do."""
        return set(self.counts) <= {"done"}

    def as_json(self) -> dict[str, object]:
        """Return the status as `--json` prints it."""
        return {"directory": self.directory, "counts": self.counts, "units": [asdict(unit) for unit in self.units]}

    def as_text(self) -> str:
        """Return the counts, the units that need attention, and the commands that continue them."""
        counts = ", ".join(f"{count:,} {state}" for state, count in self.counts.items())
        lines = [f"{self.directory}: {counts}"]
        for state in _STATES:
            units = [unit for unit in self.units if unit.state == state]
            shown = units if state in ("running", "failed", "interrupted") else units[:_MAX_NAMES]
            lines += [f"  {state:<11}  {unit.name}  {unit.detail}".rstrip() for unit in shown]
            if len(shown) < len(units):
                lines.append(f"  {state:<11}  and {len(units) - len(shown):,} more")
        commands = dict.fromkeys(u.command for u in self.units if u.command and u.state in ("failed", "interrupted"))
        if commands:
            lines += ["to continue:", *(f"  {command}" for command in commands)]
        elif not self.is_finished:
            lines.append("to continue: run the command that started it again; it does what is remaining")
        return "\n".join(lines)


def read_status(directory: Path) -> DirectoryStatus:
    """Return the state of all units of work below a directory; raise `InputError` if there is none."""
    if not directory.is_dir():
        raise InputError(f"{directory}: no such directory", "check the path")
    units = [*_shard_tasks(directory), *_runs(directory), *_stages(directory)]
    if not units and store.read_manifest(directory) is not None:
        units = [WorkUnitStatus(".", "done")]
    if not units:
        raise InputError(f"{directory}: no work of albert", "name an output directory of data, pretrain, eval, …")
    return DirectoryStatus(str(directory), units)


def _shard_tasks(directory: Path) -> Iterator[WorkUnitStatus]:
    """Yield the tasks of an unfinished `albert data`."""
    plan = directory / _PLAN
    if not plan.is_file():
        return
    for name in store.read_record(plan, _PlanNames)["names"]:
        if (directory / "shards" / name / store.MANIFEST).is_file():
            yield WorkUnitStatus(name, "done")
        elif store.is_locked(directory / _TASK_LOCKS / name):
            yield WorkUnitStatus(name, "running")
        else:
            yield WorkUnitStatus(name, "remaining")


def _runs(directory: Path) -> Iterator[WorkUnitStatus]:
    """Yield the training runs, which record their own status."""
    for path in sorted(directory.rglob("status.json")):
        try:
            status = store.read_record(path, _RunStatus)
        except CheckpointError as error:
            yield WorkUnitStatus(_relative(path.parent, directory), "failed", error.message)
            continue
        state = status.get("state", "")
        progress = f"step {status.get('step', 0):,} of {status.get('total_steps', 0):,}"
        host = f" on {status['host']}" if status.get("host") else ""
        name = _relative(path.parent, directory)
        command = status.get("command", "")
        if state == "done":
            yield WorkUnitStatus(name, "done", progress)
        elif state in ("starting", "running"):
            if store.is_locked(path.parent):
                yield WorkUnitStatus(name, "running", f"{progress}{host}", command)
            else:
                yield WorkUnitStatus(name, "interrupted", f"{progress}; its process{host} was killed", command)
        else:
            detail = f"{progress}: {state}: {status.get('message', '')}".rstrip(": ")
            yield WorkUnitStatus(name, "interrupted" if state == "interrupted" else "failed", detail, command)


def _stages(directory: Path) -> Iterator[WorkUnitStatus]:
    """Yield the finished stages of experiments."""
    for path in sorted(directory.glob("stages/*.json")):
        yield WorkUnitStatus(f"stages/{path.stem}", "done")


def _relative(path: Path, directory: Path) -> str:
    return path.relative_to(directory).as_posix()
