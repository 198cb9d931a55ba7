"""Tests of the average score: it equals the paper's Avg, and takes the metrics of the paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from albert_cli.experiments import recipe
from albert_cli.tasks.published import PublishedScores, load_published_scores
from albert_cli.tasks.registry import average_score, paper_metric_names, paper_metrics
from tests.helpers.results import evaluation_result


def parse_row(tasks: Sequence[str], cells: Sequence[str]) -> PublishedScores:
    """Parse cells of a table: a SQuAD cell has two scores, `F1/EM`, and a dash means no score."""
    return {
        task: dict(zip(paper_metric_names(task), map(float, cell.split("/")), strict=True))
        for task, cell in zip(tasks, cells, strict=True)
        if cell != "–"
    }


COLUMNS = {"SQuAD1.1": "squad1", "SQuAD2.0": "squad2", "MNLI": "mnli", "SST-2": "sst2", "RACE": "race"}


def paper_rows() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rows of the paper's tables that have an Avg, from the recipes of the experiments."""
    for name in recipe.experiment_names():
        for table in recipe.load_experiment(name).tables:
            for variant, cells in table.rows.items() if "Avg" in table.columns else ():
                yield f"{table.title}, {table.version}, {name}, {variant}", dict(zip(table.columns, cells, strict=True))


ROWS = dict(paper_rows())


@pytest.mark.parametrize("name", [name for name in ROWS if "version 1" not in name])
def test_average_score_of_paper_rows_equals_the_paper(name: str) -> None:
    cells = ROWS[name]
    scores = parse_row(list(COLUMNS.values()), [cells[column] for column in COLUMNS])
    assert average_score(scores) == pytest.approx(float(cells["Avg"]), abs=0.05 + 1e-9)


def test_recipes_have_all_paper_tables_with_an_average() -> None:
    assert {name.split(",")[0] for name in ROWS} == {f"Table {n}" for n in (2, 3, 4, 5, 6, 7, 8, 11, 12, 13)}
    assert len(ROWS) >= 40


@pytest.mark.parametrize(
    ("model", "expected"),
    [  # README of google-research/albert
        ("ALBERT-base v2", 82.3), ("ALBERT-large v2", 85.7), ("ALBERT-xlarge v2", 87.9), ("ALBERT-xxlarge v2", 90.9),
        ("ALBERT-base v1", 80.1), ("ALBERT-large v1", 82.4), ("ALBERT-xlarge v1", 85.5), ("ALBERT-xxlarge v1", 91.0),
    ],
)  # fmt: skip
def test_average_score_of_released_models_equals_readme(model: str, expected: float) -> None:
    assert average_score(load_published_scores()[model]) == pytest.approx(expected, abs=0.05 + 1e-9)


def test_published_scores_equal_table_9_of_the_experiment() -> None:
    (table,) = (t for t in recipe.load_experiment("glue").tables if t.title == "Table 9, one model on dev")
    names = {"bert-large": "BERT-large", "m15": "ALBERT-xxlarge, 1.5 M steps"}
    for name, cells in table.rows.items():
        if name != "m1":
            tasks = [column.lower().replace("-", "") for column in table.columns]
            assert parse_row(tasks, cells).items() <= load_published_scores()[names.get(name, name)].items(), name


def test_paper_metrics_selects_the_metrics_of_the_paper() -> None:
    spans = {"f1": [0.5, 0.9, 0.6], "em": [0.4, 0.1, 0.3], "best_f1": [0.7, 0.8, 0.9], "best_em": [0.6, 0.6, 0.5]}
    medians = evaluation_result(all_scores=spans).medians
    assert paper_metrics("squad1", medians) == {"f1": 0.6, "em": 0.3}
    assert paper_metrics("squad2", medians) == {"best_f1": 0.8, "best_em": 0.6}
    matched = {"accuracy": 0.7, "dev_mismatched_accuracy": 0.1}
    assert paper_metrics("mnli", matched) == {"accuracy": 0.7}
