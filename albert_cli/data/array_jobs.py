"""Divide a build among the jobs of a SLURM or Kubernetes array (`--task`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar

from albert_cli.errors import ConfigError
from albert_cli.text.work_units import WorkUnit

ArrayJob: TypeAlias = tuple[int, int] | None  # (index from 0, number of jobs); None: no array
_WorkUnitT = TypeVar("_WorkUnitT", bound=WorkUnit)


def parse_array_job(text: str | None, environment: Mapping[str, str]) -> ArrayJob:
    """Parse `--task`: `I/N` or `auto`, which reads the scheduler's variables; raise `ConfigError` if it is invalid."""
    if text is None:
        return None
    if text == "auto":
        index, count = _read_array_variables(environment)
    else:
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None:
            raise ConfigError(f"--task {text}: not of the form I/N", "use 0/8 to 7/8 for eight jobs, or auto")
        index = int(match[1])
        count = int(match[2])
    if not 0 <= index < count:
        raise ConfigError(f"--task {text}: job {index} of {count} does not exist", "jobs are numbered from 0")
    return index, count


def _read_array_variables(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return this job's index, from 0, and the number of jobs, from SLURM's or Kubernetes' variables."""
    try:
        if "SLURM_ARRAY_TASK_ID" in environment:
            first = int(environment.get("SLURM_ARRAY_TASK_MIN", 0))
            step = int(environment.get("SLURM_ARRAY_TASK_STEP", 1))
            index = (int(environment["SLURM_ARRAY_TASK_ID"]) - first) // step
            return index, int(environment["SLURM_ARRAY_TASK_COUNT"])
        if "JOB_COMPLETION_INDEX" in environment:
            return int(environment["JOB_COMPLETION_INDEX"]), int(environment["JOB_COMPLETIONS"])
    except KeyError as error:
        raise ConfigError(f"--task auto: {error.args[0]} is not set", "set it, or use --task I/N") from None
    except ValueError as error:
        raise ConfigError(f"--task auto: {error}", "correct the variable, or use --task I/N") from None
    raise ConfigError(
        "--task auto: not a job of an array",
        "set SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT, or JOB_COMPLETION_INDEX and JOB_COMPLETIONS; "
        "or use --task I/N",
    )


def select_array_job(units: Sequence[_WorkUnitT], index: int, count: int) -> list[_WorkUnitT]:
    """Return every `count`-th work unit, the largest first, so that all jobs take about the same time.

    Raises `ConfigError` if a unit is stdin, which several jobs cannot read.
    """
    if any(unit.is_stream for unit in units):
        raise ConfigError("several jobs cannot read stdin", "write it to a file first, or omit --task")
    return sorted(units, key=lambda unit: -unit.size)[index::count]
