"""Heads of classifiers: which task they answer, and in which order their rows are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from albert_cli.errors import CheckpointError, ConfigError, InputError
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import ScaledLinear
from albert_cli.tasks.classification import Classification, TextExample
from albert_cli.tasks.glue import GLUE
from albert_cli.tasks.metrics import scores
from albert_cli.tasks.multi_label import MultiLabelClassification
from albert_cli.tasks.race import RACE
from albert_cli.tasks.registry import task_from_checkpoint
from albert_cli.tasks.squad.task import SQUAD
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.task_recipe import TaskModelSettings


def with_labels(*labels: str, problem: str | None = None) -> hub.Checkpoint:
    """Return a checkpoint whose classifier has a row for each label, with the row's number as its weight."""
    values = {
        "architectures": ["AlbertForSequenceClassification"],
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "problem_type": problem,
    }
    rows = torch.arange(float(len(labels)))
    tensors = {"classifier.weight": rows[:, None], "classifier.bias": rows} if labels else {}
    return hub.Checkpoint(Path("model"), ModelConfig(), values, "albert", tensors)


def rows_of(task: Classification, checkpoint: hub.Checkpoint) -> list[float]:
    """Return the head's rows in the task's order."""
    ordered: list[float] = task.reorder_labels(checkpoint).tensors["classifier.bias"].tolist()
    return ordered


TINY = ModelConfig(vocab_size=9, embedding_size=4, hidden_size=4, num_attention_heads=1, intermediate_size=4)


def test_scale_to_labels_leaves_values_of_a_known_range() -> None:
    examples = [TextExample("a", "b", value, str(value)) for value in (0.0, 5.0)]
    for name in ("stsb", "cola"):
        model = GLUE[name].new_model(TINY)
        GLUE[name].scale_to_labels(model, examples)
        assert type(model.classifier) is torch.nn.Linear and not model.classifier.bias.any()


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ((7.5, 7.5), 1.0),
        ((0.3, 0.1 + 0.2), 1.0),
        ((0.0, 1e-300), 1.0),
        ((100.0, 900.0), 512.0),
        ((0.0, 1e-3), 2.0**-11),
    ],
)
def test_scale_to_labels_is_a_power_of_two(values: tuple[float, ...], scale: float) -> None:
    examples = [TextExample("a", None, value, str(row)) for row, value in enumerate(values)]
    task = Classification(name="table", title="table", metrics=("pearson",))
    model = task.new_model(TINY)
    task.scale_to_labels(model, examples)
    assert isinstance(model.classifier, ScaledLinear) and model.classifier.scale == scale
    assert model.state_dict()["classifier.bias"].item() == pytest.approx(np.mean(values))


@pytest.mark.parametrize("label", ["nan", "-inf", "1e39", "1e400"])
def test_parse_label_outside_fp32_is_rejected(label: str) -> None:
    task = Classification(name="table", title="table", metrics=())
    with pytest.raises(InputError, match=rf"^a\.csv:2: label '{label}' is not finite in fp32"):
        task.parse_label(label, "a.csv:2")


@pytest.mark.parametrize(
    ("task", "labels", "rows"),
    [
        ("mnli", ("CONTRADICTION", "NEUTRAL", "ENTAILMENT"), [0, 2, 1]),
        ("mnli", ("entailment", "neutral", "contradiction"), [2, 0, 1]),
        ("rte", ("Not Entailment", "Entailment"), [1, 0]),
        ("qnli", ("NOT-ENTAILMENT", "ENTAILMENT"), [1, 0]),
        ("rte", ("not_entailment", "entailment"), [1, 0]),
        ("cola", ("1", "0"), [1, 0]),
        ("mnli", ("LABEL_0", "LABEL_1", "LABEL_2"), [0, 1, 2]),
        ("stsb", ("similarity",), [0]),
    ],
)
def test_reorder_labels_follows_the_names(task: str, labels: tuple[str, ...], rows: list[float]) -> None:
    checkpoint = with_labels(*labels)
    assert GLUE[task].has_head(checkpoint)
    assert rows_of(GLUE[task], checkpoint) == rows


@pytest.mark.parametrize(
    ("task", "labels"),
    [
        ("cola", ("unacceptable", "acceptable")),
        ("sst2", ("negative", "positive")),
        ("mnli", ("entailment", "contradiction")),
        ("rte", ("contradiction", "entailment", "neutral")),
        ("stsb", ("0", "1")),
        ("mnli", ("LABEL_0", "LABEL_1")),
        ("rte", ("entailment", "ENTAILMENT")),
    ],
)
def test_reorder_labels_other_classes_are_rejected(task: str, labels: tuple[str, ...]) -> None:
    checkpoint = with_labels(*labels)
    assert not GLUE[task].has_head(checkpoint)
    with pytest.raises(CheckpointError, match=r"its classes \(.*\) are not .*'s") as raised:
        GLUE[task].reorder_labels(checkpoint)
    assert ("model.labels" in str(raised.value.hint)) == (len(labels) == len(GLUE[task].output_names))


