"""The report shows what its directories contain, escapes all text, and loads nothing."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_cli import __version__, store
from albert_cli.errors import AlbertError, CheckpointError, InputError
from albert_cli.report.build import ReportPage, build_report
from albert_cli.report.collect import collect_inputs
from albert_cli.report.render import Cell, Table, render_html, strip_unprintable
from albert_cli.results import RunResult, ScoredResult
from tests.helpers.command import albert
from tests.helpers.markdown import Row, find_table, read_tables
from tests.helpers.reports import HOSTILE, Page, write_eval, write_pretraining
from tests.helpers.results import ensemble_result, run_result, scored_result
from tests.helpers.snapshots import stored_text


def write_workspace(root: Path) -> Path:
    """Write a pretraining run and two evaluations below a directory; return the directory."""
    checkpoint = write_pretraining(root / "pretrain")
    write_eval(root / "pretrained", [0.61, 0.63, 0.62], checkpoint=checkpoint, weights="pretrained")
    write_eval(root / "random", [0.55, 0.52, 0.54], weights="random", baselines={"bag of words": {"accuracy": 0.58}})
    return root


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return write_workspace(tmp_path / "work")


@pytest.fixture(scope="module")
def report_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a workspace with examples; the workspace is `work` next to it, the Markdown text is `report.md`."""
    folder = tmp_path_factory.mktemp("report")
    workspace = write_workspace(folder / "work")
    store.write_json(workspace / "examples.json", {"title": "Examples", "rows": [{"text": "a"}]})
    build_report([workspace], folder / "report.html", markdown=folder / "report.md")
    return folder / "report.html"


def read_scores(directory: Path) -> dict[str, Row]:
    """Write a report of the directory as Markdown, and return the rows of its table of scores by task."""
    build_report([directory], None, markdown=directory.parent / "report.md")
    rows = find_table((directory.parent / "report.md").read_text(), "task", "majority class")
    return {row["task"]: row for row in rows}


def value(cell: str) -> float:
    """Return the number at the beginning of a cell, before its notes."""
    return float(cell.split()[0])


def test_markdown_of_a_workspace_is_that_stored(workspace: Path, tmp_path: Path) -> None:
    written = build_report([workspace], None, markdown=tmp_path / "report.md")
    assert written.report is None and written.markdown == str(tmp_path / "report.md")
    assert (written.tasks, written.pretraining) == (["rte"], ["pretrain"])
    assert written.models == ["pretrain, step 40", "random weights"]
    text = (tmp_path / "report.md").read_text().replace(f"albert {__version__}", "albert VERSION")
    assert text == stored_text(Path(__file__).parent / "snapshots" / "workspace.md", text)


def test_page_has_the_tables_of_the_markdown(report_page: Path) -> None:
    tables = read_tables(report_page.with_suffix(".md").read_text())
    rows = [[list(table[0]), *(list(row.values()) for row in table)] for table in tables]
    page = Page(report_page.read_text())
    assert sorted(map(without_spaces, page.rows)) == sorted(without_spaces(row) for table in rows for row in table)
    assert "unigram entropy 7.00" in page.svg


def without_spaces(row: list[str]) -> list[str]:
    """Return the cells without white space, which differs between HTML and Markdown."""
    return ["".join(cell.split()) for cell in row]


def test_collapsed_seeds_are_counted_in_their_cell(tmp_path: Path) -> None:
    collapsed = {"0": "one class for all inputs"}
    write_eval(tmp_path / "w" / "a", [0.5, 0.6, 0.7], checkpoint="abc", weights="pretrained", collapsed=collapsed)
    write_eval(tmp_path / "w" / "b", [0.52, 0.55, 0.58], weights="random")
    row = read_scores(tmp_path / "w")["RTE accuracy"]
    assert "1 collapsed" in row["checkpoint abc"] and "collapsed" not in row["random weights"]


@pytest.mark.parametrize(("collapsed", "num_rings"), [({}, 0), ({"1": "one class for all inputs"}, 1)])
def test_collapsed_seeds_are_drawn_as_rings(collapsed: dict[str, str], num_rings: int, tmp_path: Path) -> None:
    write_eval(tmp_path / "w" / "a", [0.5, 0.6, 0.7], collapsed=collapsed)
    build_report([tmp_path / "w"], tmp_path / "report.html")
    page = Page((tmp_path / "report.html").read_text())
    assert len(re.findall(r"<use [^>]*fill-opacity: 0;", page.svg)) == num_rings


