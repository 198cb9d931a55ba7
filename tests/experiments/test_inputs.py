"""Tests of the stages that build an experiment's inputs: a changed text or task leads to new stages."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import pytest

from albert_cli.experiments import recipe
from albert_cli.experiments.experiment import ScaleName
from albert_cli.experiments.plan import ExperimentRequest, Stage
from albert_cli.experiments.stages import make_plan
from tests.helpers.command import albert
from tests.helpers.experiments import finish_stage
from tests.helpers.unprivileged import print_as_nobody


def stages(name: str, request: ExperimentRequest, *kinds: str) -> dict[str, Stage]:
    """Return the stages of these kinds by id."""
    plan = make_plan(recipe.load_experiment(name), request)
    return {id_: stage for id_, stage in plan.stages.items() if stage.kind in kinds}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A folder with one file of text."""
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt").write_text("bade fi gowi.\n", encoding="utf-8")
    return folder


@pytest.fixture
def tasks(tmp_path: Path, tiny_glue: Path) -> Path:
    return Path(shutil.copytree(tiny_glue, tmp_path / "glue"))


def test_plan_without_its_data_directory_is_rejected(tmp_path: Path) -> None:
    call = ["reproduce", "sharing", "--scale", "smoke", "--out", tmp_path / "out", "--data"]
    printed = albert(*call, tmp_path / "misspelled", expect=4).err
    assert "misspelled: no such directory\nhint: build one with: albert data" in printed
    assert "not a data directory" in albert(*call, tmp_path, expect=4).err


def test_plan_changed_text_repeats_all_stages(text: Path, tmp_path: Path) -> None:
    request = ExperimentRequest("smoke", tmp_path / "out", text=(str(text),), device="cpu", seeds=1)
    plan = make_plan(recipe.load_experiment("similarity"), request)
    for stage in plan.stages.values():
        finish_stage(plan, stage, {})
    repeated = make_plan(plan.experiment, request)
    assert not repeated.unfinished(list(repeated.stages.values()))
    (text / "b.txt").write_text("mane pi rosu.\n", encoding="utf-8")
    more = make_plan(plan.experiment, request)
    assert len(more.unfinished(list(more.stages.values()))) == len(plan.stages)
    (text / "b.txt").unlink()
    (text / "a.txt").write_text("bade fi gowo.\n", encoding="utf-8")
    edited = make_plan(plan.experiment, request)
    assert len(edited.unfinished(list(edited.stages.values()))) == len(plan.stages)


def test_plan_changed_text_changes_the_recall_table(text: Path, tmp_path: Path) -> None:
    request = ExperimentRequest("mini", tmp_path / "out", text=(str(text),), device="cpu", seeds=1)
    before = stages("long-inputs", request, "table")
    (text / "a.txt").write_text("mane pi rosu.\n", encoding="utf-8")
    after = stages("long-inputs", request, "table")
    assert len(before) == len(after) == 1
    assert before.keys() != after.keys()


def test_plan_added_intermediate_task_changes_its_tasks(tasks: Path, tiny_data: Path, tmp_path: Path) -> None:
    request = ExperimentRequest("smoke", tmp_path / "out", data=tiny_data, tasks=tasks, device="cpu", seeds=1)
    before = stages("sharing", request, "task")
    (tasks / "MNLI").mkdir()
    header = "sentence1\tsentence2\tgold_label"
    for split in ("train", "dev_matched", "dev_mismatched"):
        lines = [header, *[f"bade fi.\tmane {i}.\tneutral" for i in range(3)]]
        (tasks / "MNLI" / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    after = stages("sharing", request, "task")
    assert before and len(before) == len(after)
    assert not before.keys() & after.keys(), "MRPC and RTE start from MNLI"


def test_plan_edited_task_changes_only_this_task(tasks: Path, tiny_data: Path, tmp_path: Path) -> None:
    request = ExperimentRequest("smoke", tmp_path / "out", data=tiny_data, tasks=tasks, device="cpu", seeds=1)
    before = stages("sharing", request, "task")
    path = tasks / "RTE" / "dev.tsv"
    path.write_text(path.read_text(encoding="utf-8").replace("gowi", "gowo"), encoding="utf-8")
    after = stages("sharing", request, "task")
    changed = {before[id_].facts["task"] for id_ in before.keys() - after.keys()}
    assert changed == {"rte"}


def test_plan_moved_tasks_repeat_no_stage(
    tasks: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tasks / "squad").mkdir()
    (tasks / "squad" / "dev-v1.1.json").write_text('{"data": []}', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    relative_tasks = Path(os.path.relpath(tasks))
    experiments: tuple[tuple[str, ScaleName, str], ...] = (("intrinsic", "mini", "data"), ("sharing", "smoke", "task"))
    for name, scale, kind in experiments:
        request = ExperimentRequest(scale, tmp_path / "out", data=tiny_data, tasks=tasks, device="cpu", seeds=1)
        before = stages(name, request, "data", "probe", "task")
        assert kind in {stage.kind for stage in before.values()}
        relative = dataclasses.replace(request, tasks=relative_tasks)
        assert stages(name, relative, "data", "probe", "task").keys() == before.keys()


def test_hash_texts_unreadable_file_has_no_hash(text: Path) -> None:
    """Read in a process that does not run as root, which may read everything."""
    path = text / "a.txt"
    path.chmod(0)
    imports = """
import sys
from pathlib import Path
from albert_cli.experiments.inputs import hash_texts
from albert_cli.experiments.plan import ExperimentRequest
from albert_cli.experiments.recipe import load_experiment

scale = load_experiment("similarity").scales["smoke"]
request = ExperimentRequest("smoke", Path("out"), text=(sys.argv[1],))
"""
    assert print_as_nobody(imports, "print(hash_texts(request, scale)[sys.argv[1]])", path) == "[]\n"
