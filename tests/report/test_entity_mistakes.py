"""Named entities on the page: marked texts, and the errors of each type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from albert_cli.report.build import build_report
from albert_cli.report.entity_mistakes import (
    EntitySpan,
    mark_entities,
    measure_entity_error,
    tabulate_entity_errors,
    tabulate_entity_mistakes,
)
from albert_cli.report.render import MarkedText
from albert_cli.tasks.predictions import PredictionLine
from tests.helpers.reports import HOSTILE, Page
from tests.helpers.results import run_result

TEXT = "Ada Lovelace met Bo in Paris."


def line(gold: list[tuple[int, int, str]], predicted: list[tuple[int, int, str]], **changes: Any) -> PredictionLine:
    def objects(entities: list[tuple[int, int, str]]) -> list[dict[str, Any]]:
        return [{"start": a, "end": b, "label": label, "text": TEXT[a:b]} for a, b, label in entities]

    values = {"id": "0", "text": TEXT, "label": objects(gold), "prediction": objects(predicted), **changes}
    return cast(PredictionLine, values)


GOLD = [(0, 12, "PER"), (17, 19, "PER"), (23, 28, "LOC")]


def test_measure_entity_error_is_one_minus_f1() -> None:
    assert measure_entity_error(line(GOLD, GOLD)) == 0
    assert measure_entity_error(line(GOLD, [])) == 1
    assert measure_entity_error(line([], [])) == 0
    assert measure_entity_error(line([], [(0, 3, "PER")])) == 1
    assert measure_entity_error(line(GOLD, [(0, 12, "PER"), (23, 28, "PER")])) == 1 - 2 / 5


def test_tabulate_entity_errors_judges_each_entity() -> None:
    predicted = [(0, 3, "PER"), (17, 19, "LOC"), (20, 22, "LOC")]  # a border, a type, spurious; Paris is missed
    table = tabulate_entity_errors([line(GOLD, predicted), line(GOLD, GOLD)])
    rows = {row[0]: list(row[1:]) for row in table.rows}
    assert table.headers[5:] == ["missed", "wrong borders", "wrong type", "spurious"]
    assert rows["LOC"] == ["2", "33.3", "50.0", "40.0", "1", "0", "0", "1"]
    assert rows["PER"] == ["4", "66.7", "50.0", "57.1", "0", "1", "1", "0"]
    assert rows["all types"][0] == "6" and rows["all types"][3] == "50.0"


def test_mark_entities_keeps_the_whole_text() -> None:
    gold = [EntitySpan(*entity) for entity in GOLD]
    marked = mark_entities(TEXT, gold, gold[:1])
    assert "".join(segment.text for segment in marked.segments) == TEXT
    assert [(s.text, s.label, s.is_wrong) for s in marked.segments if s.label] == [
        ("Ada Lovelace", "PER", False),
        ("Bo", "PER", True),
        ("Paris", "LOC", True),
    ]


def test_mark_entities_of_a_long_text_shows_the_mistake() -> None:
    text = "word " * 300 + "Bo" + " word" * 300
    row = tabulate_entity_mistakes([[line([(1500, 1502, "PER")], [], text=text)]]).rows[0]
    assert isinstance(row[0], MarkedText) and isinstance(row[1], MarkedText)
    shown = "".join(segment.text for segment in row[0].segments)
    assert shown.startswith("…") and shown.endswith("…") and " Bo " in shown and len(shown) < 410
    assert [s.text for s in row[0].segments if s.is_wrong] == ["Bo"] and row[2] == "1.00"


def test_report_marks_entities_and_names_the_baseline(tmp_path: Path) -> None:
    result = run_result(0.5, task="ner", title="Named entities", metric="entity_f1", majority=0.25)
    (tmp_path / "w").mkdir()
    result.write(tmp_path / "w" / "results.json")
    hostile = line([(0, 8, HOSTILE)], [], id="1", text=HOSTILE)
    lines = [line(GOLD, [(0, 12, "PER"), (23, 28, "PER")]), line(GOLD, GOLD, id="2"), hostile]
    (tmp_path / "w" / "predictions.dev.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    build_report([tmp_path / "w"], tmp_path / "report.html", tmp_path / "report.md")
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = Page(html)
    assert "most frequent tags" in page.text and "majority class" not in page.text
    assert "<mark>Ada Lovelace <small><bdi>PER</bdi></small></mark>" in html
    assert '<mark class="wrong">Paris <small><bdi>LOC</bdi></small></mark>' in html
    assert "wrong borders" in page.text and "the worst 2 of 3 examples" in page.text
    assert "script" not in page.elements and HOSTILE in page.text
    markdown = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "**Ada Lovelace** (PER) met **Bo** (PER, wrong)" in markdown


def test_report_text_has_its_own_direction(tmp_path: Path) -> None:
    """A Hebrew or Arabic sentence runs from the right; the Latin label of an entity must not change its order."""
    run_result(0.5, task="ner", title="Named entities", metric="entity_f1").write(tmp_path / "results.json")
    hebrew = line([(0, 3, "PER")], [], text="דוד גר בחיפה.")
    (tmp_path / "predictions.dev.jsonl").write_text(json.dumps(hebrew) + "\n")
    build_report([tmp_path], tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    sentence = '<mark class="wrong">דוד <small><bdi>PER</bdi></small></mark> גר בחיפה.'
    assert f'<th scope="row" class="text" dir="auto">{sentence}</th>' in html
    assert '<td class="text" dir="auto">דוד גר בחיפה.</td>' in html
    assert '<th scope="col" class="text" dir="auto">label</th>' in html
    assert '<td class="number">' in html and ".text { text-align: start; }" in html


def test_report_lists_mistakes_on_several_classes(tmp_path: Path) -> None:
    run_result(0.5, task="table", title="topics", metric="micro_f1").write(tmp_path / "results.json")
    lines = [
        {"id": "a", "text": "right", "label": ["x"], "prediction": ["x"], "probabilities": {"x": 0.9, "y": 0.1}},
        {"id": "b", "text": "half", "label": ["x", "y"], "prediction": ["x"], "probabilities": {"x": 0.9, "y": 0.1}},
        {"id": "c", "text": "none", "label": [], "prediction": ["y"], "probabilities": {"x": 0.1, "y": 0.9}},
    ]
    (tmp_path / "predictions.dev.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    build_report([tmp_path], tmp_path / "report.html")
    text = Page((tmp_path / "report.html").read_text(encoding="utf-8")).text
    assert "the worst 2 of 3 examples" in text and "x / y" in text and "right" not in text.split("Mistakes")[-1]
