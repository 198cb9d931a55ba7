"""The page shows what the directories hold, escapes all of it, and loads nothing."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_cli import store
from albert_cli.errors import CheckpointError, InputError
from albert_cli.evaluation import judged, report_errors
from albert_cli.evaluation.page import Markup, tag
from albert_cli.evaluation.report import build
from albert_cli.evaluation.results import collect

VOID = {"meta", "br", "link", "img", "input", "hr"}
HOSTILE = "<script>alert('x')</script>\"&$x_1$"


class Page(HTMLParser):
    """Every element, attribute and piece of text, with a check that the elements nest."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append(name)
        self.attributes += attributes
        if name not in VOID:
            self._open.append(name)

    def handle_startendtag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append(name)
        self.attributes += attributes

    def handle_endtag(self, name: str) -> None:
        assert self._open.pop() == name

    def handle_data(self, data: str) -> None:
        self.text += data


def write_pretraining(directory: Path, *, steps: int = 40, entropy: float | None = 7.0) -> str:
    """A run with a checkpoint; its fingerprint."""
    directory.mkdir(parents=True)
    recipe = "[model]\nhidden_size = 64\nnum_attention_heads = 4\nintermediate_size = 256\n"
    (directory / "recipe.toml").write_text(recipe + f"[schedule]\ntotal_steps = {steps}\n[train]\nbatch_size = 8\n")
    rows: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        loss = 8.0 - step / steps
        rows.append({"step": step, "loss": loss + 0.7, "mlm_loss": loss, "tokens_per_second": 900.0, "seconds": step})
        if step % 10 == 0:
            evaluation = {"mlm_loss": loss, "mlm_accuracy": step / steps / 3, "order_accuracy": 0.5}
            rows.append({"step": step, "eval": evaluation})
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 4')
    if entropy is not None:
        store.write_json(directory / "status.json", {"state": "done", "unigram_entropy_nats": entropy})
    checkpoint = directory / f"step-{steps:08d}"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text("{}")
    store.seal(checkpoint, "checkpoint")
    return store.fingerprint(checkpoint)


def write_eval(directory: Path, scores: list[float], **more: Any) -> None:
    directory.mkdir(parents=True)
    by_seed = {str(seed): score for seed, score in enumerate(scores)}
    record = {
        "kind": "eval",
        "task": "rte",
        "metric": "accuracy",
        "scores_by_seed": by_seed,
        "majority": 0.527,
    }
    store.write_json(directory / "results.json", record | {"steps": 800} | more)
    for seed, score in by_seed.items():
        run = directory / f"run-{seed}"
        run.mkdir()
        store.write_json(run / "results.json", {"kind": "run", "task": "rte", "score": score, "seed": int(seed)})
        (run / "recipe.toml").write_text("[train]\nbatch_size = 32\n[optimizer]\nlr = 3e-5\n")
        lines = [{"step": step, "eval": {"accuracy": score - 0.1 / step}} for step in (1, 2, 3)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "work"
    checkpoint = write_pretraining(root / "pretrain")
    write_eval(root / "pretrained", [0.61, 0.63, 0.62], checkpoint=checkpoint, initial="pretrained")
    write_eval(root / "random", [0.55, 0.52, 0.54], checkpoint="random", baselines={"bag of words": 0.58})
    return root


def test_shows_scores_with_seeds_protocol_and_baselines(workspace: Path, tmp_path: Path) -> None:
    said = build([workspace], tmp_path / "report.html")
    page = Page((tmp_path / "report.html").read_text())
    assert said["tasks"] == ["rte"] and said["scores"] == 6 and said["pretraining"] == ["pretrain"]
    assert said["models"] == ["pretrain, step 40", "random weights"]
    for shown in ("62.0", "54.0", "52.7", "58.0", "61.0, 62.0, 63.0", "3 seeds, spread 2.0", "3e-05", "800"):
        assert shown in page.text, shown
    assert "Every seed of pretrain, step 40 is above every seed of random weights on RTE (+8.0)" in page.text
    assert "unigram entropy 7.00" in page.text


def test_overlapping_seeds_are_said(tmp_path: Path) -> None:
    collapsed = {"0": "one class for all inputs"}
    write_eval(tmp_path / "w" / "a", [0.5, 0.6, 0.7], checkpoint="abc", initial="pretrained", collapsed=collapsed)
    write_eval(tmp_path / "w" / "b", [0.52, 0.55, 0.58], checkpoint="random")
    build([tmp_path / "w"], tmp_path / "report.html")
    text = Page((tmp_path / "report.html").read_text()).text
    assert "not every seed" in text and "Every seed of" not in text
    assert "3 seeds, spread 20.0, 1 collapsed" in text


def test_same_directories_same_bytes(workspace: Path, tmp_path: Path) -> None:
    build([workspace], tmp_path / "a.html")
    build([workspace], tmp_path / "b.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_nothing_is_loaded_and_nothing_runs(workspace: Path, tmp_path: Path) -> None:
    store.write_json(workspace / "examples.json", {"title": "Examples", "rows": [{"text": "a", "n": 1}]})
    build([workspace], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "embed"} & set(page.elements)
    links = [value or "" for name, value in page.attributes if name in ("href", "src", "xlink:href", "data", "action")]
    assert links and all(link.startswith("#") for link in links)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "://" not in text and "@import" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))
    assert any(name == "content" and "default-src 'none'" in (value or "") for name, value in page.attributes)
    identifiers = [value for name, value in page.attributes if name == "id"]
    assert len(identifiers) == len(set(identifiers))
    assert {link.removeprefix("#") for link in links} <= set(identifiers)


