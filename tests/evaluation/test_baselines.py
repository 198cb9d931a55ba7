"""Tests of the classical baselines."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from albert_cli import store
from albert_cli.evaluation.baselines import CHARACTERS, OVERLAP, WORDS, train_baselines
from albert_cli.report.build import build_report
from albert_cli.report.collect import CLASSICAL_BASELINE, collect_inputs
from albert_cli.score_summary import CROSS_VALIDATED, best_baseline
from albert_cli.tasks.base import AnyTask
from albert_cli.tasks.classification import TextExample
from albert_cli.tasks.registry import find_task
from tests.helpers.command import albert
from tests.helpers.results import evaluation_result
from tests.helpers.task_runs import QUICK, as_text, evaluate

VERBS = ("bade", "figo", "luma", "ne", "ро", "kra", "ste", "wi")


def pairs(count: int, seed: int, label_type: str = "equal") -> list[TextExample]:
    """Return pairs of texts of five words; the label says whether they are equal, or counts common words."""
    rng = random.Random(seed)
    examples = []
    for i in range(count):
        a = [f"{rng.choice(VERBS)}{rng.randrange(500)}" for _ in range(5)]
        shared = rng.randrange(6) if label_type == "number" else 5 * rng.randrange(2)
        b = a[:shared] + [f"{rng.choice(VERBS)}{rng.randrange(500)}" for _ in range(5 - shared)]
        rng.shuffle(b)
        label: float = float(shared) if label_type == "number" else shared // 5
        examples.append(TextExample(" ".join(a), " ".join(b).upper(), label, str(i)))
    return examples


def score_baselines(task: AnyTask, train: Sequence[Any], dev: Sequence[Any]) -> dict[str, dict[str, float]]:
    return {name: outcome.scores for name, outcome in train_baselines(task, train, dev).items()}


def test_overlap_baseline_generalizes_to_unseen_words() -> None:
    task = find_task("mrpc")
    baselines = score_baselines(task, pairs(200, 0), pairs(100, 1))
    assert set(baselines) == {WORDS, CHARACTERS, OVERLAP}
    assert set(baselines[WORDS]) == {"accuracy", "f1", CROSS_VALIDATED}
    assert baselines[OVERLAP]["accuracy"] > 0.95 > 0.7 > baselines[WORDS]["accuracy"]
    values = score_baselines(find_task("stsb"), pairs(200, 0, "number"), pairs(100, 1, "number"))
    assert values[OVERLAP]["pearson"] > 0.95
    assert evaluation_result(metric="pearson", baselines=values).best_baseline == (OVERLAP, values[OVERLAP]["pearson"])


def test_overlap_baseline_compares_vowel_signs_of_hindi() -> None:
    rng = random.Random(0)
    examples = []
    for i in range(300):
        a, other = (" ".join(f"\u0915{chr(rng.randrange(0x93E, 0x94D))}" for _ in range(4)) for _ in range(2))
        examples.append(TextExample(a, other if i % 2 else a, i % 2, str(i)))
    scores = score_baselines(find_task("mrpc"), examples[:200], examples[200:])
    assert scores[OVERLAP]["accuracy"] > 0.95


def test_words_baseline_uses_word_order() -> None:
    rng = random.Random(0)
    examples = []
    for i in range(300):
        words = ["kra", "wi"] if i % 2 else ["wi", "kra"]
        examples.append(TextExample(" ".join([*rng.choices(VERBS[:4], k=3), *words]) + "!", None, i % 2, str(i)))
    baselines = score_baselines(find_task("sst2"), examples[:200], examples[200:])
    assert set(baselines) == {WORDS, CHARACTERS}
    assert baselines[WORDS]["accuracy"] == 1.0


def test_score_baselines_unspaced_text_chooses_characters() -> None:
    """Without spaces, each text is one word, and only n-grams of characters separate the classes."""
    rng = random.Random(0)
    examples = []
    for i in range(200):
        syllables = [rng.choice(VERBS[:3]) + rng.choice(VERBS[:3]) for _ in range(3)]
        examples.append(TextExample("".join([*syllables, "zu" if i % 2 else "xo", *syllables]), None, i % 2, str(i)))
    baselines = score_baselines(find_task("sst2"), examples[:120], examples[120:])
    assert baselines[CHARACTERS]["accuracy"] > 0.95 > 0.7 > baselines[WORDS]["accuracy"]
    assert best_baseline(baselines, "accuracy") == (CHARACTERS, baselines[CHARACTERS]["accuracy"])


def test_best_baseline_is_not_chosen_on_dev() -> None:
    baselines = {"lucky": {"accuracy": 0.9, CROSS_VALIDATED: 0.5}, "honest": {"accuracy": 0.7, CROSS_VALIDATED: 0.6}}
    assert best_baseline(baselines, "accuracy") == ("honest", 0.7)
    assert best_baseline({}, "accuracy") is None


def test_score_baselines_degenerate_data_is_no_error() -> None:
    task = find_task("sst2")
    one_class = [TextExample("kra", None, 1, str(i)) for i in range(3)]
    dev = [TextExample("wi", None, label, "") for label in (0, 1)]
    assert score_baselines(task, one_class, dev)[WORDS] == {"accuracy": 0.5, CROSS_VALIDATED: 0.0}
    blank = [TextExample(" ", None, i % 2, str(i)) for i in range(4)]
    assert score_baselines(task, blank, blank) == {}
    assert score_baselines(find_task("race"), [], []) == score_baselines(find_task("squad1"), [], []) == {}
    assert evaluation_result(metric="accuracy").best_baseline is None


def test_eval_reports_baselines_with_the_score(encoder: Path, inference: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores"
    result = evaluate("rte", str(encoder), str(inference), out, 2, (*QUICK, "intermediate_task=pretrained"), "cpu")
    task = find_task("rte")
    expected = score_baselines(task, task.read("train", str(inference)), task.read("dev", str(inference)))
    assert result["baselines"] == store.read_json(out / "results.json")["baselines"] == expected
    name, score = evaluation_result(baselines=expected).best_baseline or ("", 0.0)
    printed = as_text(result)
    assert "classical" in printed.split("\n")[0]
    assert f"  {name} {100 * score:.1f}  " in printed
    assert "trained on the same examples" in printed
    (evaluation,) = collect_inputs([out]).evaluations
    assert evaluation.baselines[CLASSICAL_BASELINE] == score
    assert evaluation.record.best_baseline is not None
    assert evaluation.record.best_baseline[0] == name
    build_report([out], tmp_path / "report.html")
    assert "classical baseline</th>" in (tmp_path / "report.html").read_text()


def test_eval_no_baselines_leaves_them_out(encoder: Path, inference: Path, tmp_path: Path) -> None:
    overrides = [word for override in (*QUICK, "intermediate_task=pretrained") for word in ("-s", override)]
    options = ["--checkpoint", str(encoder), "--data", str(inference), "--runs", "1", "--device", "cpu", *overrides]
    albert("eval", "rte", *options, "--no-baselines", "--out", str(tmp_path / "scores"))
    assert store.read_json(tmp_path / "scores/results.json")["baselines"] == {}


def test_eval_subset_trains_baselines_on_the_same_subset(encoder: Path, inference: Path, tmp_path: Path) -> None:
    overrides = (*QUICK, "intermediate_task=pretrained", "data.train_examples=4")
    result = evaluate("rte", str(encoder), str(inference), tmp_path / "few", 1, overrides, "cpu")
    task = find_task("rte")
    everything, dev = task.read("train", str(inference)), task.read("dev", str(inference))
    assert result["examples"]["train"] == 4
    assert result["baselines"] != score_baselines(task, everything, dev)


@pytest.mark.parametrize(
    ("name", "train", "dev", "low"),  # pairs, values, and single texts
    [("mrpc", 300, 200, 0.71), ("stsb", 300, 400, 0.69), ("sst2", 400, 400, 0.67)],
)
def test_baselines_on_glue_reach_known_scores(name: str, train: int, dev: int, low: float, shared_data: Path) -> None:
    task, data = find_task(name), str(shared_data / "glue")
    baselines = score_baselines(task, task.read("train", data)[:train], task.read("dev", data)[:dev])
    best = evaluation_result(metric=task.metrics[0], baselines=baselines).best_baseline
    assert best is not None and low < best[1] < low + 0.06
