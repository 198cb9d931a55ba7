"""Tests of `albert_cli.quickstart`: the task is fair, and the closing text agrees with the scores."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from albert_cli import quickstart
from albert_cli.errors import BusyError
from albert_cli.text.corpus import Document


def make_document(name: str, module: int) -> Document:
    called = "np.array" if name == "numpy" and module % 2 else f"{name}.tensor"
    number = module + 100 * (name == "torch")  # no sentence occurs twice
    text = " ".join(f"Module of number {number} has {called} as its {i} example." for i in range(3))
    return Document(text, f"{name}.m{module}")


def test_task_tables_are_balanced_and_hide_names() -> None:
    names = ["numpy", "torch"]
    scale = dataclasses.replace(quickstart.SMOKE, epochs={"30": 1}, test_sentences=20)
    modules = [make_document(name, i) for name in names for i in range(40)]
    tables = quickstart._build_task_tables(modules, names, scale)
    assert {split: len(rows) for split, rows in tables.items()} == {"train": 30, "dev": 20}
    for rows in tables.values():
        labels = [label for _, label in rows]
        assert labels.count("numpy") == labels.count("torch")
        assert not any(name in text for text, _ in rows for name in ("numpy", "torch", "np."))
    modules_by_split = {split: {text.split()[3] for text, _ in rows} for split, rows in tables.items()}
    assert not modules_by_split["train"] & modules_by_split["dev"]


def summarize(init_scores: list[float], classical: float) -> dict[str, Any]:
    """Scores for one number of labeled sentences; the pretrained seeds have 0.5 to 0.52."""
    controls = {
        name: {
            "median": sorted(scores)[1],
            "scores_by_seed": dict(enumerate(scores)),
            "every_seed_above": max(scores) < 0.5,
        }
        for name, scores in (("init", init_scores), ("random", [0.3, 0.31, 0.32]))
    }
    evaluation = {
        "median": 0.51,
        "spread": 0.02,
        "scores_by_seed": {"0": 0.5, "1": 0.52, "2": 0.51},
        "controls": controls,
        "majority": 0.125,
        "baselines": {"words": {"accuracy": classical}},
    }
    return quickstart._summarize_scores(evaluation)


def test_format_summary_states_verdict_for_every_seed() -> None:
    few = summarize([0.49, 0.505, 0.48], classical=0.2)
    many = summarize([0.47, 0.48, 0.49], classical=0.44)
    pretraining = {"mlm_loss": 4.0, "unigram_entropy": 6.3, "below_unigram_entropy": 2.3}
    result = {"pretraining": pretraining, "examples": [], "report": "report.html", "seconds": 281.0}
    lines = quickstart.format_summary({**result, "task": {"125": few, "2000": many}}).splitlines()
    assert [" ".join(line.split()) for line in [*lines[2:4], *lines[5:10]]] == [
        "which package is a sentence from? accuracy, the median and every seed",
        "labeled sentences 125 2,000",
        "mini ALBERT, pretrained 51.0 (50.0 52.0 51.0) 51.0 (50.0 52.0 51.0)",
        "same init, not pretrained 49.0 (49.0 50.5 48.0) 48.0 (47.0 48.0 49.0)",
        "random weights 31.0 (30.0 31.0 32.0) 31.0 (30.0 31.0 32.0)",
        "classical baseline 20.0 44.0",
        "majority class 12.5 12.5",
    ]
    assert lines[10:12] == [
        "with 125 sentences every pretrained seed is above: random weights, classical baseline",
        "with 2,000 sentences every pretrained seed is above: same init, not pretrained, random weights, "
        "classical baseline",
    ]
    all_alike = quickstart.format_summary({**result, "task": dict.fromkeys(("125", "500", "2000"), many)})
    assert "with 125, 500 and 2,000 sentences every pretrained seed is above: same init" in all_alike


def test_format_scores_of_diverged_control_says_so() -> None:
    scores: dict[str, Any] = {"median": None, "scores_by_seed": {}, "diverged": [0, 1]}
    assert quickstart._format_scores(scores) == "diverged"


def test_directory_of_another_scale_is_rejected(tmp_path: Path) -> None:
    for _ in range(2):
        quickstart._require_same_scale(tmp_path, quickstart.SMOKE)
    with pytest.raises(BusyError, match="another scale"):
        quickstart._require_same_scale(tmp_path, quickstart.FULL)
    assert json.loads((tmp_path / "scale.json").read_text())["runs"] == 2
