"""What models get wrong, as the page shows it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_cli import store
from albert_cli.errors import CheckpointError
from albert_cli.report import mistakes, predictions
from albert_cli.report.build import build_report
from albert_cli.report.collect import collect
from albert_cli.report.page import Page as Blocks
from albert_cli.report.page import Section, html
from tests.reports import Page, write_eval


def write_predictions(directory: Path, lines: list[dict[str, Any]]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (directory / "predictions.dev.jsonl").write_text(text, encoding="utf-8")


def classified(name: str, gold: str, said: str, probability: float, **more: Any) -> dict[str, Any]:
    """A line of a classifier with two classes; `probability` is the gold label's."""
    other = "yes" if gold == "no" else "no"
    found = {"probabilities": {gold: probability, other: 1 - probability}}
    return {"id": name, "label": gold, "prediction": said, **found, **more}


def test_confusions_and_the_worst_examples_count_every_run(tmp_path: Path) -> None:
    write_eval(tmp_path / "w", [0.5, 0.75], checkpoint="abc")
    texts = {"0": "always right", "1": "right once", "2": "never right", "3": "right by a hair"}
    runs = (
        [("0", "no", "no", 0.9), ("1", "yes", "no", 0.4), ("2", "yes", "no", 0.01), ("3", "no", "no", 0.51)],
        [("0", "no", "no", 0.9), ("1", "yes", "yes", 0.8), ("2", "yes", "no", 0.02), ("3", "no", "no", 0.52)],
    )
    for seed, lines in enumerate(runs):
        write_predictions(tmp_path / "w" / f"run-{seed}", [classified(*line, text=texts[line[0]]) for line in lines])
    found = predictions.read([tmp_path / "w" / "run-0", tmp_path / "w" / "run-1"])
    assert [j.example["id"] for j in predictions.worst(found, 10)] == ["2", "1"]
    labels, counts = predictions.confusion(found)
    assert sorted(labels) == ["no", "yes"]
    assert counts == {("no", "no"): 4, ("yes", "no"): 3, ("yes", "yes"): 1}
    build_report([tmp_path / "w"], tmp_path / "report.html")
    text = Page((tmp_path / "report.html").read_text()).text
    assert "75.0" in text and "never right" in text and "no (1 of 2), yes (1 of 2)" in text
    assert "always right" not in text and "right by a hair" not in text


def test_span_questions_are_sorted_by_answer_and_by_question_word(tmp_path: Path) -> None:
    def line(name: str, question: str, answers: list[str], f1: float) -> dict[str, Any]:
        found = {"prediction": answers[0] if f1 == 1 else "", "em": float(f1 == 1), "f1": f1}
        return {"id": name, "question": question, "answers": answers, **found}

    lines = [
        line("a", "How many books are there?", ["ten"], 1.0),
        line("b", "In what year did it end?", ["the year of 1999"], 0.5),
        line("c", "What is it?", ["a thing"], 1.0),
        line("d", "Name it.", ["a b c d e f g h i j k"], 0.0),
        {"id": "e", "question": "Who was it?", "answers": [], "prediction": "x", "em": 0.0, "f1": 0.0},
    ]
    record = {"kind": "run", "task": "squad2", "title": "SQuAD 2.0", "metric": "f1", "score": 0.5, "seed": 0}
    store.write_json(tmp_path / "results.json", record)
    write_predictions(tmp_path, lines)
    found = predictions.read([tmp_path])
    lengths = {group.name: (group.size, group.f1, group.exact_match) for group in predictions.by_answer_length(found)}
    assert lengths == {"none": (1, 0, 0), "1": (1, 1, 1), "2": (1, 1, 1), "4–5": (1, 0.5, 0), "over 10": (1, 0, 0)}
    words = {group.name: (group.size, group.f1) for group in predictions.by_question_word(found)}
    assert words == {"what": (2, 0.75), "how many": (1, 1.0), "who": (1, 0.0), "other": (1, 0.0)}
    build_report([tmp_path], tmp_path / "report.html")
    page = Page((tmp_path / "report.html").read_text())
    labels = [value or "" for name, value in page.attributes if name == "aria-label"]
    assert {"SQuAD 2.0: By words of the answer", "SQuAD 2.0: By question word"} <= set(labels)
    assert "no answer" in page.text and "Name it." in page.text
    assert "82.1" in page.text and "ALBERT-base v2" in page.text  # published, labelled so
    assert "at another scale" in page.text


def test_of_equally_wrong_answers_the_surest_come_first_and_values_have_a_range(tmp_path: Path) -> None:
    def line(name: str, said: str, probability: float) -> dict[str, Any]:
        return {"id": name, "answers": ["x"], "prediction": said, "probability": probability, "f1": 0.0, "em": 0.0}

    write_predictions(tmp_path, [line("a", "y", 0.2), line("b", "", 0.9), line("c", "y", 0.7)])
    assert [j.example["id"] for j in predictions.worst(predictions.read([tmp_path]), 3)] == ["c", "a", "b"]
    write_eval(tmp_path / "w", [0.5, 0.6], task="stsb", metric="pearson")
    for seed, value in enumerate((2.0, 3.0)):
        write_predictions(tmp_path / "w" / f"run-{seed}", [{"id": "0", "text": "t", "label": 1.0, "prediction": value}])
    build_report([tmp_path / "w"], tmp_path / "report.html")
    assert "2.50 (2.00 to 3.00)" in Page((tmp_path / "report.html").read_text()).text


