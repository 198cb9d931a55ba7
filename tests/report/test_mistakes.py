"""The most confident mistakes: which examples are chosen, and how they appear on the page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_cli import store
from albert_cli.errors import CheckpointError
from albert_cli.report.build import build_report
from albert_cli.report.collect import Evaluation, collect_inputs
from albert_cli.report.mistakes import find_worst, group_by_example, list_mistakes
from albert_cli.tasks.predictions import read_predictions
from tests.helpers.reports import Page, write_eval
from tests.helpers.results import run_result


def write_predictions(directory: Path, lines: list[dict[str, Any]]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (directory / "predictions.dev.jsonl").write_text(text, encoding="utf-8")


def write_result(directory: Path, *, task: str = "table", score: float = 0.5, **changes: Any) -> None:
    run_result(score, **{"task": task, "title": task, **changes}).write(directory / "results.json")


def classified(name: str, gold: str, predicted: str, probability: float, **more: Any) -> dict[str, Any]:
    """Return a line of a classifier with two classes; `probability` is the gold label's."""
    other = "yes" if gold == "no" else "no"
    probabilities = {gold: probability, other: 1 - probability}
    return {"id": name, "label": gold, "prediction": predicted, "probabilities": probabilities, **more}


def worst_ids(*folders: Path) -> list[str]:
    examples = group_by_example([read_predictions(folder) for folder in folders])
    return [lines[0]["id"] for lines in find_worst(examples)]


def page_text(directory: Path, out: Path) -> str:
    build_report([directory], out)
    return Page(out.read_text(encoding="utf-8")).text


def test_mistakes_of_several_runs_are_ranked_by_mean_error(tmp_path: Path) -> None:
    write_eval(tmp_path / "w", [0.5, 0.75], checkpoint="abc")
    texts = {"0": "always right", "1": "right once", "2": "never right", "3": "right by a hair"}
    runs = (
        [("0", "no", "no", 0.9), ("1", "yes", "no", 0.4), ("2", "yes", "no", 0.01), ("3", "no", "no", 0.51)],
        [("0", "no", "no", 0.9), ("1", "yes", "yes", 0.8), ("2", "yes", "no", 0.02), ("3", "no", "no", 0.52)],
    )
    for seed, lines in enumerate(runs):
        write_predictions(tmp_path / "w" / f"run-{seed}", [classified(*line, text=texts[line[0]]) for line in lines])
    assert worst_ids(tmp_path / "w" / "run-0", tmp_path / "w" / "run-1") == ["2", "1"]
    text = page_text(tmp_path / "w", tmp_path / "report.html")
    assert "never right" in text and "no (1 of 2), yes (1 of 2)" in text
    assert "always right" not in text and "right by a hair" not in text
    assert "0.98" in text, "1 minus the mean probability of the label"


def test_mistakes_of_equal_error_are_ranked_by_confidence(tmp_path: Path) -> None:
    def line(name: str, predicted: str, probability: float) -> dict[str, Any]:
        return {"id": name, "answers": ["x"], "prediction": predicted, "probability": probability, "f1": 0.0, "em": 0.0}

    write_predictions(tmp_path, [line("a", "y", 0.2), line("b", "", 0.9), line("c", "y", 0.7)])
    assert worst_ids(tmp_path) == ["c", "a", "b"]


def test_mistakes_of_spans_show_questions_and_answers(tmp_path: Path) -> None:
    lines = [
        {"id": "a", "question": "How many?", "answers": ["ten"], "prediction": "ten", "em": 1.0, "f1": 1.0},
        {"id": "b", "question": "Which year?", "answers": ["of 1999", "1999"], "prediction": "", "em": 0.0, "f1": 0.5},
        {"id": "c", "question": "Who was it?", "answers": [], "prediction": "x", "em": 0.0, "f1": 0.0},
    ]
    write_result(tmp_path, task="squad2", title="SQuAD 2.0", metric="f1", score=0.5, seed=0)
    write_predictions(tmp_path, lines)
    text = page_text(tmp_path, tmp_path / "report.html")
    assert "of 1999 / 1999" in text and "no answer" in text and "Who was it?" in text
    assert "How many?" not in text, "a correct answer"
    assert "82.1" in text and "ALBERT-base v2" in text, "published scores"


def test_mistakes_of_texts_without_classes_are_shown(tmp_path: Path) -> None:
    write_result(tmp_path, metric="micro_f1")
    probabilities = {"sad": 0.4, "glad": 0.7}
    lines = [
        {"id": "a", "text": "x", "label": ["sad"], "prediction": [], "probabilities": probabilities},
        {"id": "b", "text": "y", "label": [], "prediction": ["glad"], "probabilities": probabilities},
    ]
    write_predictions(tmp_path, lines)
    text = page_text(tmp_path, tmp_path / "report.html")
    assert text.count("no class") == 2 and "no answer" not in text


def test_mistakes_of_values_are_ranked_by_distance(tmp_path: Path) -> None:
    write_result(tmp_path, task="stsb", metric="pearson", score=0.9)
    lines = [{"id": str(i), "label": i / 2, "prediction": i / 2 + (2 if i == 3 else 0.1)} for i in range(6)]
    write_predictions(tmp_path, lines)
    assert worst_ids(tmp_path)[0] == "3"
    (mistakes,) = list_mistakes([evaluation_in(tmp_path)])
    assert mistakes.table.rows[0] == ["3", "1.5", "3.5", "2"]


