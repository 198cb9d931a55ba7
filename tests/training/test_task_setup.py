"""A single file decides the kind and the classes of fine-tuning; the checkpoint's head decides those of scoring."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from albert_cli.evaluation.scoring import prepare_evaluation
from albert_cli.tasks.entities import OUTSIDE
from albert_cli.tasks.multi_label import MultiLabelClassification
from albert_cli.training.task_setup import TaskRequest, prepare_task
from tests.helpers.checkpoints import untrained
from tests.helpers.command import QUICK, albert
from tests.helpers.task_runs import SHAPE, write_foreign

TRAINING_FILES = {
    "regression": ("train.tsv", "text\tlabel\n" + "a film\t0.5\nb film\t1.5\n" * 4),
    "multi-label": ("train.tsv", "text\tlabel\n" + "a film\t0|1\nb film\t2\n" * 4),
    "classification": ("train.tsv", "text\tlabel\n" + "a film\t0\nb film\t1\nc film\t2\nd film\t3\n" * 4),
    "entities": ("train.conll", "Bo B-LOC\nruns O\n\n" * 8),
}
NEW_FILES = {
    "table": ("new.tsv", "text\tlabel\n" + "a film\t0\nb film\t1\nc film\t2\n" * 4),
    "ner": ("new.conll", "Bo B-PER\nruns O\n\n" * 8),
}
CLASSES = {"table": ("0", "1", "2"), "ner": (OUTSIDE, "B-PER", "I-PER")}


@pytest.fixture(scope="module")
def finetuned(tmp_path_factory: pytest.TempPathFactory, tiny_vocabulary: Path) -> Callable[[str], Path]:
    """A function that returns a checkpoint which was fine-tuned on a file of `TRAINING_FILES`."""
    folder = tmp_path_factory.mktemp("heads")
    encoder = untrained(folder / "encoder", SHAPE, tiny_vocabulary)

    def checkpoint(kind: str) -> Path:
        out = folder / kind / "model"
        if not out.exists():
            name, content = TRAINING_FILES[kind]
            out.parent.mkdir()
            (out.parent / name).write_text(content)
            task = "ner" if kind == "entities" else "table"
            albert("finetune", task, "--checkpoint", encoder, "--data", out.parent, "--out", out, *QUICK)
        return out

    return checkpoint


def request(checkpoint: Path, task: str, folder: Path, *overrides: str) -> TaskRequest:
    name, content = NEW_FILES[task]
    (folder / name).write_text(content)
    return TaskRequest(str(checkpoint), str(folder / name), 1, (*overrides, "data.dev_examples=20"), "cpu")


@pytest.mark.parametrize(
    ("kind", "task"),
    [("regression", "table"), ("multi-label", "table"), ("classification", "table"), ("entities", "ner")],
)
def test_prepare_task_single_file_decides_the_classes(
    finetuned: Callable[[str], Path], tmp_path: Path, kind: str, task: str
) -> None:
    training = request(finetuned(kind), task, tmp_path)
    prepared = prepare_task(task, training)
    assert prepared.task.labels == CLASSES[task] and not isinstance(prepared.task, MultiLabelClassification)
    assert len(prepared.load_inputs().train_examples) > 0
    new_head = request(finetuned(kind), task, tmp_path, "model.head=new")
    retrained = prepare_evaluation(task, new_head)
    assert retrained.needs_training and retrained.task.labels == CLASSES[task]


def test_prepare_evaluation_foreign_head_leaves_the_classes(finetuned: Callable[[str], Path], tmp_path: Path) -> None:
    foreign = write_foreign(finetuned("classification"), tmp_path / "foreign", ("0", "1", "2", "3"))
    retrained = prepare_evaluation("table", request(foreign, "table", tmp_path, "model.head=new"))
    assert retrained.task.labels == CLASSES["table"]
    scored = prepare_evaluation("table", request(foreign, "table", tmp_path))
    assert not scored.needs_training and scored.task.labels == ("0", "1", "2", "3")


def test_prepare_task_checkpoint_head_leaves_its_classes(finetuned: Callable[[str], Path], tmp_path: Path) -> None:
    training = request(finetuned("classification"), "table", tmp_path, "model.head=checkpoint")
    assert prepare_task("table", training).task.labels == ("0", "1", "2", "3")
