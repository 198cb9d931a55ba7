"""Tables with equal titles are one task in a report only if labels and dev examples are equal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from albert_cli.report.build import build_report
from tests.helpers.markdown import find_table
from tests.helpers.reports import write_eval
from tests.helpers.results import scored_result


def write_table_eval(folder: Path, score: float, texts: list[str], **changes: Any) -> None:
    """Write an evaluation on a table with these dev texts; without texts, its run has saved no predictions."""
    defaults = {"task": "table", "title": "table", "labels": ["a", "b"], "checkpoint": "c"}
    write_eval(folder, [score], **(defaults | changes))
    lines = [{"id": str(n), "text": text, "label": "a", "prediction": "b"} for n, text in enumerate(texts)]
    if lines:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "run-0" / "predictions.dev.jsonl").write_text(text, encoding="utf-8")


def read_rows(directory: Path) -> dict[str, tuple[str, str]]:
    """Write a report; return the scores of the checkpoint and of the majority class by the name of the task."""
    build_report([directory], None, markdown=directory.parent / "report.md")
    rows = find_table((directory.parent / "report.md").read_text(), "task", "majority class")
    return {row["task"].removesuffix(" accuracy"): (row["checkpoint c"][:4], row["majority class"]) for row in rows}


@pytest.mark.parametrize("suffix", ["", " (test)"])
def test_tables_with_other_dev_texts_are_separate_rows(suffix: str, tmp_path: Path) -> None:
    title = f"table{suffix}"
    write_table_eval(tmp_path / "w" / "mail", 0.9, ["x", "y"], majority=0.7, title=title)
    write_table_eval(tmp_path / "w" / "news", 0.6, ["x", "z"], majority=0.5, title=title)
    rows = read_rows(tmp_path / "w")
    assert rows == {f"table (mail){suffix}": ("90.0", "70.0"), f"table (news){suffix}": ("60.0", "50.0")}


def test_results_of_one_table_share_its_row_and_directory(tmp_path: Path) -> None:
    for folder, score, texts in (("mail", 0.9, ["x", "y"]), ("news", 0.6, ["x", "z"])):
        write_table_eval(tmp_path / "w" / folder / "scores", score, texts)
        write_table_eval(tmp_path / "w" / folder / "random", 0.5, texts, weights="random")
    assert read_rows(tmp_path / "w").keys() == {"table (mail)", "table (news)"}


def test_tables_in_one_folder_get_their_first_directory(tmp_path: Path) -> None:
    for folder, texts in (("1", ["x"]), ("2", ["y"])):
        write_table_eval(tmp_path / "w" / f"a{folder}", 0.9, texts)
        write_table_eval(tmp_path / "w" / f"b{folder}", 0.5, texts, weights="random")
    assert read_rows(tmp_path / "w").keys() == {"table (a1)", "table (a2)"}


def test_equal_or_unknown_dev_texts_are_one_table(tmp_path: Path) -> None:
    write_table_eval(tmp_path / "w" / "a", 0.9, ["x", "y"])
    write_table_eval(tmp_path / "w" / "b", 0.5, ["x", "y"], weights="random")
    (tmp_path / "w" / "c").mkdir()
    changes = {"task": "table", "title": "table", "labels": ["a", "b"]}
    scored_result(0.4, checkpoint="d", **changes).write(tmp_path / "w" / "c" / "results.json")
    assert read_rows(tmp_path / "w").keys() == {"table"}


def test_tasks_of_the_registry_are_one_row_on_any_dev_set(tmp_path: Path) -> None:
    write_table_eval(tmp_path / "w" / "a", 0.9, ["x"], task="rte", title="RTE", dev_examples=1)
    write_table_eval(tmp_path / "w" / "b", 0.5, ["x", "y"], task="rte", title="RTE", weights="random")
    assert read_rows(tmp_path / "w").keys() == {"RTE"}
