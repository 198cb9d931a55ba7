"""Tests of `albert_cli.array_jobs`."""

from __future__ import annotations

from pathlib import Path

import pytest

from albert_cli.array_jobs import ArrayJob, parse_array_job
from albert_cli.errors import ConfigError


def slurm(number: int, numbers: list[int]) -> dict[str, str]:
    """Return Slurm's variables of a job of `sbatch --array=NUMBERS`."""
    step = numbers[1] - numbers[0] if len(numbers) > 1 and numbers[1] - numbers[0] == numbers[-1] - numbers[-2] else 1
    return {
        "SLURM_ARRAY_TASK_ID": str(number),
        "SLURM_ARRAY_TASK_MIN": str(numbers[0]),
        "SLURM_ARRAY_TASK_MAX": str(numbers[-1]),
        "SLURM_ARRAY_TASK_STEP": str(step),
        "SLURM_ARRAY_TASK_COUNT": str(len(numbers)),
    }


@pytest.mark.parametrize(
    ("text", "environment", "expected"),
    [
        (None, slurm(1, [0, 1]), None),
        ("3/8", {}, ArrayJob(3, 8)),
        ("auto", slurm(7, list(range(1, 17))), ArrayJob(6, 16)),
        ("auto", slurm(4, [0, 2, 4, 6]), ArrayJob(2, 4)),
        ("auto", {"JOB_COMPLETION_INDEX": "0", "JOB_COMPLETIONS": "4"}, ArrayJob(0, 4)),
    ],
)
def test_parse_reads_option_and_environment(
    text: str | None, environment: dict[str, str], expected: object, tmp_path: Path
) -> None:
    assert parse_array_job(text, environment, tmp_path / "out") == expected


@pytest.mark.parametrize("numbers", [[7], [3, 7], [3, 7, 12], [4, 5, 6]])
def test_parse_repeated_jobs_counts_the_whole_array(numbers: list[int], tmp_path: Path) -> None:
    parse_array_job("auto", slurm(0, list(range(16))), tmp_path)
    for number in numbers:
        assert parse_array_job("auto", slurm(number, numbers), tmp_path) == ArrayJob(number, 16)


def test_parse_larger_array_replaces_the_saved_numbering(tmp_path: Path) -> None:
    parse_array_job("auto", slurm(0, list(range(4))), tmp_path)
    assert parse_array_job("auto", slurm(5, list(range(8))), tmp_path) == ArrayJob(5, 8)
    assert parse_array_job("auto", slurm(3, [3]), tmp_path) == ArrayJob(3, 8)


@pytest.mark.parametrize(
    ("text", "environment", "message"),
    [
        ("8/8", {}, "job 8 of 8 does not exist"),
        ("half", {}, "not of the form I/N"),
        ("auto", {}, "not a job of an array"),
        ("auto", {"JOB_COMPLETION_INDEX": "0"}, "JOB_COMPLETIONS is not set"),
        ("auto", {"SLURM_ARRAY_TASK_ID": "x", "SLURM_ARRAY_TASK_COUNT": "2"}, "SLURM_ARRAY_TASK_ID=x is not a number"),
        ("auto", slurm(3, [3, 7, 12]), "the index of job 3 is unknown"),
    ],
)
def test_parse_rejects_impossible_jobs(text: str, environment: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_array_job(text, environment, tmp_path)


def test_parse_of_an_array_from_1_names_no_index(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_array_job("auto", slurm(8, [1, 2, 8]), tmp_path)  # of the jobs 0/8 to 7/8
    assert "--task I/N" in str(raised.value.hint) and "8/" not in str(raised.value.hint)


def test_select_gives_every_unit_to_one_job() -> None:
    units = [5, 1, 9, 7, 3]
    selected = [ArrayJob(index, 2).select(units, size=lambda unit: unit) for index in range(2)]
    assert selected == [[9, 5, 1], [7, 3]]
