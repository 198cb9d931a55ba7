"""Tests of `albert eval` and `albert search` as array jobs, with --task."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from albert_cli import store
from albert_cli.evaluation import parallel
from tests.helpers.checkpoints import untrained
from tests.helpers.command import QUICK, albert, write_table
from tests.helpers.processes import start
from tests.helpers.task_runs import QUICK as TASK_SETTINGS
from tests.helpers.task_runs import SHAPE


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table to fine-tune on."""
    return write_table(tmp_path_factory.mktemp("table") / "table")


def test_eval_jobs_give_the_scores_of_one_process(encoder: Path, table: Path, tmp_path: Path) -> None:
    call = ("eval", "table", "--checkpoint", encoder, "--data", table, "--runs", 3, "--no-baselines", *QUICK, "--json")
    expected = json.loads(albert(*call, "--out", tmp_path / "one-process").out)
    out = tmp_path / "out"
    first = json.loads(albert(*call, "--out", out, "--task", "0/2").out)
    assert first == {"job": "0/2", "runs_finished": 2, "runs_total": 3}
    weights = (out / "run-0" / "model.safetensors").read_bytes()
    last = json.loads(albert(*call, "--out", out, "--task", "1/2").out)
    assert last["scores_by_seed"] == expected["scores_by_seed"]
    repeated = json.loads(albert(*call, "--out", out).out)
    assert repeated["scores_by_seed"] == expected["scores_by_seed"]
    assert (out / "run-0" / "model.safetensors").read_bytes() == weights
    assert (tmp_path / "one-process" / "run-0" / "model.safetensors").read_bytes() == weights


def test_search_jobs_give_the_result_of_one_process(encoder: Path, table: Path, tmp_path: Path) -> None:
    call = ("search", "table", "lr=1e-4,1e-3", "--checkpoint", encoder, "--data", table, "--runs", 1, *QUICK, "--json")
    expected = json.loads(albert(*call, "--out", tmp_path / "one-process").out)
    out = tmp_path / "out"
    assert json.loads(albert(*call, "--out", out, "--task", "1/2").out)["runs_finished"] == 1
    last = json.loads(albert(*call, "--out", out, "--task", "0/2").out)
    assert [point["median"] for point in last["points"]] == [point["median"] for point in expected["points"]]


@pytest.mark.parametrize("command", [("eval", "table", "--runs", 2), ("search", "table", "lr=1e-4,1e-3", "--runs", 1)])
def test_runs_of_other_data_do_not_join_an_array(
    encoder: Path, table: Path, tmp_path: Path, command: tuple[object, ...]
) -> None:
    data = tmp_path / "table"
    shutil.copytree(table, data)
    out = tmp_path / "out"
    call = (*command, "--checkpoint", encoder, "--data", data, "--out", out, *QUICK)
    albert(*call, "--task", "1/2")
    plan = (out / ".work.json").read_bytes()
    with (data / "dev.tsv").open("a") as stream:
        stream.write("bade fi\tgood\n")
    for parallel_options in (("--task", "0/2"), ("--nproc", 2), ()):
        rejected = albert(*call, *parallel_options, expect=2)
        assert "was started with other data" in rejected.err
        assert len(list(out.rglob("recipe.toml"))) == 1 and (out / ".work.json").read_bytes() == plan


def test_runs_of_another_checkpoint_do_not_join_an_array(
    encoder: Path, table: Path, tiny_vocabulary: Path, tmp_path: Path
) -> None:
    other = untrained(tmp_path / "other", replace(SHAPE, initializer_range=0.2), tiny_vocabulary)
    call = ("eval", "table", "--data", table, "--out", tmp_path / "out", "--runs", 2, *QUICK)
    albert(*call, "--checkpoint", encoder, "--task", "0/2")
    rejected = albert(*call, "--checkpoint", other, "--task", "1/2", expect=2)
    assert "run-0: was started with another checkpoint" in rejected.err
    assert not (tmp_path / "out" / "run-1").exists()


def test_glue_jobs_split_the_runs_of_all_tasks(encoder: Path, inference: Path, tmp_path: Path) -> None:
    settings = [word for text in TASK_SETTINGS for word in ("-s", text)]
    for task in ("MNLI", "RTE"):
        shutil.copytree(inference / task, tmp_path / "data" / task)
    call = ["eval", "glue", "--checkpoint", encoder, "--data", tmp_path / "data", "--runs", 2, "--no-baselines"]
    call += ["--json", "--device", "cpu", *settings]
    out = tmp_path / "out"
    first = json.loads(albert(*call, "--out", out, "--task", "1/2").out)
    assert first == {"job": "1/2", "runs_finished": 3, "runs_total": 4}, "both runs of MNLI and one of RTE"
    last = json.loads(albert(*call, "--out", out, "--task", "0/2").out)
    expected = json.loads(albert(*call, "--out", tmp_path / "one-process").out)
    assert list(last["tasks"]) == list(expected["tasks"]) == ["mnli", "rte"]
    assert [task["all_scores"] for task in last["tasks"].values()] == [
        task["all_scores"] for task in expected["tasks"].values()
    ]


def retry_soon() -> None:
    """Shorten the wait until a job checks the runs of other jobs again."""
    parallel._SECONDS_BETWEEN_ATTEMPTS = 0.1


def test_glue_job_waits_for_a_run_of_another_job(encoder: Path, inference: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    call = ["eval", "glue", "--checkpoint", encoder, "--data", inference, "--runs", 1, "--no-baselines", "--json"]
    call += ["--device", "cpu", *(word for text in TASK_SETTINGS for word in ("-s", text)), "--out", out]
    with store.lock(out / "mnli" / "run-0"):
        job = start(tmp_path / "log", *call, "--task", "1/3", run_first=retry_soon)
        job.wait_until(lambda: "waiting for 1 run of other jobs" in job.printed_text())
    assert job.wait() == 0, job.printed_text()
    assert (out / "mnli" / "run-0" / "results.json").is_file()


def test_later_array_of_another_size_trains_all_runs(
    encoder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ("eval", "table", "--checkpoint", encoder, "--data", table, "--no-baselines", *QUICK, "--json")
    for index, count in ((0, 2), (1, 2), (0, 1)):  # the second array has one job, and trains more seeds
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", str(index))
        monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", str(count))
        ended = albert(*call, "--task", "auto", "--out", tmp_path / "out", "--runs", 2 if count == 2 else 4)
    assert list(json.loads(ended.out)["scores_by_seed"]) == ["0", "1", "2", "3"]