def test_report_markdown_file_as_page_is_rejected(tmp_path: Path) -> None:
    printed = albert("report", tmp_path, "--out", tmp_path / "x.md", expect=2)
    assert f"--markdown {tmp_path / 'x.md'}" in printed.err
    assert not (tmp_path / "x.md").exists()


def test_report_mnli_cell_has_both_dev_sets(tmp_path: Path) -> None:
    scores = {"accuracy": [0.7, 0.8], "mismatched_accuracy": [0.5, 0.6]}
    examples = {"train": 9, "dev_matched": 24, "dev_mismatched": 30}
    changes = {"checkpoint": "abc", "task": "mnli", "all_scores": scores, "examples": examples}
    write_eval(tmp_path / "w", [0.7, 0.8], **changes)
    assert "mismatched accuracy 55.0" in read_scores(tmp_path / "w")["MNLI accuracy"]["checkpoint abc"]


def test_markdown_fact_without_comparison_ends_with_its_value(tmp_path: Path) -> None:
    scored_result(0.25, task="ax", title="AX", majority=None).write(tmp_path / "w" / "results.json")
    build_report([tmp_path / "w"], tmp_path / "report.html", tmp_path / "report.md")
    lines = (tmp_path / "report.md").read_text().splitlines()
    assert [line for line in lines if line.startswith("* AX") and line.endswith("25.0")]


def test_ensemble_is_not_compared_with_published_scores(tmp_path: Path) -> None:
    write_eval(tmp_path / "w" / "alone", [0.61, 0.63], checkpoint="abc", weights="pretrained")
    write_eval(tmp_path / "w" / "random", [0.51, 0.53], weights="random")
    together = tmp_path / "w" / "alone" / "together"  # below an evaluation, of which it is no part
    together.mkdir()
    ensemble_result(0.657).write(together / "results.json")
    row = read_scores(tmp_path / "w")["RTE accuracy"]
    models = ("checkpoint abc", "ensemble of 2", "random weights")
    assert [value(row[model]) for model in models] == [62.0, 65.7, 52.0]
    (published,) = find_table((tmp_path / "report.md").read_text(), "here, best median")
    assert (published["here, best median"], published["BERT-large"]) == ("62.0", "70.4")


def test_untrained_results_are_shown_next_to_samples(tmp_path: Path) -> None:
    sample = {"train_examples": 100, "examples": {"train": 100, "dev": 277}, "checkpoint": "abc"}
    write_eval(tmp_path / "w" / "few", [0.61, 0.63], **sample)
    for name, result in (("together", ensemble_result(0.657)), ("alone", scored_result(0.5, checkpoint="abc"))):
        (tmp_path / "w" / name).mkdir()
        result.write(tmp_path / "w" / name / "results.json")
    row = read_scores(tmp_path / "w")["RTE accuracy"]
    models = ("checkpoint abc (few)", "ensemble of 2", "checkpoint abc (alone)")
    assert [value(row[model]) for model in models] == [62.0, 65.7, 50.0]
    assert read_label_curve(tmp_path / "report.md") == {}, "the size of their training set is unknown"


def test_scored_result_below_an_evaluation_is_shown(tmp_path: Path) -> None:
    write_eval(tmp_path / "w" / "rte", [0.61, 0.63], checkpoint="abc")
    for name, title in (("rte/test", "RTE (test)"), ("rte/run-0/dev", "RTE")):
        (tmp_path / "w" / name).mkdir()
        scored_result(0.59, title=title, checkpoint="def").write(tmp_path / "w" / name / "results.json")
    (tmp_path / "w" / "rte" / "mnli" / "run-0").mkdir(parents=True)
    run_result(0.8, task="mnli", title="MNLI").write(tmp_path / "w" / "rte" / "mnli" / "run-0" / "results.json")
    rows = read_scores(tmp_path / "w")
    assert rows.keys() == {"RTE accuracy", "RTE (test) accuracy"}
    assert value(rows["RTE accuracy"]["checkpoint def"]) == value(rows["RTE (test) accuracy"]["checkpoint def"]) == 59.0
    text = (tmp_path / "report.md").read_text()
    published = find_table(text, "here, best median")
    assert [row["task"] for row in published] == ["RTE accuracy"], "published scores are on the dev sets"
    assert "or on the test set for a task with (test), times 100" in text
    assert "2 tasks, 2 fine-tuned models." in text, "a scored checkpoint was not fine-tuned for this report"


