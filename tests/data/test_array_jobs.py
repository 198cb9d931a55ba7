from __future__ import annotations

import pytest

from albert_cli.data.array_jobs import parse_array_job
from albert_cli.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "environment", "expected"),
    [
        (None, {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_COUNT": "2"}, None),
        ("3/8", {}, (3, 8)),
        ("auto", {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "16"}, (6, 16)),
        ("auto", {"JOB_COMPLETION_INDEX": "0", "JOB_COMPLETIONS": "4"}, (0, 4)),
    ],
)
def test_parse_array_job_reads_option_and_environment(
    text: str | None, environment: dict[str, str], expected: object
) -> None:
    assert parse_array_job(text, environment) == expected


@pytest.mark.parametrize(
    ("text", "environment", "message"),
    [
        ("8/8", {}, "job 8 of 8 does not exist"),
        ("half", {}, "not of the form I/N"),
        ("auto", {}, "not a job of an array"),
        ("auto", {"JOB_COMPLETION_INDEX": "0"}, "JOB_COMPLETIONS is not set"),
        ("auto", {"SLURM_ARRAY_TASK_ID": "x", "SLURM_ARRAY_TASK_COUNT": "2"}, "--task auto"),
    ],
)
def test_parse_array_job_rejects_impossible_jobs(text: str, environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_array_job(text, environment)