def test_reorder_labels_tells_names_apart_by_their_case() -> None:
    checkpoint = with_labels("us", "US", problem="multi_label_classification")
    task = MultiLabelClassification(name="t", title="t", metrics=(), labels=("US", "us"))
    assert task.reorder_labels(checkpoint).tensors["classifier.bias"].tolist() == [1, 0]


def test_iter_predictions_of_small_values_keeps_the_scores() -> None:
    outputs = np.random.default_rng(0).normal(2e-6, 1e-7, (200, 1)).astype(np.float32)
    gold = outputs[:, 0] + np.random.default_rng(1).normal(0, 1e-7, 200)
    task = Classification(name="table", title="table", metrics=("pearson", "spearman"))
    examples = [TextExample("a", None, float(value), str(row)) for row, value in enumerate(gold)]
    lines = task.iter_predictions(examples, outputs, with_details=False)
    written = np.array([line["prediction"] for line in lines])
    assert scores(task.metrics, written, gold) == pytest.approx(scores(task.metrics, outputs[:, 0], gold), abs=1e-6)


def test_match_head_default_names_in_another_order() -> None:
    names = tuple(f"LABEL_{number}" for number in range(11))
    task = Classification(name="table", title="table", metrics=(), labels=tuple(sorted(names)))
    assert rows_of(task, with_labels(*names)) == [0, 1, 10, *range(2, 10)]
    task = Classification(name="table", title="table", metrics=(), labels=("no", "yes"))
    assert rows_of(task, with_labels("LABEL_0", "LABEL_1")) == [0, 1]


def test_model_labels_name_the_outputs() -> None:
    settings = TaskModelSettings(labels=("entailment", "neutral", "contradiction"))
    checkpoint = settings.apply_to_checkpoint(with_labels("LABEL_0", "LABEL_1", "LABEL_2"))
    assert not checkpoint.has_unnamed_labels
    assert rows_of(GLUE["mnli"], checkpoint) == [2, 0, 1]
    with pytest.raises(ConfigError, match=r"model\.labels lists 3 classes, model has 2"):
        settings.apply_to_checkpoint(with_labels("LABEL_0", "LABEL_1"))


def test_reorder_labels_without_the_head_names_the_remedy() -> None:
    pretrained = with_labels()
    with pytest.raises(CheckpointError, match="has no classifier"):
        GLUE["rte"].reorder_labels(pretrained)
    with pytest.raises(CheckpointError, match="has no question-answering head") as raised:
        SQUAD["squad2"].reorder_labels(pretrained)
    assert "mini/squad1" in str(raised.value.hint)
    with pytest.raises(CheckpointError, match="has no multiple-choice head"):
        RACE["race"].reorder_labels(pretrained)


def test_from_checkpoint_several_values_are_rejected() -> None:
    with pytest.raises(CheckpointError, match="predicts 3 values for a text"):
        task_from_checkpoint(with_labels("a", "b", "c", problem="regression"))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("values", [(1e24, 5e26), (-3e38, 3e38)])
def test_compute_metrics_of_large_values_are_finite(values: tuple[float, float], tiny_vocabulary: Path) -> None:
    task = Classification(name="t", title="t", metrics=("pearson", "spearman"), labels=())
    examples = [TextExample("bade", None, value, "") for value in values]
    features = task.encode(examples, Vocabulary.load(tiny_vocabulary), 16)
    outputs = np.array(values, np.float32)[:, None] * np.float32(0.5)
    loss = np.mean(np.square(values)) / 4
    got = task.compute_metrics(outputs, features, examples)
    assert got == pytest.approx({"pearson": 1.0, "spearman": 1.0, "loss": loss})
    assert task.describe_collapse(outputs, features) is None


def test_describe_collapse_compares_values_with_the_labels(tiny_vocabulary: Path) -> None:
    task = Classification(name="t", title="t", metrics=("pearson",), labels=())
    years = [2018.5, 2019.0, 2019.5, 2020.25]
    examples = [TextExample("bade", None, year, "") for year in years]
    features = task.encode(examples, Vocabulary.load(tiny_vocabulary), 16)
    assert task.describe_collapse(np.array(years, np.float32)[:, None], features) is None
    constant = np.full((4, 1), 2019.3, np.float32) + np.array([[0], [1e-3], [0], [0]], np.float32)
    assert task.describe_collapse(constant, features) == "one value for all inputs"
