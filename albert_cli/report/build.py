"""Build one self-contained page from result directories: curves, scores of every seed, mistakes, provenance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from albert_cli import __version__, store
from albert_cli.config import validate_recipe
from albert_cli.data.pairs import PairSettings
from albert_cli.data.records import read_data_facts
from albert_cli.data.sample_statistics import LENGTH_BINS, measure_sample
from albert_cli.data.shards import TokenCorpus
from albert_cli.data.verification import verify_data
from albert_cli.errors import AlbertError
from albert_cli.report import figures, scores
from albert_cli.report.collect import DataDirectory, Evaluation, ExampleTable, PretrainingRun, ReportInputs, short_names
from albert_cli.report.collect import collect as collect_inputs
from albert_cli.report.figures import Figure, LegendEntry, series_color
from albert_cli.report.mistakes import ModelMistakes, list_mistakes
from albert_cli.report.pretraining import PretrainingSection, make_pretraining_section, summarize_run
from albert_cli.report.render import Table, render_html, render_markdown
from albert_cli.report.scores import Colors, Fact, LabelCurve, ScoresSection
from albert_cli.results import CheckpointResult
from albert_cli.text.vocabulary import Vocabulary

_MAX_FACTS = 6


@dataclass(frozen=True)
class DataSample:
    """The sequences of a data directory as a run samples them, in words and as histograms."""

    text: str
    figures: Sequence[Figure]


@dataclass(frozen=True)
class ReportPage:
    """Everything that the templates lay out; a section is None or empty if there is nothing to show."""

    title: str
    summary: str
    facts: Sequence[Fact]
    label_curves: Sequence[LabelCurve]
    data_sizes: Table | None
    data_samples: Sequence[DataSample]
    pretraining: PretrainingSection | None
    scores: ScoresSection | None
    learning_curves: Sequence[Figure]
    mistakes: Sequence[ModelMistakes]
    examples: Sequence[tuple[str, Table]]
    versions: str
    provenance: Table


@dataclass(frozen=True)
class ReportSummary:
    """The files of a report, and the names of its data, runs, tasks and models."""

    report: str | None
    markdown: str | None
    data: Sequence[str]
    pretraining: Sequence[str]
    tasks: Sequence[str]
    models: Sequence[str]


def build_report(directories: Sequence[Path], out: Path | None, markdown: Path | None = None) -> ReportSummary:
    """Write a report on everything below `directories` to `out` as HTML and to `markdown`; return a summary of it.

    The same directories give the same bytes. Raises `InputError` if there is nothing to report, and `CheckpointError`
    for a damaged file.
    """
    inputs = collect_inputs(directories)
    inputs = replace(inputs, evaluations=_make_names_unique(inputs.evaluations))
    page = _make_page(inputs)
    if out is not None:
        store.write_text(out, render_html("report", page))
    if markdown is not None:
        store.write_text(markdown, render_markdown("report", page))
    return ReportSummary(
        report=str(out) if out else None,
        markdown=str(markdown) if markdown else None,
        data=[data.name for data in inputs.data],
        pretraining=[run.name for run in inputs.pretraining],
        tasks=list(dict.fromkeys(e.task for e in inputs.evaluations)),
        models=scores.list_models(inputs.evaluations),
    )


def _make_page(inputs: ReportInputs) -> ReportPage:
    runs = inputs.pretraining
    evaluations = inputs.evaluations
    colors = _assign_colors(inputs)
    run_facts = summarize_run(runs)
    # Three tiles fill a row: the scores fill the first row, or the rest of two rows.
    limit = 3 if len(run_facts) in (0, 3) else _MAX_FACTS - len(run_facts)
    return ReportPage(
        title=_title(inputs),
        summary=_summarize_counts(inputs),
        facts=[*run_facts, *scores.summarize_best(evaluations, limit)],
        label_curves=scores.make_label_curves(evaluations, colors),
        data_sizes=_tabulate_sizes(inputs.data),
        data_samples=[_describe_sample(data, runs) for data in inputs.data],
        pretraining=make_pretraining_section(runs, colors) if runs else None,
        scores=scores.make_scores_section(evaluations, colors) if evaluations else None,
        learning_curves=scores.draw_learning_curves(evaluations, colors),
        mistakes=list_mistakes(evaluations),
        examples=[(table.title, _tabulate_examples(table)) for table in inputs.examples if table.rows],
        versions=_list_versions(evaluations),
        provenance=_tabulate_provenance(inputs),
    )


def _title(inputs: ReportInputs) -> str:
    if inputs.pretraining and inputs.evaluations:
        return "Pretraining and evaluation"
    if inputs.pretraining:
        return "Pretraining"
    if inputs.evaluations:
        return "Evaluation"
    return "Data" if inputs.data else "Examples"


def _summarize_counts(inputs: ReportInputs) -> str:
    counts = {
        "data set": len(inputs.data),
        "pretraining run": len(inputs.pretraining),
        "task": len({e.task_identity for e in inputs.evaluations}),
        "fine-tuned model": sum(len(e.scores) for e in inputs.evaluations),
    }
    return ", ".join(f"{count} {noun}{'s' if count != 1 else ''}" for noun, count in counts.items() if count)


def _make_names_unique(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Add directory names to the models' names if two results would share a task and a model.

    A directory named after its task is replaced by its parent, which names all tasks of a suite.
    """
    counts = Counter(key for e in evaluations for key in _identity_keys(e))
    ambiguous = [e for e in evaluations if any(counts[key] > 1 for key in _identity_keys(e))]
    folders = {e.path: e.path.parent if e.path.name == e.task else e.path for e in ambiguous}
    names = short_names(list(dict.fromkeys(folders.values())))
    return [replace(e, model=f"{e.model} ({names[folders[e.path]]})") if e.path in folders else e for e in evaluations]


