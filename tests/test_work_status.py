"""Tests of `albert_cli.work_status`."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import sys
from pathlib import Path

import pytest

from albert_cli import store, work_plan
from albert_cli.errors import AlbertError, BusyError, ConfigError, InputError
from albert_cli.training.run import check_parents, mark_running, write_run_status
from albert_cli.work_plan import locked_unit, record_plan, recorded_plan
from albert_cli.work_status import read_status
from tests.helpers.command import QUICK, albert, write_table
from tests.helpers.runs import copy_run


def write_status(run: Path, **values: object) -> None:
    store.write_json(run / "status.json", {"step": 5, "total_steps": 20, "host": "node7", **values})


def test_status_of_runs_lists_state_reason_and_command(tmp_path: Path) -> None:
    write_status(tmp_path / "run-0", state="done", step=20)
    write_status(tmp_path / "run-1", state="diverged", message="loss is not finite", command="albert finetune a")
    write_status(tmp_path / "run-2", state="running", command="albert finetune b")
    write_status(tmp_path / "run-3", state="running", command="albert finetune c")
    write_status(tmp_path / "run-4", state="failed", exit_code=2, command="albert finetune d")
    with store.lock(tmp_path / "run-2"):
        text = albert("status", tmp_path).out
        data = json.loads(albert("status", tmp_path, "--json").out)
    assert data["counts"] == {"done": 1, "running": 1, "failed": 2, "interrupted": 1}
    assert "run-2  step 5 of 20 on node7" in text
    assert "run-1  step 5 of 20: diverged: loss is not finite" in text
    assert "run-3  step 5 of 20; its process on node7 was killed" in text
    assert text.endswith("to continue:\n  albert finetune c\n")


def test_status_of_a_killed_run_is_its_newest_checkpoint(finished: Path, tmp_path: Path) -> None:
    run = copy_run(finished, tmp_path)
    write_status(run, state="running", step=33, total_steps=40)
    assert "step 30 of 40; its process on node7 was killed\n" in albert("status", run).out


@pytest.fixture
def build(documents_file: Path, tiny_vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The command of a build with three work units; `sys.argv` has it too, because the plan records it."""
    sources = []
    for number in range(3):
        path = tmp_path / f"{number}.txt"
        path.write_text(f"{documents_file.read_text(encoding='utf-8')}\n\nNumber {number}.", encoding="utf-8")
        sources.append(f"{path}@{number + 1}")
    command = ["data", *sources, "--vocab", tiny_vocabulary, "--out", tmp_path / "out", "--workers", 1]
    monkeypatch.setattr(sys, "argv", ["albert", *map(str, command), "--task", "0/3"])
    return command


def test_status_of_a_build_lists_remaining_units_and_command(build: list[object], tmp_path: Path) -> None:
    albert(*build, "--task", "0/3")
    status = json.loads(albert("status", tmp_path / "out", "--json").out)
    assert status["counts"] == {"done": 1, "remaining": 2}
    assert status["commands"] == [shlex.join(["albert", *map(str, build)])]
    albert(*build)
    status = json.loads(albert("status", tmp_path / "out", "--json").out)
    # A finished build has no plan and counts as one unit.
    assert (status["counts"], status["commands"]) == ({"done": 1}, [])