def test_baselines_are_those_of_the_largest_dev_set(tmp_path: Path) -> None:
    for name, dev, linear, score in (("a", 277, "words", 0.58), ("b", 50, "characters", 0.7)):
        write_eval(
            tmp_path / "w" / name, [0.6], checkpoint=name, majority=score - 0.05, dev_examples=dev % 277,
            examples={"train": 2490, "dev": dev}, baselines={linear: {"accuracy": score}},
        )  # fmt: skip
    write_eval(tmp_path / "w" / "few", [0.5], train_examples=100, checkpoint="a", majority=0.53)
    row = read_scores(tmp_path / "w")["RTE accuracy"]
    assert (row["majority class"], row["classical baseline"].split()) == ("53.0", ["58.0", "words"])
    assert read_label_curve(tmp_path / "report.md")["classical baseline"]["2,490"] == "58.0"


def test_results_of_one_model_get_directory_names(tmp_path: Path) -> None:
    for name, scores in (("short", [0.5, 0.6]), ("long", [0.7, 0.8])):
        for task in ("rte", "wnli"):
            write_eval(tmp_path / "w" / name / task, scores, task=task, checkpoint="abc")
    rows = read_scores(tmp_path / "w")
    assert rows.keys() == {"RTE accuracy", "WNLI accuracy"}
    for row in rows.values():
        assert [value(row[f"checkpoint abc ({name})"]) for name in ("long", "short")] == [75.0, 55.0]


def write_curve(root: Path, parts: dict[int, tuple[list[float], list[float]]], everything: int = 800) -> None:
    """Scores of a pretrained model and of random weights by how many examples they learned from; 0 is all of them."""
    for part, both in parts.items():
        for weights, scores in zip(("pretrained", "random"), both, strict=True):
            counts = {"train_examples": part, "examples": {"train": part or everything, "dev": 277}}
            baselines = {"words": {"accuracy": 0.55 + part / 10_000}}
            write_eval(
                root / f"{part}-{weights}", scores, weights=weights, checkpoint="a", baselines=baselines, **counts
            )


def read_label_curve(report: Path) -> dict[str, Row]:
    """Return the scores of each model by number of labeled examples; empty if the report has no such table."""
    rows = find_table(report.read_text(), "labeled examples")
    return {row.pop("labeled examples"): row for row in rows}


def test_scores_by_number_of_labeled_examples(tmp_path: Path) -> None:
    write_curve(
        tmp_path / "w",
        {0: ([0.7, 0.72, 0.74], [0.6, 0.61, 0.62]), 100: ([0.58, 0.54], [0.53]), 400: ([0.6, 0.64], [0.59, 0.61])},
    )
    build_report([tmp_path / "w"], tmp_path / "report.html", markdown=tmp_path / "report.md")
    by_number = read_label_curve(tmp_path / "report.md")
    assert {name: [value(cell) for cell in row.values()] for name, row in by_number.items()} == {
        "checkpoint a": [56.0, 62.0, 72.0],
        "random weights": [53.0, 60.0, 61.0],
        "majority class": [52.7, 52.7, 52.7],
        "classical baseline": [56.0, 59.0, 55.0],
    }
    assert all(list(row) == ["100", "400", "800"] for row in by_number.values())
    # In the table of scores, a task's score is that of all its examples.
    (row,) = read_scores(tmp_path / "w").values()
    assert (value(row["checkpoint a"]), value(row["random weights"])) == (72.0, 61.0)
    svg = Page((tmp_path / "report.html").read_text()).svg.split("</svg>")[0]
    assert all(f">{label}</text>" in svg for label in ("100", "400", "800", "checkpoint a  72.0"))


