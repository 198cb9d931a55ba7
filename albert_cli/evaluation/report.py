"""One self-contained HTML page from result directories: curves, scores with every seed, provenance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from albert_cli import __version__, store
from albert_cli.evaluation import report_data, report_errors, report_labels, report_runs, report_scores
from albert_cli.evaluation.markdown import from_page
from albert_cli.evaluation.page import Markup, document, join, table, tag
from albert_cli.evaluation.results import Evaluation, Examples, Pretraining, Results, collect, short_names


def build(
    directories: Sequence[Path], out: Path | None, title: str = "", markdown: Path | None = None
) -> dict[str, Any]:
    """Write the report on everything below `directories` to the file `out`, and say what is on it.

    `markdown` is a file for the same as Markdown, its drawings in words. The same directories give the same bytes.
    Raises InputError for a missing directory or when there is nothing to report, CheckpointError for a damaged file.
    """
    results = collect(directories)
    results.evaluations = _told_apart(results.evaluations)
    page = _page(results, title or _title(results))
    written = {out: page, markdown: from_page(page) if markdown else ""}
    for path, text in written.items():
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            store.write_text(path, text)
    return {
        "report": str(out) if out else None,
        "markdown": str(markdown) if markdown else None,
        "bytes": len(page.encode()),
        "data": [data.name for data in results.data],
        "pretraining": [run.name for run in results.pretraining],
        "tasks": list(dict.fromkeys(e.task for e in results.evaluations)),
        "models": report_scores.models(results.evaluations),
        "scores": sum(len(e.scores) for e in results.evaluations),
        "examples": len(results.examples),
    }


def _page(results: Results, title: str) -> str:
    series = _series(results)
    sections: list[tuple[str, str, Markup]] = []
    labels = report_labels.section(results.evaluations, series)
    if labels:
        sections.append(("labels", "By number of labelled examples", labels))
    if results.data:
        sections.append(("data", "Data", report_data.section(results.data, results.pretraining)))
    if results.pretraining:
        sections.append(("pretraining", "Pretraining", report_runs.section(results.pretraining)))
    if results.evaluations:
        sections.append(("scores", "Scores", report_scores.section(results.evaluations, series)))
    curves = report_scores.learning(results.evaluations, series)
    if curves:
        sections.append(("learning", "Learning curves", curves))
    errors = report_errors.section(results.evaluations, series)
    if errors:
        sections.append(("errors", "What is wrong", errors))
    for i, examples in enumerate(results.examples, start=1):
        sections.append((f"examples-{i}", examples.title, _examples(examples)))
    parts = [tag("section", tag("h2", name), body, id=anchor) for anchor, name, body in sections]
    footer = tag("footer", tag("h2", "Provenance"), _provenance(results), id="provenance")
    navigation = [*((anchor, name) for anchor, name, _ in sections), ("provenance", "Provenance")]
    return document(title, navigation, _header(results, title), *parts, footer)


def _told_apart(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """The same with directory names added where two results would share a task and a model's name.

    A directory that is called as its task says nothing, so that the one above it names all tasks of a suite.
    """
    times = Counter((e.task, e.model, e.part) for e in evaluations)
    same = [e for e in evaluations if times[e.task, e.model, e.part] > 1]
    places = {e.path: e.path.parent if e.path.name == e.task else e.path for e in same}
    names = short_names(list(dict.fromkeys(places.values())))
    return [replace(e, model=f"{e.model} ({names[places[e.path]]})") if e.path in places else e for e in evaluations]


def _series(results: Results) -> dict[str, int]:
    """A colour for every run and model, the same on the whole page; a run's one checkpoint has the run's."""
    series = {run.name: i for i, run in enumerate(results.pretraining, start=1)}
    free = set(series)
    for model in report_scores.models(results.evaluations):
        run = next((name for name in free if model.startswith(f"{name}, ")), None)
        series[model] = series[run] if run else max(series.values(), default=0) + 1
        free.discard(run or "")
    return series


# ---------------------------------------------------------------- the top


def _title(results: Results) -> str:
    if results.pretraining and results.evaluations:
        return "An encoder, pretrained and scored"
    if results.pretraining or results.evaluations:
        return "Pretraining" if results.pretraining else "Scores"
    return "Data" if results.data else "Examples"


def _header(results: Results, title: str) -> Markup:
    counts = [
        (len(results.data), "data set"),
        (len(results.pretraining), "pretraining run"),
        (len({e.task for e in results.evaluations}), "task"),
        (sum(len(e.scores) for e in results.evaluations), "fine-tuned model"),
    ]
    said = ", ".join(f"{n} {what}{'s' if n != 1 else ''}" for n, what in counts if n)
    facts = _pretraining_facts(results.pretraining)
    facts += report_scores.facts(results.evaluations, most=3 if len(facts) in (0, 3) else 6 - len(facts))
    tiles = [
        tag("div", tag("dt", name), tag("dd", value, class_="value"), tag("dd", beside, class_="beside"))
        for name, value, beside in facts
    ]
    lead = [tag("p", f"{said}.", class_="lead")] if said else []
    return tag("header", tag("h1", title), *lead, *([tag("dl", *tiles, class_="facts")] if tiles else []))


def _pretraining_facts(runs: Sequence[Pretraining]) -> list[tuple[str, str, str]]:
    """The last held-out figures of a single run; several runs have no one figure."""
    if len(runs) != 1:
        return []
    run, facts = runs[0], []
    loss, entropy = report_runs.last(run, "mlm_loss"), run.unigram_entropy
    if loss is not None:
        below = f"nats; the unigram entropy is {entropy:.2f}" if entropy is not None else "nats a masked token"
        facts.append(("Held-out masked-word loss", f"{loss:.2f}", below))
    for name, label, beside in (
        ("mlm_accuracy", "Masked words right", "per cent of the held-out masked tokens"),
        ("order_accuracy", "Sentence order right", "per cent of the held-out pairs; chance is 50"),
    ):
        if (value := report_runs.last(run, name)) is not None:
            facts.append((label, f"{100 * value:.1f}", beside))
    return facts


# ---------------------------------------------------------------- examples and provenance


def _examples(examples: Examples) -> Markup:
    """A table of rows that are objects (columns by key), lists, or single values."""
    objects = [row for row in examples.rows if isinstance(row, dict)]
    columns = examples.columns or list(dict.fromkeys(str(name) for row in objects for name in row))
    rows = [_cells(row, columns) for row in examples.rows]
    width = max((len(row) for row in [columns, *rows]), default=0)
    padded = [[*row, *[""] * (width - len(row))] for row in [columns, *rows]]
    said = [tag("p", examples.text)] if examples.text else []
    if not width:
        return join(*said)
    return join(*said, tag("div", table(padded[0], padded[1:], text_columns=width), class_="prose"))


def _cells(row: object, columns: Sequence[str]) -> list[str]:
    if isinstance(row, dict):
        return [_plain(row.get(name)) for name in columns]
    return [_plain(value) for value in (row if isinstance(row, list) else [row])]


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) < 10 else f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_plain(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(" ".join(map(_plain, v)) if isinstance(v, list) else _plain(v) for v in value)
    return "" if value is None else str(value)


def _provenance(results: Results) -> Markup:
    versions: dict[str, set[str]] = {}
    for e in results.evaluations:
        given = e.record.get("versions")
        for name, version in given.items() if isinstance(given, dict) else ():
            versions.setdefault(str(name), set()).add(str(version))
    used = ", ".join(f"{name} {' and '.join(sorted(found))}" for name, found in versions.items())
    said = f"Page made by albert {__version__}." + (f" Runs made with {used}." if used else "")
    rows: list[list[str]] = [["data", "", "", "", _mark(data.fingerprint)] for data in results.data]
    for run in results.pretraining:
        mark, newest = [("", ""), *run.checkpoints.items()][-1]
        name = f"{run.name}, {newest}" if newest else run.name
        rows.append(["pretraining", name, _mark(mark), "", _mark(run.data)])
    for e in results.evaluations:
        fingerprints = [_mark(e.record.get(name)) for name in ("checkpoint", "recipe", "data")]
        rows.append([report_scores.task_name(e), e.model, *fingerprints])
    if not rows:
        return tag("p", said, class_="small")
    headers = ["what", "model", "checkpoint", "recipe", "data"]
    return join(tag("p", said, class_="small"), table(headers, rows, text_columns=5))


def _mark(value: object) -> Markup:
    return tag("code", str(value)[:16]) if value else Markup("–")