def test_status_of_a_build_shows_machine_and_reason(build: list[object], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with (tmp_path / "2.txt").open("ab") as file:
        file.write(b"\xff")  # not UTF-8; also makes this unit the largest, which job 0 takes
    albert(*build, "--task", "0/3", expect=3)
    remaining, _ = (unit for unit in read_status(out).units if unit.state == "remaining")
    with locked_unit(out / ".tasks" / Path(remaining.name).name):
        text = albert("status", out).out
    assert f"running      {remaining.name}  on {socket.gethostname()}" in text
    assert re.search(rf"failed       \S+  on {re.escape(socket.gethostname())}: .*2\.txt.*UTF-8", text), text


def test_status_of_an_evaluation_lists_remaining_runs(tmp_path: Path, finished: Path) -> None:
    call = ["eval", "table", "--checkpoint", finished, "--data", write_table(tmp_path / "table"), "--runs", 2, *QUICK]
    albert(*call, "--out", tmp_path / "out", "--no-baselines", "--task", "1/2")
    units = {unit.name: unit.state for unit in read_status(tmp_path / "out").units}
    assert units == {"run-0": "remaining", "run-1": "done"}
    albert(*call, "--out", tmp_path / "out", "--no-baselines")
    assert read_status(tmp_path / "out").is_finished


def test_status_of_an_experiment_lists_stages(tmp_path: Path) -> None:
    titles = {"stages/data-1": "data", "stages/pretrain-2": "sharing=all, seed 0", "stages/task-3": "MRPC"}
    record_plan(tmp_path / ".work-sharing-smoke.json", titles)
    write_status(tmp_path / "stages" / "pretrain-2", state="interrupted")
    write_status(tmp_path / "stages" / "data-1" / "run-0", state="done")
    store.write_json(tmp_path / "stages" / "data-1.json", {})
    status = read_status(tmp_path)
    states = {unit.name: unit.state for unit in status.units}
    assert "interrupted  stages/pretrain-2  sharing=all, seed 0  step 5 of 20" in status.to_text()
    assert states == {"stages/data-1": "done", "stages/pretrain-2": "interrupted", "stages/task-3": "remaining"}


def test_status_of_a_finished_run_is_done(finished: Path) -> None:
    assert json.loads(albert("status", finished, "--json").out)["counts"] == {"done": 1}
    assert "done" in albert("status", finished, "--watch").out


def test_status_rejects_directories_without_work(tmp_path: Path) -> None:
    assert "no work of albert" in albert("status", tmp_path, expect=3).err
    assert "no such directory" in albert("status", tmp_path / "gone", expect=3).err


def test_status_includes_linked_runs_and_broken_records(tmp_path: Path) -> None:
    write_status(tmp_path / "out" / "run-0", state="done", step=20)
    write_status(tmp_path / "scratch" / "run-1", state="failed", message="no memory", command="albert finetune b")
    (tmp_path / "out" / "run-1").symlink_to(tmp_path / "scratch" / "run-1")
    (tmp_path / "out" / "run-2").mkdir()
    (tmp_path / "out" / "run-2" / "status.json").symlink_to("status.json")
    write_status(tmp_path / "out" / "run-3")
    (tmp_path / "out" / "above").symlink_to(tmp_path / "out")
    status = read_status(tmp_path / "out")
    assert status.counts == {"done": 1, "failed": 3}
    assert "run-3/status.json" in status.units[3].detail and "state" in status.units[3].detail
    assert status.commands == ["albert finetune b"]


def test_status_ignores_further_links_to_a_run(tmp_path: Path) -> None:
    write_status(tmp_path / "run-1", state="interrupted", command="albert eval a")
    record_plan(tmp_path / ".work.json", {"run-0": "", "run-1": ""})
    expected = read_status(tmp_path)
    (tmp_path / "last").symlink_to("run-1")
    (tmp_path / "link to a link").symlink_to("last")
    assert read_status(tmp_path) == expected


def test_status_of_a_link_to_a_missing_run_is_an_error(tmp_path: Path) -> None:
    write_status(tmp_path / "rte" / "run-0", state="done", step=20)
    (tmp_path / "mnli").mkdir()
    (tmp_path / "mnli" / "run-0").symlink_to("/nowhere/run-0")
    assert "mnli/run-0: is a broken link" in albert("status", tmp_path, expect=4).err


def test_status_reads_the_plans_of_subfolders(tmp_path: Path) -> None:
    write_status(tmp_path / "pretrain", state="done", step=20)
    write_status(tmp_path / "scores" / "run-0", state="failed", command="albert finetune a")
    record_plan(tmp_path / "scores" / ".work.json", {"run-0": "", "run-1": ""})
    record_plan(tmp_path / "scores" / "run-1" / ".work.json", {"part": ""})  # of a command that works on run-1
    status = read_status(tmp_path)
    assert status.counts == {"done": 1, "failed": 1, "remaining": 1}
    assert len(status.commands) == 1 and status.commands != ["albert finetune a"]


def test_status_of_a_seed_that_counts_as_diverged_is_done(tmp_path: Path) -> None:
    write_status(tmp_path / "run-0", state="done", step=20)
    write_status(tmp_path / "run-1", state="diverged", message="loss is not finite", command="albert eval a")
    assert read_status(tmp_path).counts == {"done": 1, "failed": 1}
    store.write_json(tmp_path / "results.json", {"kind": "evaluation", "diverged": {"1": "step 5"}})
    status = read_status(tmp_path)
    assert (status.counts, status.commands, status.is_finished) == ({"done": 2}, [], True)


@pytest.mark.parametrize(
    ("run", "result"),
    [
        ("controls/random/run-1", {"kind": "eval", "controls": {"random": {"diverged": {"1": "step 5"}}}}),
        ("lr=1/run-1", {"kind": "search", "points": [{"directory": "lr=1", "diverged": {"1": "step 5"}}]}),
    ],
)
def test_status_of_diverged_controls_and_points_is_done(
    run: str, result: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_status(tmp_path / run, state="diverged", message="loss is not finite", command="albert eval a")
    assert not read_status(tmp_path).is_finished
    store.write_json(tmp_path / "results.json", result)
    assert read_status(tmp_path).is_finished
    monkeypatch.chdir(tmp_path / run)
    assert read_status(Path()).is_finished
    store.write_json(tmp_path / "results.json", json.loads(json.dumps(result).replace('"1"', '"0"')))
    assert not read_status(tmp_path).is_finished


@pytest.mark.parametrize("error", [BusyError, ConfigError])
def test_rejected_command_restores_the_plan(error: type[AlbertError], tmp_path: Path) -> None:
    path = tmp_path / ".work.json"
    for previous in (None, {"run-0": "first"}):
        if previous is not None:
            record_plan(path, previous)
        before = path.read_bytes() if path.exists() else None
        with pytest.raises(error), recorded_plan(path, {"run-9": "other"}):
            raise error("was started with another recipe")
        assert (path.read_bytes() if path.exists() else None) == before
    with pytest.raises(InputError), recorded_plan(path, {"run-9": "other"}):
        raise InputError("no such file")
    assert "run-9" in path.read_text(), "the work may continue"


def test_status_finished_stages_of_subfolders_are_done(tmp_path: Path) -> None:
    record_plan(tmp_path / "experiments" / ".work-a.json", {"stages/probe-1": "", "stages/probe-2": ""})
    store.write_json(tmp_path / "experiments" / "stages" / "probe-1.json", {})
    assert read_status(tmp_path).counts == {"done": 1, "remaining": 1}


def test_status_in_another_folder_prints_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my work").mkdir()
    monkeypatch.chdir(tmp_path / "my work")
    monkeypatch.setattr("sys.argv", ["albert", "eval", "rte", "--out", "scores"])
    record_plan(Path("scores/.work.json"), {"run-0": ""})
    assert read_status(Path("scores")).commands == ["albert eval rte --out scores"]
    monkeypatch.chdir(tmp_path)
    expected = f"cd '{tmp_path}/my work' && albert eval rte --out scores"
    assert read_status(Path("my work/scores")).commands == [expected]


@pytest.mark.parametrize("words", [["--out", "scores"], ["--out=scores"], ["-o", "scores"]])
def test_status_of_a_moved_directory_prints_the_new_path(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["albert", "eval", "scores", *words])
    record_plan(Path("scores/.work.json"), {"run-0": ""})
    with pytest.raises(InputError), write_run_status(Path("scores/run-9")) as status:
        mark_running(Path("scores/run-9"), status, 3, 20)
        raise InputError("no such file")
    Path("scores").rename("moved")
    new_words = [word.replace("scores", f"{tmp_path}/moved") for word in words]
    assert read_status(Path("moved")).commands == [" ".join(["albert eval scores", *new_words])]
    Path("moved/.work.json").unlink()
    assert read_status(Path("moved")).commands == [" ".join(["albert eval scores", *new_words])]
    shutil.copytree("moved/run-9", "alone")
    assert read_status(Path("alone")).commands == [" ".join(["albert eval scores", *words])]


def test_status_in_a_renamed_project_changes_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old").mkdir()
    monkeypatch.chdir(tmp_path / "old")
    monkeypatch.setattr("sys.argv", ["albert", "eval", "rte", "--out", "scores"])
    record_plan(Path("scores/.work.json"), {"run-0": ""})
    monkeypatch.setattr("sys.argv", ["albert", "pretrain", "base", "-o", "run"])
    with pytest.raises(InputError), write_run_status(Path("run")) as status:
        mark_running(Path("run"), status, 3, 20)
        raise InputError("no such file")
    monkeypatch.chdir(tmp_path)
    Path("old").rename("new")
    new = tmp_path / "new"
    assert read_status(Path("new/scores")).commands == [f"cd {new} && albert eval rte --out {new}/scores"]
    assert read_status(Path("new/run")).commands == [f"cd {new} && albert pretrain base -o {new}/run"]
    with pytest.raises(ConfigError, match=f"by: cd {new} && albert pretrain"):
        check_parents(Path("new/run"), {"data": "a"}, {"data": "b"})
    Path("old").mkdir()
    assert read_status(Path("new/run")).commands == [f"cd {tmp_path}/old && albert pretrain base -o {new}/run"]


@pytest.mark.parametrize("state", ["interrupted", "failed", "diverged"])
def test_status_of_a_locked_run_is_running(state: str, tmp_path: Path) -> None:
    write_status(tmp_path / "run", state=state, message="SIGTERM", command="albert pretrain a")
    with store.lock(tmp_path / "run"):
        status = read_status(tmp_path)
    assert (status.counts, status.commands) == ({"running": 1}, [])
    assert "node7" not in status.to_text(), "the run may have another host now"
    assert read_status(tmp_path).counts.keys() == {"failed" if state == "diverged" else state}


def test_status_of_a_command_that_has_just_started_is_running(tmp_path: Path) -> None:
    write_status(tmp_path / "run-0", state="done", step=20)
    with store.lock(tmp_path / "run-1"):
        assert read_status(tmp_path).counts == {"done": 1, "running": 1}
        assert read_status(tmp_path / "run-1").counts == {"running": 1}
    assert read_status(tmp_path).is_finished
    with store.lock(tmp_path / "scored"):
        assert read_status(tmp_path / "scored").counts == {"running": 1}
        store.write_json(tmp_path / "scored" / "results.json", {"kind": "scored"})
    assert read_status(tmp_path / "scored").is_finished


def test_status_of_a_locked_directory_with_a_plan_is_its_units(tmp_path: Path) -> None:
    units = ["vocabulary", "scores/100", "scores/500", "report.html"]
    record_plan(tmp_path / ".work.json", dict.fromkeys(units, ""))
    for name in units[1:3]:
        store.write_json(tmp_path / name / "results.json", {"kind": "eval"})
    record_plan(tmp_path / "scores" / "500" / ".work.json", {"run-0": "", "run-1": ""})  # controls are still trained
    with store.lock(tmp_path), store.lock(tmp_path / "scores" / "500" / "controls" / "random" / "run-0"):
        states = {unit.name: unit.state for unit in read_status(tmp_path).units}
    assert states == dict(zip(units, ("remaining", "done", "running", "remaining"), strict=True))


def test_status_ignores_a_plan_that_has_just_been_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_status(tmp_path / "run-0", state="done", step=20)
    record_plan(tmp_path / ".work.json", {"run-0": ""})
    listed = work_plan.list_plan_files(tmp_path)
    assert not read_status(tmp_path).is_finished
    listed[0].unlink()  # by a command on another machine, whose change a network file system shows later
    monkeypatch.setattr(work_plan, "list_plan_files", lambda folder: listed if folder == tmp_path else [])
    assert read_status(tmp_path).is_finished