def test_models_with_smaller_samples_only_have_no_column(tmp_path: Path) -> None:
    write_eval(tmp_path / "w" / "all", [0.6, 0.62], checkpoint="abc")
    write_eval(tmp_path / "w" / "few", [0.5], checkpoint="def", train_examples=100)
    (row,) = read_scores(tmp_path / "w").values()
    assert value(row["checkpoint abc"]) == 61.0 and "checkpoint def" not in row
    assert "checkpoint def" in read_label_curve(tmp_path / "report.md")


def test_sample_larger_than_the_data_counts_as_all(tmp_path: Path) -> None:
    counts = {"examples": {"train": 500, "dev": 277}, "checkpoint": "a"}
    for part, score in ((0, 0.7), (500, 0.6), (1000, 0.65)):
        write_eval(tmp_path / "w" / f"of-{part}", [score], train_examples=part, **counts)
    few = counts | {"examples": {"train": 100, "dev": 277}}
    write_eval(tmp_path / "w" / "of-100", [0.55], train_examples=100, **few)
    build_report([tmp_path / "w"], None, markdown=tmp_path / "report.md")
    by_number = read_label_curve(tmp_path / "report.md")
    assert by_number.pop("majority class").keys() == {"100", "500"}
    assert by_number == {
        "checkpoint a": {"100": "55.0", "500": "–"},
        "checkpoint a (of-0)": {"100": "–", "500": "70.0"},
        "checkpoint a (of-500)": {"100": "–", "500": "60.0"},
        "checkpoint a (of-1000)": {"100": "–", "500": "65.0"},
    }


@pytest.mark.parametrize("apart", ["title", "labels"])
def test_custom_tables_are_separate_tasks(tmp_path: Path, apart: str) -> None:
    values: dict[str, tuple[Any, Any]] = {"title": ("which town?", "which river?"), "labels": (["a", "b"], ["c", "d"])}
    for number, (value, score) in enumerate(zip(values[apart], (0.9, 0.6), strict=True)):
        more = {"task": "table", "title": "table", "labels": ["a", "b"], "majority": score - 0.1} | {apart: value}
        write_eval(tmp_path / "w" / f"{number}", [score, score + 0.02], checkpoint="a", weights="pretrained", **more)
    weak = more | {"weights": "random"}
    write_eval(tmp_path / "w" / "weak", [0.5, 0.52], **weak)
    written = build_report([tmp_path / "w"], None, markdown=tmp_path / "report.md")
    assert written.models == ["checkpoint a", "random weights"]
    rows = find_table((tmp_path / "report.md").read_text(), "task", "majority class")
    columns = ("checkpoint a", "random weights", "majority class")
    assert [[row[name].split()[0] for name in columns] for row in rows] == [
        ["91.0", "–", "80.0"],
        ["61.0", "51.0", "50.0"],
    ]


def test_full_training_sets_have_no_label_curve(tmp_path: Path) -> None:
    for folder, count in (("small", 100), ("large", 400)):  # two tables of one's own, say
        write_eval(tmp_path / "w" / folder, [0.5], checkpoint="a", examples={"train": count, "dev": 9})
    write_curve(tmp_path / "one", {100: ([0.6], [0.5])})
    for name, models in (("w", ["checkpoint a (large)", "checkpoint a (small)"]), ("one", ["checkpoint a"])):
        written = build_report([tmp_path / name], None, markdown=tmp_path / "report.md")
        assert set(models) <= set(written.models)
        assert read_label_curve(tmp_path / "report.md") == {}


def test_protocols_are_printed_once(tmp_path: Path) -> None:
    details = {
        "title": "RTE", "eval_every": 100, "intermediate_task": "mnli", "weights": "pretrained", "steps": 800,
        "lr": 3e-5, "batch_size": 32, "warmup_steps": 200, "max_seq_length": 128, "dropout": 0.1, "checkpoint": "abc",
    }  # fmt: skip
    write_eval(tmp_path / "w" / "a", [0.5, 0.6], seeds=[0, 1], **details)
    note = "the recipe starts from MNLI, whose data are not there"
    write_eval(tmp_path / "w" / "b", [0.4], task="mrpc", title="MRPC", checkpoint="abc", intermediate_note=note)
    (tmp_path / "w" / "c").mkdir()
    one = details | {"task": "cola", "title": "CoLA", "metric": "mcc"}
    run_result(0.4, 3, **one).write(tmp_path / "w" / "c" / "results.json")
    build_report([tmp_path / "w"], None, markdown=tmp_path / "report.md")
    lines = (tmp_path / "report.md").read_text().splitlines()
    protocols = {line.partition(": ")[0]: line.partition(": ")[2].rstrip(".") for line in lines if " on " in line}
    values = {name: set(text.split(", ")) for name, text in protocols.items()}
    same = {"steps 800", "batch size 32", "learning rate 3e-05", "warmup 200 steps", "dropout 0.1"}
    assert same | {"seeds 0 to 1 (median of 2)"} <= values["checkpoint abc on RTE"]
    assert same | {"seed 3"} <= values["checkpoint abc on CoLA"]
    assert any("MNLI" in text for text in values["checkpoint abc on RTE"])
    assert [line for line in lines if note in line and line.startswith("MRPC: ")]