def test_markup_in_every_label_is_escaped(tmp_path: Path) -> None:
    root = tmp_path / "work"
    write_eval(
        root / "a", [0.5, 0.6], task=HOSTILE, metric=HOSTILE, label=HOSTILE, baselines={HOSTILE: 0.4},
        versions={HOSTILE: HOSTILE}, checkpoint=HOSTILE, recipe=HOSTILE, data=HOSTILE,
    )  # fmt: skip
    rows = [{HOSTILE: HOSTILE, "list": [[HOSTILE, 0.5]], "object": {HOSTILE: HOSTILE}}]
    store.write_json(root / "examples.json", {"title": HOSTILE, "text": HOSTILE, "rows": rows})
    build([root], tmp_path / "report.html", title=HOSTILE)
    text = (tmp_path / "report.html").read_text()
    page = Page(text)
    assert "script" not in page.elements and "<script" not in text
    assert page.text.count("alert('x')") >= 10
    assert not [name for name, _ in page.attributes if "alert" in name]


@given(st.text())
def test_any_text_survives_in_an_element(text: str) -> None:
    page = Page(tag("p", text, title=text))
    assert page.elements == ["p"]
    printable = "".join(c if c >= " " or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
    assert page.text == printable.encode("utf-8", "replace").decode()


def test_markup_is_not_escaped_twice() -> None:
    assert tag("p", tag("b", "<"), class_="x") == Markup('<p class="x"><b>&lt;</b></p>')


def test_examples_may_be_objects_lists_or_values(tmp_path: Path) -> None:
    root = tmp_path / "work"
    root.mkdir()
    for name, rows in (
        ("a", [{"x": 0.25}, {"y": [["item", 0.5]]}]),
        ("b", [["one", None], ["two"]]),
        ("c", ["plain"]),
    ):
        (root / name).mkdir()
        store.write_json(root / name / "examples.json", {"title": f"Table {name}", "rows": rows})
    said = build([root], tmp_path / "report.html")
    text = Page((tmp_path / "report.html").read_text()).text
    assert said["examples"] == 3
    for shown in ("Table a", "0.25", "item 0.50", "two", "plain"):
        assert shown in text


def test_a_single_fine_tuning_run_is_enough(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    store.write_json(
        run / "results.json", {"kind": "run", "task": "sst2", "metric": "accuracy", "score": 0.8, "seed": 7}
    )
    (evaluation,) = collect([run]).evaluations
    assert evaluation.scores == {"7": 0.8}
    build([run], tmp_path / "report.html")
    assert "1 seed" in Page((tmp_path / "report.html").read_text()).text


def test_a_task_checkpoint_is_scored_as_it_is(tmp_path: Path) -> None:
    record = {
        "kind": "run",
        "task": "sst2",
        "title": "SST-2",
        "metric": "accuracy",
        "score": 0.8,
        "checkpoint": "a1b2",
    }
    store.write_json(tmp_path / "results.json", record | {"initial": "task checkpoint", "steps": 0})
    build([tmp_path], tmp_path / "report.html")
    text = Page((tmp_path / "report.html").read_text()).text
    assert "as it is" in text and "checkpoint a1b2" in text


def test_entropy_comes_from_the_data_that_the_run_was_trained_on(tmp_path: Path) -> None:
    root = tmp_path / "work"
    marks = []
    for name, entropy in (("data-a", 6.5), ("data-b", 7.5)):
        (root / name).mkdir(parents=True)
        store.write_json(root / name / "data.json", {"unigram_entropy_nats": entropy})
        store.seal(root / name, "data")
        marks.append(store.fingerprint(root / name))
    write_pretraining(root / "run", entropy=None)
    assert collect([root]).pretraining[0].unigram_entropy is None
    store.seal(root / "run" / "step-00000040", "checkpoint", {"data": marks[1]}, ["config.json"])
    assert collect([root]).pretraining[0].unigram_entropy == 7.5


def test_data_is_shown_as_its_run_draws_it(tiny_data: Path, tmp_path: Path) -> None:
    said = build([tiny_data], tmp_path / "alone.html")
    alone = Page((tmp_path / "alone.html").read_text())
    assert said["data"] == [tiny_data.name] and not said["pretraining"]
    totals = store.read_json(tiny_data / "data.json")["totals"]
    for shown in (*totals["train"].values(), *totals["heldout"].values()):
        assert f"{shown:,}" in alone.text
    assert "sequences of at most 512 positions" in alone.text and "pairs with label 1 (swapped), %" in alone.text
    labels = [value or "" for name, value in alone.attributes if name == "aria-label"]
    assert any(label.startswith("Lengths of the sequences") for label in labels)
    assert any(label.startswith("Words of a span") for label in labels)

    run = tmp_path / "work" / "run"
    write_pretraining(run)
    with (run / "recipe.toml").open("a") as recipe:
        recipe.write('[data]\nmax_seq_length = 48\nsentence_loss = "nsp"\npermutation = true\n')
    store.seal(run / "step-00000040", "checkpoint", {"data": store.fingerprint(tiny_data)}, ["config.json"])
    build([run, tiny_data], tmp_path / "both.html")
    both = Page((tmp_path / "both.html").read_text())
    assert "sequences of at most 48 positions" in both.text and "(from another document)" in both.text
    assert "positions permuted, %" in both.text and "positions permuted, %" not in alone.text


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_pretraining(tmp_path / "work" / name / "run")
    said = build([tmp_path / "work"], tmp_path / "report.html")
    assert said["pretraining"] == ["a/run", "b/run"]


def test_broken_values_are_left_out(tmp_path: Path) -> None:
    root = tmp_path / "work"
    write_eval(root / "a", [0.5, 0.6], majority="high", versions=["x"], examples=3, baselines={"b": None})
    (evaluation,) = collect([root]).evaluations
    assert evaluation.baselines == {} and list(evaluation.scores) == ["0", "1"]
    build([root], tmp_path / "report.html")


def test_what_cannot_be_reported_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    with pytest.raises(InputError, match="no such directory"):
        build([tmp_path / "missing"], out)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no results here"):
        build([tmp_path / "empty"], out)
    (tmp_path / "empty" / "results.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"results\.json"):
        build([tmp_path / "empty"], out)
    assert not out.exists()


# ---------------------------------------------------------------- what is wrong


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
    found = judged.read([tmp_path / "w" / "run-0", tmp_path / "w" / "run-1"])
    assert [j.example["id"] for j in judged.worst(found, 10)] == ["2", "1"]
    labels, counts = judged.confusion(found)
    assert sorted(labels) == ["no", "yes"]
    assert counts == {("no", "no"): 4, ("yes", "no"): 3, ("yes", "yes"): 1}
    build([tmp_path / "w"], tmp_path / "report.html")
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
    found = judged.read([tmp_path])
    lengths = {group.name: (group.size, group.f1, group.exact_match) for group in judged.by_answer_length(found)}
    assert lengths == {"none": (1, 0, 0), "1": (1, 1, 1), "2": (1, 1, 1), "4–5": (1, 0.5, 0), "11 and more": (1, 0, 0)}
    words = {group.name: (group.size, group.f1) for group in judged.by_question_word(found)}
    assert words == {"what": (2, 0.75), "how many": (1, 1.0), "who": (1, 0.0), "other": (1, 0.0)}
    build([tmp_path], tmp_path / "report.html")
    page = Page((tmp_path / "report.html").read_text())
    labels = [value or "" for name, value in page.attributes if name == "aria-label"]
    assert {"SQuAD 2.0: By words of the answer", "SQuAD 2.0: By question word"} <= set(labels)
    assert "no answer" in page.text and "Name it." in page.text
    assert "82.1" in page.text and "ALBERT-base v2" in page.text  # published, labelled so
    assert "at another scale" in page.text


def test_values_stand_over_what_they_are(tmp_path: Path) -> None:
    store.write_json(tmp_path / "results.json", {"kind": "run", "task": "stsb", "metric": "pearson", "score": 0.9})
    lines = [{"id": str(i), "label": i / 2, "prediction": i / 2 + (2 if i == 3 else 0.1)} for i in range(6)]
    write_predictions(tmp_path, lines)
    found = judged.read([tmp_path])
    assert judged.values(found)[3] == (1.5, 3.5) and judged.worst(found, 1)[0].example["id"] == "3"
    assert judged.confusion(found)[0] == []
    build([tmp_path], tmp_path / "report.html")
    page = Page((tmp_path / "report.html").read_text())
    assert "Said over what it is" in page.text and "2.00" in page.text


def test_many_classes_are_listed_and_not_drawn(tmp_path: Path) -> None:
    store.write_json(tmp_path / "results.json", {"kind": "run", "task": "table", "metric": "accuracy", "score": 0.5})
    names = [f"class {i}" for i in range(30)]
    lines = [{"id": str(i), "label": n, "prediction": "class 7" if i % 2 else n} for i, n in enumerate(names)]
    write_predictions(tmp_path, lines)
    build([tmp_path], tmp_path / "report.html")
    assert "The commonest confusions of 30 classes" in Page((tmp_path / "report.html").read_text()).text


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
    section = report_errors.section([evaluation], {evaluation.model: 1})
    if section is not None:
        Page(section)


def results_of(folder: Path, record: dict[str, Any]) -> Any:
    store.write_json(folder / "results.json", record)
    return collect([folder]).evaluations[0]


def test_hostile_predictions_are_text_on_the_page_and_in_markdown(tmp_path: Path) -> None:
    hostile = "<script>alert('x')</script> | [a](javascript:b) **c** `d`\u2028\x1b[31m\n# e"
    store.write_json(tmp_path / "results.json", {"kind": "run", "task": "table", "metric": "accuracy", "score": 0.5})
    lines = [{"id": "0", "text": hostile, "label": hostile, "prediction": "no", "probabilities": {hostile: 0.1}}]
    write_predictions(tmp_path, lines)
    build([tmp_path], tmp_path / "report.html", markdown=tmp_path / "report.md")
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


def test_markdown_has_the_tables_of_the_page(workspace: Path, tmp_path: Path) -> None:
    said = build([workspace], None, markdown=tmp_path / "report.md")
    assert said["report"] is None and said["markdown"] == str(tmp_path / "report.md")
    lines = (tmp_path / "report.md").read_text().splitlines()
    assert lines[0] == "# An encoder, pretrained and scored"
    assert "| RTE | pretrain, step 40 | 61.0, 62.0, 63.0 | 62.0 | 1.0 | 800 | 32 | 3e-05 |" in lines
    assert any(line.startswith("| RTE accuracy | 62.0 | 70.4 ") for line in lines)  # beside BERT-large
    assert "### Every seed, and the protocol" in lines
    assert not [line for line in lines if "<" in line.replace(r"\<", "")]


def test_every_held_out_corpus_has_its_curves(tmp_path: Path) -> None:
    write_pretraining(tmp_path / "run")
    with (tmp_path / "run" / "metrics.jsonl").open("a") as journal:
        evaluation = {"mlm_loss": 7.1, "books/mlm_loss": 6.25, "books/mlm_accuracy": 0.25, "books/order_accuracy": 0.75}
        journal.write("\n" + json.dumps({"step": 50, "eval": evaluation}) + "\n")
    build([tmp_path / "run"], tmp_path / "report.html")
    page = Page((tmp_path / "report.html").read_text())
    labels = [value or "" for name, value in page.attributes if name == "aria-label"]
    for name in ("Masked-word loss", "Masked words right", "Sentence order right"):
        assert f"{name} over steps" in labels and f"{name}, books over steps" in labels
    assert "6.250" in page.text and "books: sentence order right, %" in page.text