@pytest.mark.parametrize("unit", [1e-15, 1.0, 1e24])
def test_mistakes_of_values_of_any_size_are_told_apart(unit: float, tmp_path: Path) -> None:
    write_eval(tmp_path, [0.5, 0.75])
    for seed, prediction in enumerate((2018.25, 2018.5)):
        line = {"id": "a", "label": 2019.75 * unit, "prediction": prediction * unit}
        write_predictions(tmp_path / f"run-{seed}", [line])
    (mistakes,) = list_mistakes(collect_inputs([tmp_path]).evaluations)
    _, label, predicted, error = mistakes.table.rows[0]
    shown = [float(str(cell)) for cell in (label, *re.findall(r"([^ (]+) \(1 of 2\)", str(predicted)), error)]
    assert shown == pytest.approx([2019.75 * unit, 2018.25 * unit, 2018.5 * unit, 1.375 * unit], rel=1e-5, abs=0)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0031, "0.0031"),
        (2018.5, "2018.5"),
        (1234567.0, "1234567"),
        (1234571.0, "1234571"),
        (float(np.float32(0.1)), "0.1"),
    ],
)
def test_mistakes_of_values_show_the_digits_of_fp32(value: float, shown: str, tmp_path: Path) -> None:
    write_result(tmp_path, task="stsb", metric="pearson", score=0.9)
    write_predictions(tmp_path, [{"id": "a", "label": value, "prediction": value + 1}])
    (mistakes,) = list_mistakes([evaluation_in(tmp_path)])
    assert mistakes.table.rows[0][1] == shown


def test_mistakes_of_taggers_are_listed_by_their_tags(tmp_path: Path) -> None:
    write_result(tmp_path, task="tags", metric="f1", score=0.5)
    lines = [
        {"id": name, "label": label, "prediction": "O O", "f1": 0.5, "text": f"text {name}"}
        for name, label in {"a": "B-PER O", "b": "O O"}.items()
    ]
    write_predictions(tmp_path, lines)
    text = page_text(tmp_path, tmp_path / "report.html")
    assert "text a" in text and "text b" not in text


def test_mistakes_with_invalid_utf8_lines_are_still_listed(tmp_path: Path) -> None:
    write_eval(tmp_path / "w", [0.5])
    lines = [classified("0", "no", "yes", 0.1, text="x"), classified("1", "no", "yes", 0.2, text="readable")]
    written = "".join(json.dumps(line) + "\n" for line in lines).encode()
    (tmp_path / "w" / "run-0" / "predictions.dev.jsonl").write_bytes(b"\xff\xfe\n" + written.replace(b'"x"', b'"\xff"'))
    assert "readable" in page_text(tmp_path / "w", tmp_path / "report.html")


def test_predictions_missing_from_a_manifest_are_an_error(tmp_path: Path) -> None:
    write_predictions(tmp_path, [classified("0", "no", "yes", 0.1)])
    store.seal(tmp_path, "task")
    (tmp_path / "predictions.dev.jsonl").unlink()
    with pytest.raises(CheckpointError, match=r"predictions\.dev\.jsonl"):
        read_predictions(tmp_path)


@settings(max_examples=30)
@given(
    lines=st.lists(
        st.dictionaries(
            st.sampled_from(["id", "label", "prediction", "probabilities", "f1", "em", "answers", "question", "text"]),
            st.recursive(
                st.none() | st.booleans() | st.floats() | st.text(max_size=4),
                lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
                max_leaves=4,
            ),
        ),
        max_size=4,
    )
)
def test_mistakes_of_any_json_lines_do_not_raise(
    tmp_path_factory: pytest.TempPathFactory, lines: list[dict[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    write_predictions(folder, lines)
    for mistakes in list_mistakes([evaluation_in(folder)]):
        assert mistakes.table.rows


def evaluation_in(folder: Path) -> Evaluation:
    write_result(folder, task="x", metric="y", score=0.5)
    return collect_inputs([folder]).evaluations[0]


def test_mistakes_with_markup_are_escaped(tmp_path: Path) -> None:
    hostile = "<script>alert('x')</script> | [a](javascript:b) **c** `d`\u2028\x1b[31m\n# e"
    write_result(tmp_path, score=0.5)
    lines = [{"id": "0", "text": hostile, "label": hostile, "prediction": "no", "probabilities": {hostile: 0.1}}]
    write_predictions(tmp_path, lines)
    build_report([tmp_path], tmp_path / "report.html", markdown=tmp_path / "report.md")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script" not in text and "alert('x')" in Page(text).text and "\x1b" not in text
    markdown = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "\x1b" not in markdown and "\n# e" not in markdown
    assert not re.search(r"(?<!\\)<|(?<!\\)\]\(|(?<!\\)`", markdown)
    row = next(line for line in markdown.splitlines() if "alert" in line and "0.90" in line)
    assert len(re.findall(r"(?<!\\)\|", row)) - 1 == count_columns(markdown, row)


def count_columns(markdown: str, row: str) -> int:
    """Return the number of columns of the table that contains the row."""
    lines = markdown.splitlines()
    ruler = next(line for line in reversed(lines[: lines.index(row)]) if set(line) <= set("| -") and "---" in line)
    return ruler.count("---")