def _identity_keys(e: Evaluation) -> list[tuple[object, ...]]:
    """Return keys that must be unique: one for a cell in the table of scores, one for a point of a label curve."""
    return [
        (e.task_identity, e.model, "sample size", e.sample_size),
        (e.task_identity, e.model, "labeled", e.num_labeled),
    ]


def _assign_colors(inputs: ReportInputs) -> Colors:
    """Return a color for every run and model; the first model from a run's checkpoints has the run's color."""
    colors = {run.name: series_color(number) for number, run in enumerate(inputs.pretraining)}
    runs_without_model = set(colors)
    next_number = len(colors)
    for model in scores.list_models(inputs.evaluations):
        run = next((name for name in runs_without_model if model.startswith(f"{name}, ")), None)
        if run is None:
            colors[model] = series_color(next_number)
            next_number += 1
        else:
            colors[model] = colors[run]
            runs_without_model.remove(run)
    return colors


def _tabulate_examples(examples: ExampleTable) -> Table:
    columns = list(dict.fromkeys(name for row in examples.rows for name in row))
    return Table(columns, [[row.get(name, "") for name in columns] for row in examples.rows])


# ---------------------------------------------------------------- provenance


def _list_versions(evaluations: Sequence[Evaluation]) -> str:
    versions: dict[str, set[str]] = {}
    for e in evaluations:
        for name, version in e.record.versions.items():
            versions.setdefault(name, set()).add(version)
    page = f"Page made by albert {__version__}."
    libraries = ", ".join(f"{name} {' and '.join(sorted(numbers))}" for name, numbers in versions.items())
    return f"{page} Runs made with {libraries}." if libraries else page


def _tabulate_provenance(inputs: ReportInputs) -> Table:
    rows = [["data", data.name, "", "", _short_fingerprint(data.fingerprint)] for data in inputs.data]
    for run in inputs.pretraining:
        newest, step = list(run.checkpoints.items())[-1] if run.checkpoints else ("", "")
        name = f"{run.name}, {step}" if step else run.name
        rows.append(["pretraining", name, _short_fingerprint(newest), "", _short_fingerprint(run.data)])
    for e in inputs.evaluations:
        checkpoint = e.record.checkpoint if isinstance(e.record, CheckpointResult) else ""
        recipe = e.record.recipe if isinstance(e.record, CheckpointResult) else ""
        rows.append([e.title, e.model, *map(_short_fingerprint, (checkpoint, recipe, e.record.data))])
    return Table(["kind", "name", "checkpoint", "recipe", "data"], rows)


def _short_fingerprint(fingerprint: str) -> str:
    return fingerprint[:16] or "–"


# ---------------------------------------------------------------- data


def _tabulate_sizes(directories: Sequence[DataDirectory]) -> Table | None:
    rows = [
        [data.name, split, f"{counts.documents:,}", f"{counts.sentences:,}", f"{counts.tokens:,}"]
        for data in directories
        for split, counts in read_data_facts(data.path).totals.items()
    ]
    return Table(["data", "split", "documents", "sentences", "tokens"], rows) if rows else None


def _describe_sample(data: DataDirectory, runs: Sequence[PretrainingRun]) -> DataSample:
    """Sample sequences with the settings and the seed of a run on this data, or with the defaults."""
    settings = PairSettings()
    seed = 0
    run = next((run for run in runs if run.data == data.fingerprint), None)
    if run is not None:
        with suppress(AlbertError):  # the recipe is of another version
            settings = validate_recipe(PairSettings, run.recipe.get("data", {}), run.name)
        seed = int(run.setting("train", "seed") or 0)
    verify_data(data.path)
    corpus = TokenCorpus.open(data.path, "train")
    sample = measure_sample(corpus, Vocabulary.load(data.path / "vocabulary"), settings, seed)
    edges = [f"{settings.max_seq_length * (n + 1) // LENGTH_BINS:,}" for n in range(LENGTH_BINS)]
    lengths = Figure(
        "Sequence lengths",
        f"Lengths of the sequences of {data.name}",
        figures.draw_bars(edges, sample.length_fractions),
        f"Percent of the sequences by length; {100 * sample.fill:.1f} % of the positions are filled.",
    )
    spans = Figure(
        "Words per masked n-gram",
        f"Words of a masked n-gram in {data.name}",
        figures.draw_bars(
            [str(n) for n in range(1, settings.ngram + 1)], sample.ngram_fractions, sample.ngram_expected
        ),
        "Percent of the n-grams. Long n-grams are rejected more often because they overlap others.",
        [LegendEntry("chosen", figures.PALETTE[0]), LegendEntry("sampled with p(n)", figures.PALETTE[1], "line")],
    )
    text = (
        f"{data.name}: {sample.sequences} sequences of at most {settings.max_seq_length} positions, sampled as in "
        f"training. An epoch has {sample.examples_per_pass:,} sequences."
    )
    return DataSample(text, [lengths, spans])