def test_bytes_that_are_no_text_do_not_end_a_report(tmp_path: Path) -> None:
    write_eval(tmp_path / "w", [0.5])
    lines = [classified("0", "no", "yes", 0.1, text="x"), classified("1", "no", "yes", 0.2, text="readable")]
    written = "".join(json.dumps(line) + "\n" for line in lines).encode()
    (tmp_path / "w" / "run-0" / "predictions.dev.jsonl").write_bytes(b"\xff\xfe\n" + written.replace(b'"x"', b'"\xff"'))
    build_report([tmp_path / "w"], tmp_path / "report.html")
    assert "readable" in Page((tmp_path / "report.html").read_text()).text


def test_predictions_that_the_manifest_names_are_missed(tmp_path: Path) -> None:
    write_predictions(tmp_path, [classified("0", "no", "yes", 0.1)])
    store.seal(tmp_path, "task")
    (tmp_path / "predictions.dev.jsonl").unlink()
    with pytest.raises(CheckpointError, match=r"predictions\.dev\.jsonl"):
        predictions.read([tmp_path])


def test_values_stand_over_what_they_are(tmp_path: Path) -> None:
    store.write_json(tmp_path / "results.json", {"kind": "run", "task": "stsb", "metric": "pearson", "score": 0.9})
    lines = [{"id": str(i), "label": i / 2, "prediction": i / 2 + (2 if i == 3 else 0.1)} for i in range(6)]
    write_predictions(tmp_path, lines)
    found = predictions.read([tmp_path])
    assert predictions.values(found)[3] == (1.5, 3.5) and predictions.worst(found, 1)[0].example["id"] == "3"
    assert predictions.confusion(found)[0] == []
    build_report([tmp_path], tmp_path / "report.html")
    page = Page((tmp_path / "report.html").read_text())
    assert "Predicted over what it is" in page.text and "2.00" in page.text


def test_many_classes_are_listed_and_not_drawn(tmp_path: Path) -> None:
    store.write_json(tmp_path / "results.json", {"kind": "run", "task": "table", "metric": "accuracy", "score": 0.5})
    names = [f"class {i}" for i in range(30)]
    lines = [classified(str(i), n, "class 7" if i % 2 else n, 0.5, probabilities={n: 0.5}) for i, n in enumerate(names)]
    write_predictions(tmp_path, lines)
    build_report([tmp_path], tmp_path / "report.html")
    assert "The commonest confusions of 30 classes" in Page((tmp_path / "report.html").read_text()).text


def test_lines_of_another_kind_of_task_are_neither_classes_nor_answers(tmp_path: Path) -> None:
    """A tagger's, say: tags of a sentence with its F1. The wrong ones are listed, and nothing is drawn of them."""
    store.write_json(tmp_path / "results.json", {"kind": "run", "task": "tags", "metric": "f1", "score": 0.5})
    said = {"prediction": "O O", "f1": 0.5}
    tagged = {"a": "B-PER O", "b": "O O"}
    write_predictions(tmp_path, [{"id": n, "label": tags, "text": f"text {n}", **said} for n, tags in tagged.items()])
    build_report([tmp_path], tmp_path / "report.html")
    text = Page((tmp_path / "report.html").read_text()).text
    assert "The one error" in text and "text a" in text and "text b" not in text
    assert "Rows: what it is" not in text and "By words of the answer" not in text


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
def test_any_predictions_are_read(tmp_path_factory: pytest.TempPathFactory, lines: list[dict[str, Any]]) -> None:
    folder = tmp_path_factory.mktemp("any")
    write_predictions(folder, lines)
    record = {"kind": "run", "task": "x", "metric": "y", "score": 0.5}
    (evaluation,) = [e for e in [results_of(folder, record)] if e]
    Page(html(Blocks("", "", [], Section("errors", "Errors", mistakes.section([evaluation], {evaluation.model: 1})))))


def results_of(folder: Path, record: dict[str, Any]) -> Any:
    store.write_json(folder / "results.json", record)
    return collect([folder]).evaluations[0]


def test_hostile_predictions_are_text_on_the_page_and_in_markdown(tmp_path: Path) -> None:
    hostile = "<script>alert('x')</script> | [a](javascript:b) **c** `d`\u2028\x1b[31m\n# e"
    store.write_json(tmp_path / "results.json", {"kind": "run", "task": "table", "metric": "accuracy", "score": 0.5})
    lines = [{"id": "0", "text": hostile, "label": hostile, "prediction": "no", "probabilities": {hostile: 0.1}}]
    write_predictions(tmp_path, lines)
    build_report([tmp_path], tmp_path / "report.html", markdown=tmp_path / "report.md")
    text = (tmp_path / "report.html").read_text()
    assert "<script" not in text and "alert('x')" in Page(text).text and "\x1b" not in text
    markdown = (tmp_path / "report.md").read_text()
    assert "\x1b" not in markdown and "\n# e" not in markdown
    assert not re.search(r"(?<!\\)<|(?<!\\)\]\(|(?<!\\)`", markdown)
    row = next(line for line in markdown.splitlines() if "alert" in line and "10.0" in line)
    assert len(re.findall(r"(?<!\\)\|", row)) - 1 == row_width(markdown, row)


def row_width(markdown: str, row: str) -> int:
    """How many columns the table has that holds this row."""
    lines = markdown.splitlines()
    ruler = next(line for line in reversed(lines[: lines.index(row)]) if set(line) <= set("| -") and "---" in line)
    return ruler.count("---")