def test_facts_are_ordered_by_lead_over_baselines(tmp_path: Path) -> None:
    for task, score, majority in (("wnli", 0.56, 0.56), ("rte", 0.54, 0.53), ("stsb", 0.2, 0.0)):
        write_eval(tmp_path / task, [score], task=task, majority=majority)
    build_report([tmp_path], None, markdown=tmp_path / "report.md")
    tiles = [line for line in (tmp_path / "report.md").read_text().splitlines() if line.startswith("* ")]
    assert [tile.split(",")[0] for tile in tiles] == ["* STS-B", "* RTE", "* WNLI"]


def test_control_with_the_best_score_is_not_the_result(tmp_path: Path) -> None:
    write_eval(tmp_path / "w" / "pretrained", [0.51, 0.53], checkpoint="abc", weights="pretrained")
    write_eval(tmp_path / "w" / "random", [0.71, 0.73], weights="random")
    assert value(read_scores(tmp_path / "w")["RTE accuracy"]["random weights"]) == 72.0
    text = (tmp_path / "report.md").read_text()
    assert "* RTE, accuracy of checkpoint abc (median of 2): 52.0; random weights 72.0" in text
    assert [row["here, best median"] for row in find_table(text, "here, best median")] == ["52.0"]


def test_same_directories_give_the_same_bytes(report_page: Path, tmp_path: Path) -> None:
    build_report([report_page.parent / "work"], tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == report_page.read_bytes()


def test_page_loads_and_runs_nothing(report_page: Path) -> None:
    text = report_page.read_text()
    page = Page(text)
    assert not {"script", "link", "iframe", "object", "embed"} & set(page.elements)
    sources = [value or "" for name, value in page.attributes if name == "src"]
    assert sources and all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    links = [value or "" for name, value in page.attributes if name in ("href", "xlink:href", "data", "action")]
    assert links and all(link.startswith("#") for link in links)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "://" not in text and "@import" not in text and "url(" not in text
    assert any(name == "content" and "default-src 'none'" in (value or "") for name, value in page.attributes)
    identifiers = [value for name, value in page.attributes if name == "id"]
    assert len(identifiers) == len(set(identifiers))
    assert {link.removeprefix("#") for link in links} <= set(identifiers)


def test_markup_in_labels_is_escaped(tmp_path: Path) -> None:
    root = tmp_path / "work"
    write_eval(
        root / "a", [0.5, 0.6], task=HOSTILE, title=HOSTILE, metric=HOSTILE, baselines={HOSTILE: {HOSTILE: 0.4}},
        versions={HOSTILE: HOSTILE}, checkpoint=HOSTILE, recipe=HOSTILE, data=HOSTILE,
    )  # fmt: skip
    store.write_json(root / "examples.json", {"title": HOSTILE, "rows": [{HOSTILE: HOSTILE}]})
    build_report([root], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    page = Page(text)
    assert "script" not in page.elements and "<script" not in text
    hostile = without_spaces([HOSTILE])
    assert [row for row in map(without_spaces, page.rows) if row == hostile] == [hostile] * 2  # the table of examples
    assert not [name for name, _ in page.attributes if "alert" in name]


@given(st.text())
def test_page_of_any_text_shows_it_printable(text: str) -> None:
    table = Table(["(", text], [[Cell(f"({text}", [f"{text})"])]])
    page = ReportPage(
        title="t", summary=text, facts=[], label_curves=[], data_sizes=None, data_samples=[], pretraining=None,
        scores=None, learning_curves=[], mistakes=[], examples=[(text, table)], versions="", provenance=Table([], []),
    )  # fmt: skip
    parsed = Page(render_html("report", page))
    assert {"script", "img"}.isdisjoint(parsed.elements)
    shown = strip_unprintable(text)
    assert f"({shown}{shown})" in parsed.text


def test_example_tables_with_rows_are_shown(tmp_path: Path) -> None:
    for name, rows in (("a", [{"sentence": "one [MASK]", "word": "day"}, {"guesses": "two"}]), ("b", [])):
        (tmp_path / name).mkdir()
        store.write_json(tmp_path / name / "examples.json", {"title": f"Table {name}", "rows": rows})
    build_report([tmp_path], None, markdown=tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text()
    assert [list(row.values()) for row in find_table(text, "sentence", "word", "guesses")] == [
        ["one [MASK]", "day", ""],
        ["", "", "two"],
    ]
    assert "Table a" in text and "Table b" not in text


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (run_result(0.8, 7), ["1 seed"]),
        (scored_result(0.8, checkpoint="a1b2"), ["not trained", "checkpoint a1b2"]),
    ],
)
def test_single_result_makes_a_report(result: RunResult | ScoredResult, shown: list[str], tmp_path: Path) -> None:
    result.write(tmp_path / "results.json")
    (evaluation,) = collect_inputs([tmp_path]).evaluations
    assert evaluation.scores == result.scores_by_seed
    build_report([tmp_path], tmp_path / "report.html")
    text = Page((tmp_path / "report.html").read_text()).text
    assert all(words in text for words in shown)


def test_run_without_unigram_entropy_has_none(tmp_path: Path) -> None:
    write_pretraining(tmp_path / "run", entropy=None)
    assert collect_inputs([tmp_path]).pretraining[0].last_heldout("unigram_entropy") is None
    write_pretraining(tmp_path / "other" / "run", entropy=6.5)
    assert collect_inputs([tmp_path / "other"]).pretraining[0].last_heldout("unigram_entropy") == 6.5


def test_chance_depends_on_the_number_of_labels(tmp_path: Path) -> None:
    for name, sections, chance in (("sop", "", 50), ("both", '[data]\nsentence_loss = "three-way"\n', 33)):
        write_pretraining(tmp_path / name)
        with (tmp_path / name / "recipe.toml").open("a") as stream:
            stream.write(sections)
        build_report([tmp_path / name], None, markdown=tmp_path / "report.md")
        assert f"chance is {chance}" in (tmp_path / "report.md").read_text()


def test_data_sample_uses_the_settings_of_its_run(tiny_data: Path, tmp_path: Path) -> None:
    written = build_report([tiny_data], tmp_path / "alone.html")
    alone = Page((tmp_path / "alone.html").read_text())
    assert written.data == [tiny_data.name] and not written.pretraining
    totals = store.read_json(tiny_data / "data.json")["totals"]
    for split in ("train", "heldout"):
        assert all(f"{totals[split][unit]:,}" in alone.text for unit in ("documents", "sentences", "tokens")), split
    assert "sequences of at most 512 positions" in alone.text
    labels = [value or "" for name, value in alone.attributes if name == "alt"]
    assert any(label.startswith("Lengths of the sequences") for label in labels)
    assert any(label.startswith("Words of a masked n-gram") for label in labels)

    run = tmp_path / "work" / "run"
    write_pretraining(run)
    with (run / "recipe.toml").open("a") as recipe:
        recipe.write('[data]\nmax_seq_length = 48\nsentence_loss = "nsp"\n')
    store.seal(run / "step-00000040", "checkpoint", {"data": store.fingerprint(tiny_data)})
    build_report([run, tiny_data], tmp_path / "both.html")
    both = Page((tmp_path / "both.html").read_text())
    assert "sequences of at most 48 positions" in both.text


def test_runs_of_one_name_get_longer_names(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_pretraining(tmp_path / "work" / name / "run")
    written = build_report([tmp_path / "work"], None, markdown=tmp_path / "report.md")
    assert written.pretraining == ["a/run", "b/run"]


@pytest.mark.parametrize("change", [{"majority": "high"}, {"versions": ["x"]}, {"examples": 3}, {"baselines": 1}])
def test_result_with_wrong_type_names_its_key(change: dict[str, Any], tmp_path: Path) -> None:
    write_eval(tmp_path / "a", [0.5, 0.6])
    path = tmp_path / "a" / "results.json"
    store.write_json(path, store.read_json(path) | change)
    with pytest.raises(CheckpointError, match=rf"a/results\.json: eval\.{next(iter(change))}: "):
        build_report([tmp_path], tmp_path / "report.html")


def test_directories_without_results_are_rejected(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    with pytest.raises(InputError, match="no such directory"):
        build_report([tmp_path / "missing"], out)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no results here"):
        build_report([tmp_path / "empty"], out)
    (tmp_path / "empty" / "results.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"results\.json"):
        build_report([tmp_path / "empty"], out)
    assert not out.exists()


@pytest.mark.parametrize("replacement", ["nothing", "a link to itself"])
def test_missing_data_record_is_an_error(replacement: str, tiny_data: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(tiny_data, tmp_path / "data"))
    (data / "data.json").unlink()
    if replacement == "a link to itself":
        (data / "data.json").symlink_to("data.json")
    with pytest.raises(AlbertError, match=r"data\.json"):
        build_report([data], tmp_path / "report.html")


@pytest.mark.parametrize("name", ["results.json", "metrics.jsonl", "examples.json"])
def test_file_that_links_to_itself_is_an_error(name: str, workspace: Path, tmp_path: Path) -> None:
    (workspace / "more").mkdir()
    (workspace / "more" / name).symlink_to(name)
    with pytest.raises(AlbertError, match=name):
        collect_inputs([workspace])


def test_manifest_of_another_program_is_left_out(workspace: Path) -> None:
    expected = len(collect_inputs([workspace]).evaluations)
    (workspace / "web").mkdir()
    (workspace / "web" / "manifest.json").write_text('{"name": "app", "icons": []}')
    assert len(collect_inputs([workspace]).evaluations) == expected


def test_results_in_step_folders_and_linked_folders_are_shown(workspace: Path, tmp_path: Path) -> None:
    expected = len(collect_inputs([workspace]).evaluations)
    write_eval(workspace / "scores" / "step-2000", [0.6, 0.62])
    write_eval(tmp_path / "elsewhere", [0.7, 0.72])
    (workspace / "linked").symlink_to(tmp_path / "elsewhere")
    (workspace / "above").symlink_to(workspace)
    assert len(collect_inputs([workspace]).evaluations) == expected + 2


def test_links_to_runs_and_mixed_paths_add_no_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_eval(tmp_path / "scores", [0.5, 0.6])
    (tmp_path / "scores" / "best").symlink_to("run-1")
    monkeypatch.chdir(tmp_path / "scores")
    scores = str(tmp_path / "scores")
    for paths in ([scores], ["run-0", scores], ["run-0", ".."], ["best", "."], [scores, "best"]):
        assert len(collect_inputs(list(map(Path, paths))).evaluations) == 1, paths


def test_runs_and_data_may_be_named_like_checkpoints(tiny_data: Path, tmp_path: Path) -> None:
    write_pretraining(tmp_path / "w" / "step-size")
    shutil.copytree(tiny_data, tmp_path / "w" / "step-1")
    inputs = collect_inputs([tmp_path / "w"])
    assert [run.name for run in inputs.pretraining] == ["step-size"]
    assert [data.name for data in inputs.data] == ["step-1"]


def test_every_held_out_corpus_has_curves(tmp_path: Path) -> None:
    write_pretraining(tmp_path / "run")
    with (tmp_path / "run" / "metrics.jsonl").open("a") as journal:
        evaluation = {"mlm_loss": 7.1, "books/mlm_loss": 6.25, "books/mlm_accuracy": 0.25, "books/order_accuracy": 0.75}
        journal.write("\n" + json.dumps({"step": 50, "eval": evaluation}) + "\n")
    build_report([tmp_path / "run"], tmp_path / "report.html")
    page = Page((tmp_path / "report.html").read_text())
    labels = [value or "" for name, value in page.attributes if name == "alt"]
    for name in ("MLM loss", "MLM accuracy", "Sentence-pair accuracy"):
        assert f"{name} over steps" in labels and f"{name}, books over steps" in labels
    assert "6.250" in page.text and "books: sentence-pair accuracy (%)" in page.text
