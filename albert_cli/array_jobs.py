"""Divide work among the jobs of a Slurm or Kubernetes array (`--task`).

A job's part of the work depends on its index and on the number of jobs. If only some jobs of a Slurm array are
submitted again, Slurm reports the number of these jobs. The first submission therefore records the numbering of the
whole array in the output directory.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from albert_cli import console, store
from albert_cli.errors import ConfigError, LockedError

T = TypeVar("T")
SECONDS_BETWEEN_ATTEMPTS = 10  # of a job to get a lock or to find work that it can do
ARRAY_FILE = ".array.json"  # the recorded numbering, in the output directory until the work is finished


@dataclass(frozen=True)
class ArrayJob:
    """A job of an array: its index, from 0, and the number of jobs in the array."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def select(self, units: Sequence[T], size: Callable[[T], int] = lambda unit: 0) -> list[T]:
        """Return this job's part of the units of work.

        The units are dealt out to the jobs in turn, the largest first, so that all jobs take about the same time.
        size: returns the amount of work in a unit, in any measure; by default all units have the same size.
        """
        return sorted(units, key=lambda unit: -size(unit))[self.index :: self.count]


@dataclass(frozen=True)
class _ArrayNumbering:
    """The numbering of a Slurm array: the first number, the step between two numbers, and the number of jobs."""

    first: int
    step: int
    count: int

    def index(self, number: int) -> int | None:
        """Return the index from 0 of the job with this number, None if the array has no such job."""
        index, remainder = divmod(number - self.first, self.step)
        if remainder != 0 or not 0 <= index < self.count:
            return None
        return index


def parse_array_job(text: str | None, environment: Mapping[str, str], out: Path) -> ArrayJob | None:
    """Parse `--task`: `I/N`, or `auto`, which reads the scheduler's variables; None: no `--task`.

    out: the output directory, which records the numbering of a Slurm array. Raises `ConfigError` if the value or a
    variable is invalid.
    """
    if text is None:
        return None
    if text == "auto":
        return _read_environment(environment, out)
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None:
        raise ConfigError(f"--task {text}: not of the form I/N", "use 0/8 to 7/8 for eight jobs, or auto")
    return _make_job(int(match[1]), int(match[2]), text)


def _make_job(index: int, count: int, text: str) -> ArrayJob:
    """Return the job; raise `ConfigError` if its index is not below the count. text: the value of `--task`."""
    if not 0 <= index < count:
        raise ConfigError(f"--task {text}: job {index} of {count} does not exist", "jobs are numbered from 0")
    return ArrayJob(index, count)


def _read_environment(environment: Mapping[str, str], out: Path) -> ArrayJob:
    """Return the job that the variables of Slurm or Kubernetes describe; raise `ConfigError` if they are wrong."""
    if "SLURM_ARRAY_TASK_ID" in environment:
        return _read_slurm(environment, out)
    if "JOB_COMPLETION_INDEX" in environment:
        index = _read_integer(environment, "JOB_COMPLETION_INDEX")
        return _make_job(index, _read_integer(environment, "JOB_COMPLETIONS"), "auto")
    raise ConfigError(
        "--task auto: not a job of an array",
        "set SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT, or JOB_COMPLETION_INDEX and JOB_COMPLETIONS; "
        "or use --task I/N",
    )


def _read_integer(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return the value of a variable, or the default if it is not set.

    Raises `ConfigError` if the value is not an integer, or if there is neither a value nor a default.
    """
    text = environment.get(name)
    if text is None:
        if default is None:
            raise ConfigError(f"--task auto: {name} is not set", "set it, or use --task I/N")
        return default
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"--task auto: {name}={text} is not a number", "correct it, or use --task I/N") from None


def _read_slurm(environment: Mapping[str, str], out: Path) -> ArrayJob:
    """Return the job that Slurm's variables describe, as a job of the recorded array if it belongs to that array.

    Without a record, the variables must describe the whole array, which is then recorded. They cannot describe an array
    such as `--array=1,5,7`, whose numbers have no regular step, so this raises `ConfigError`.
    """
    number = _read_integer(environment, "SLURM_ARRAY_TASK_ID")
    first = _read_integer(environment, "SLURM_ARRAY_TASK_MIN", 0)
    step = _read_integer(environment, "SLURM_ARRAY_TASK_STEP", 1)
    count = _read_integer(environment, "SLURM_ARRAY_TASK_COUNT")
    submitted_numbering = _ArrayNumbering(first, step, count)
    path = out / ARRAY_FILE
    if path.is_file():
        recorded_numbering = store.read_record(path, _ArrayNumbering)
        recorded_index = recorded_numbering.index(number)
        if count <= recorded_numbering.count and recorded_index is not None:
            return ArrayJob(recorded_index, recorded_numbering.count)
    last_if_regular = first + step * (count - 1)  # the last number of an array with a regular step
    last = _read_integer(environment, "SLURM_ARRAY_TASK_MAX", last_if_regular)
    index = submitted_numbering.index(number)
    if last != last_if_regular or index is None:
        message = (
            f"--task auto: the numbers of the {count} submitted jobs have no regular step, "
            f"so the index of job {number} is unknown"
        )
        raise ConfigError(message, "for an array of N jobs use --task I/N, where I is the job's number counted from 0")
    store.write_json(path, asdict(submitted_numbering))
    return ArrayJob(index, count)


def retry_while_locked(action: Callable[[], T]) -> T:
    """Call an action again as long as another job of the array holds a lock that it needs; return its result."""
    while True:
        try:
            return action()
        except LockedError as error:
            console.info(f"{error.message}: trying again in {SECONDS_BETWEEN_ATTEMPTS} s")
            time.sleep(SECONDS_BETWEEN_ATTEMPTS)
