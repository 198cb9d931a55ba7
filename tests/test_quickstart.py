"""The quickstart's task is fair, and its closing words say what the numbers do."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from albert_cli import quickstart
from albert_cli.errors import BusyError
from albert_cli.text.corpus import Document


def test_the_task_is_cut_from_modules_of_its_own_without_their_names() -> None:
    names, scale = ["numpy", "torch"], dataclasses.replace(quickstart.SMOKE, epochs={"30": 1}, test_sentences=20)
    modules = [Document(_sentences(name, i), f"{name}.m{i}") for name in names for i in range(40)]
    tables = quickstart._build_task_tables(modules, names, scale)
    assert {split: len(rows) for split, rows in tables.items()} == {"train": 30, "dev": 20}
    for rows in tables.values():
        labels = [label for _, label in rows]
        assert labels.count("numpy") == labels.count("torch")
        assert not any(name in text for text, _ in rows for name in ("numpy", "torch", "np."))
    number = {split: {text.split()[3] for text, _ in rows} for split, rows in tables.items()}
    assert not number["train"] & number["dev"], "training and test sentences come from different modules"


def _sentences(name: str, module: int) -> str:
    called = "np.array" if name == "numpy" and module % 2 else f"{name}.tensor"
    number = module + 100 * (name == "torch")  # no sentence occurs twice
    return " ".join(f"Module of number {number} has {called} as its {i} example." for i in range(3))


def result(init: list[float], bag: float) -> dict[str, Any]:
    """A number of labelled sentences, with pretrained seeds of 0.5 to 0.52."""
    pretrained = {"0": 0.5, "1": 0.52, "2": 0.51}
    controls = {
        name: {
            "median": sorted(scores)[1],
            "scores_by_seed": dict(enumerate(scores)),
            "every_seed_above": max(scores) < 0.5,
        }
        for name, scores in (("init", init), ("random", [0.3, 0.31, 0.32]))
    }
    evaluation = {"median": 0.51, "spread": 0.02, "scores_by_seed": pretrained, "controls": controls, "majority": 0.125}
    return quickstart._summarize_scores({**evaluation, "baselines": {"words": {"accuracy": bag}}})


def test_the_closing_words_say_what_every_seed_is_above() -> None:
    few, many = result([0.49, 0.505, 0.48], bag=0.2), result([0.47, 0.48, 0.49], bag=0.44)
    pretraining = {"mlm_loss": 4.0, "unigram_entropy": 6.3, "below_unigram_entropy": 2.3}
    given = {"pretraining": pretraining, "examples": [], "report": "report.html", "seconds": 281.0}
    lines = quickstart.format_summary({**given, "task": {"125": few, "2000": many}}).splitlines()
    assert [" ".join(line.split()) for line in [*lines[2:4], *lines[5:10]]] == [
        "which package is a sentence from? accuracy, the median and every seed",
        "labelled sentences 125 2,000",
        "mini ALBERT, pretrained 51.0 (50.0 52.0 51.0) 51.0 (50.0 52.0 51.0)",
        "same init, not pretrained 49.0 (49.0 50.5 48.0) 48.0 (47.0 48.0 49.0)",
        "random weights 31.0 (30.0 31.0 32.0) 31.0 (30.0 31.0 32.0)",
        "bag of words 20.0 44.0",
        "majority class 12.5 12.5",
    ]
    assert lines[10:12] == [
        "with 125 sentences every pretrained seed is above: random weights, bag of words",
        "with 2,000 sentences every pretrained seed is above: same init, not pretrained, random weights, bag of words",
    ]
    said = quickstart.format_summary({**given, "task": dict.fromkeys(("125", "500", "2000"), many)})
    assert "with 125, 500 and 2,000 sentences every pretrained seed is above: same init" in said


def test_a_control_that_diverged_has_no_scores() -> None:
    assert quickstart._cell({"median": None, "scores_by_seed": {}, "diverged": [0, 1]}) == "diverged"


def test_a_directory_belongs_to_one_scale(tmp_path: Path) -> None:
    for _ in range(2):
        quickstart._require_same_scale(tmp_path, quickstart.SMOKE)
    with pytest.raises(BusyError, match="another scale"):
        quickstart._require_same_scale(tmp_path, quickstart.FULL)
    assert json.loads((tmp_path / "scale.json").read_text())["runs"] == 2
