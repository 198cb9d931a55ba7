"""One self-contained page from result directories: curves, scores with every seed, provenance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from albert_cli import __version__, store
from albert_cli.config import validate_recipe
from albert_cli.data.describe import LENGTH_BINS, measure_sample
from albert_cli.data.pairs import PairSettings
from albert_cli.data.shards import UNITS, TokenCorpus, read_data_facts
from albert_cli.data.verification import verify_data
from albert_cli.errors import AlbertError
from albert_cli.report import mistakes, page, plots, pretraining, scores
from albert_cli.report.collect import (
    DataDirectory,
    Evaluation,
    ExampleTable,
    PretrainingRun,
    ReportInputs,
    collect,
    setting,
    short_names,
)
from albert_cli.report.page import Block, Figure, Grid, Key, Page, Paragraph, Section, Span, Table, Text
from albert_cli.text.vocabulary import Vocabulary


def build_report(directories: Sequence[Path], out: Path | None, markdown: Path | None = None) -> dict[str, Any]:
    """Write the report on everything below `directories` to the file `out`; return the files and what is on them.

    `markdown` is a file for the same as Markdown, its drawings in words. The same directories give the same bytes.
    Raises `InputError` without a directory or anything to report, `CheckpointError` for a damaged file.
    """
    found = collect(directories)
    found.evaluations = _distinct(found.evaluations)
    made = _page(found)
    for path, render in ((out, page.html), (markdown, page.markdown)):
        if path is not None:
            store.write_text(path, render(made))
    return {
        "report": str(out) if out else None,
        "markdown": str(markdown) if markdown else None,
        "data": [one.name for one in found.data],
        "pretraining": [run.name for run in found.pretraining],
        "tasks": list(dict.fromkeys(e.task for e in found.evaluations)),
        "models": scores.models(found.evaluations),
    }


def _page(found: ReportInputs) -> Page:
    runs, evaluations, series = found.pretraining, found.evaluations, _series(found)
    sections = [
        Section("labels", "By number of labelled examples", scores.by_labels(evaluations, series)),
        Section("data", "Data", _data(found.data, runs) if found.data else []),
        Section("pretraining", "Pretraining", pretraining.section(runs) if runs else []),
        Section("scores", "Scores", scores.section(evaluations, series) if evaluations else []),
        Section("learning", "Learning curves", scores.learning(evaluations, series)),
        Section("errors", "What is wrong", mistakes.section(evaluations, series)),
        *(Section(f"examples-{i}", of.title, _examples(of)) for i, of in enumerate(found.examples, start=1)),
    ]
    sections = [section for section in sections if section.blocks]
    counts = {
        "data set": len(found.data),
        "pretraining run": len(runs),
        "task": len({e.question for e in evaluations}),
        "fine-tuned model": sum(len(e.scores) for e in evaluations),
    }
    lead = ", ".join(f"{n} {what}{'s' if n != 1 else ''}" for what, n in counts.items() if n)
    facts = pretraining.facts(runs)
    facts += scores.facts(evaluations, most=3 if len(facts) in (0, 3) else 6 - len(facts))
    footer = Section("provenance", "Provenance", _provenance(found))
    title = _title(found)
    return Page(title, title, sections, footer, f"{lead}." if lead else "", facts)


def _title(found: ReportInputs) -> str:
    if found.pretraining and found.evaluations:
        return "An encoder, pretrained and scored"
    if found.pretraining or found.evaluations:
        return "Pretraining" if found.pretraining else "Scores"
    return "Data" if found.data else "Examples"


def _distinct(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """The same with directory names added where two results would share a task and a model's name.

    A directory that is named after its task says nothing, so that the one above it names all tasks of a suite.
    """
    times = Counter(key for e in evaluations for key in _of_a_place(e))
    same = [e for e in evaluations if any(times[key] > 1 for key in _of_a_place(e))]
    places = {e.path: e.path.parent if e.path.name == e.task else e.path for e in same}
    names = short_names(list(dict.fromkeys(places.values())))
    return [replace(e, model=f"{e.model} ({names[places[e.path]]})") if e.path in places else e for e in evaluations]


def _of_a_place(e: Evaluation) -> list[tuple[object, ...]]:
    """What no two evaluations may share: tables have room for one by part, drawings by number of examples."""
    return [(e.question, e.model, "part", e.part), (e.question, e.model, "labelled", e.labelled)]


def _series(found: ReportInputs) -> dict[str, int]:
    """A colour for every run and model, the same on the whole page; a run's one checkpoint has the run's."""
    series = {run.name: i for i, run in enumerate(found.pretraining, start=1)}
    free = set(series)
    for model in scores.models(found.evaluations):
        run = next((name for name in free if model.startswith(f"{name}, ")), None)
        series[model] = series[run] if run else max(series.values(), default=0) + 1
        free.discard(run or "")
    return series


def _examples(examples: ExampleTable) -> list[Block]:
    columns = list(dict.fromkeys(name for row in examples.rows for name in row))
    rows = [[row.get(name, "") for name in columns] for row in examples.rows]
    return [Table(columns, rows, text_columns=len(columns), look="prose")] if rows else []


def _provenance(found: ReportInputs) -> list[Block]:
    versions: dict[str, set[str]] = {}
    for e in found.evaluations:
        for name, version in e.record.versions.items():
            versions.setdefault(name, set()).add(version)
    used = ", ".join(f"{name} {' and '.join(sorted(of))}" for name, of in versions.items())
    text = f"Page made by albert {__version__}." + (f" Runs made with {used}." if used else "")
    rows: list[list[Text]] = [["data", "", "", "", _mark(one.fingerprint)] for one in found.data]
    for run in found.pretraining:
        mark, newest = [("", ""), *run.checkpoints.items()][-1]
        rows.append(["pretraining", f"{run.name}, {newest}" if newest else run.name, _mark(mark), "", _mark(run.data)])
    for e in found.evaluations:
        rows.append([e.title, e.model, *map(_mark, (e.record.checkpoint, e.record.recipe, e.record.data))])
    headers = ["what", "model", "checkpoint", "recipe", "data"]
    return [Paragraph(text, small=True), *([Table(headers, rows, text_columns=5)] if rows else [])]


def _mark(fingerprint: str) -> Text:
    return Span(fingerprint[:16], "code") if fingerprint else "–"


# ---------------------------------------------------------------- data


def _data(found: Sequence[DataDirectory], runs: Sequence[PretrainingRun]) -> list[Block]:
    """Sizes, and for sequences drawn from each as its run draws them: lengths and spans."""
    rows = [
        [data.name, split, *(f"{counts[unit]:,}" for unit in UNITS)]
        for data in found
        for split, counts in read_data_facts(data.path)["totals"].items()
    ]
    sizes = Table(["data", "split", *UNITS], rows, text_columns=2, look="compact")
    return [sizes, *(block for data in found for block in _sequences(data, runs))]


def _sequences(data: DataDirectory, runs: Sequence[PretrainingRun]) -> list[Block]:
    """Statistics of a sample, with the settings and the seed of a run on this data where there is one."""
    settings, seed = PairSettings(), 0
    run = next((run for run in runs if run.data == data.fingerprint), None)
    if run is not None:
        with suppress(AlbertError):  # a recipe of another version is no reason to leave the data out of the report
            settings = validate_recipe(PairSettings, run.recipe.get("data", {}), run.name)
        seed = int(setting(run.recipe, "train", "seed") or 0)
    verify_data(data.path)
    corpus, vocabulary = TokenCorpus.open(data.path, "train"), Vocabulary.load(data.path / "vocabulary")
    drawn = measure_sample(corpus, vocabulary, settings, seed)
    edges = [f"{settings.max_seq_length * (n + 1) // LENGTH_BINS:,}" for n in range(LENGTH_BINS)]
    words = [f"{n}" for n in range(1, settings.ngram + 1)]
    of_lengths = plots.bars(edges, drawn["length_fractions"], describes=f"Lengths of the sequences of {data.name}")
    of_words = plots.bars(
        words, drawn["ngram_fractions"], drawn["ngram_expected"], describes=f"Words of a masked n-gram in {data.name}"
    )
    filled = f"Per cent of the sequences, by length; {100 * drawn['fill']:.1f} % of the positions are filled."
    by_words = "Per cent of the n-grams, by words. Long ones are left out more often, because they touch others."
    panels = [
        Figure(of_lengths, "Length of a sequence", [filled]),
        Figure(of_words, "Words of a masked n-gram", [Key("chosen", 1), Key("drawn with p(n)", 2, "line"), by_words]),
    ]
    sample = f"{drawn['sequences']} sequences of at most {settings.max_seq_length} positions, as training draws them"
    text = f"{data.name}: {sample}. A pass over the text has {drawn['examples_per_pass']:,}."
    return [Paragraph(text), Grid(panels)]
