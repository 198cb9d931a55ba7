"""Build one self-contained page from result directories: curves, scores of every seed, mistakes, provenance.

`build_report` writes the page. `collect` reads the directories. This module builds the sections on data and provenance;
every other section has its own module. The templates `report.html.jinja` and `report.md.jinja` lay the sections out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from albert_cli import __version__, store
from albert_cli.config import validate_recipe
from albert_cli.data.pairs import PairSettings
from albert_cli.data.records import read_data_facts
from albert_cli.data.sample_statistics import LENGTH_BINS, measure_sample
from albert_cli.data.shards import TokenCorpus
from albert_cli.data.verification import verify_data
from albert_cli.errors import AlbertError
from albert_cli.formatting import count_of
from albert_cli.report import figures, scores
from albert_cli.report.ambiguous_tables import make_titles_unique
from albert_cli.report.collect import (
    DataDirectory,
    Evaluation,
    ExampleTable,
    PretrainingRun,
    ReportInputs,
    collect_inputs,
    short_names,
)
from albert_cli.report.figures import Figure, LegendEntry, series_color
from albert_cli.report.mistakes import ModelMistakes, list_mistakes
from albert_cli.report.pretraining import PretrainingSection, make_pretraining_section, summarize_run
from albert_cli.report.render import Table, render_html, render_markdown
from albert_cli.report.scores import Colors, Fact, ScoresSection
from albert_cli.results import CheckpointResult
from albert_cli.text.vocabulary import Vocabulary

_FACTS_IN_A_ROW = 3  # at the top of the page


@dataclass(frozen=True)
class ReportPage:
    """Everything that the template `report` lays out; a section without content is None or empty."""

    title: str
    summary: str
    facts: Sequence[Fact]
    label_curves: Sequence[tuple[Figure, Table]]  # the scores of a task by number of labeled examples
    data_sizes: Table | None
    data_samples: Sequence[tuple[str, Sequence[Figure]]]  # for each data directory, a text and histograms
    pretraining: PretrainingSection | None
    scores: ScoresSection | None
    learning_curves: Sequence[Figure]
    mistakes: Sequence[ModelMistakes]
    examples: Sequence[tuple[str, Table]]  # the title and the content of each table
    versions: str
    provenance: Table


@dataclass(frozen=True)
class ReportSummary:
    """The paths of a report's files, and the names of the data, runs, tasks and models in it, for `--json`."""

    report: str | None  # the path of the HTML file; None if it was not written
    markdown: str | None
    data: Sequence[str]
    pretraining: Sequence[str]
    tasks: Sequence[str]
    models: Sequence[str]


def build_report(directories: Sequence[Path], out: Path | None, markdown: Path | None = None) -> ReportSummary:
    """Write a report on everything below `directories`: as HTML to `out`, and as Markdown to `markdown`.

    A file whose path is None is not written. The same directories give the same bytes. Raises `InputError` if there is
    nothing to report, and `CheckpointError` for a damaged file.
    """
    inputs = collect_inputs(directories)
    evaluations = _make_names_unique(make_titles_unique(inputs.evaluations))
    inputs = replace(inputs, evaluations=evaluations)
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
        tasks=list(dict.fromkeys(e.record.task for e in inputs.evaluations)),
        models=scores.list_models(inputs.evaluations),
    )


def _make_page(inputs: ReportInputs) -> ReportPage:
    runs = inputs.pretraining
    evaluations = inputs.evaluations
    colors = _assign_colors(inputs)
    run_facts = summarize_run(runs)
    # Facts about a run and facts about scores together fill two rows; without a run, facts about scores fill one row.
    num_score_facts = _FACTS_IN_A_ROW
    if run_facts:
        num_score_facts = 2 * _FACTS_IN_A_ROW - len(run_facts)
    return ReportPage(
        title=_title(inputs),
        summary=_summarize_counts(inputs),
        facts=[*run_facts, *scores.summarize_best(evaluations, num_score_facts)],
        label_curves=scores.make_label_curves(evaluations, colors),
        data_sizes=_tabulate_sizes(inputs.data),
        data_samples=[_describe_sample(data, runs) for data in inputs.data],
        pretraining=make_pretraining_section(runs, colors) if runs else None,
        scores=scores.make_scores_section(evaluations, colors) if evaluations else None,
        learning_curves=scores.make_learning_curves(evaluations, colors),
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
        "fine-tuned model": sum(len(e.scores) for e in inputs.evaluations if e.record.training is not None),
    }
    return ", ".join(count_of(count, noun) for noun, count in counts.items() if count)


def _make_names_unique(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Add a directory to the name of every model whose name is ambiguous: several results on one task have it.

    The directory is that of the result. In a suite, where this directory is named after the task, it is the parent.
    """
    sizes = {evaluation.sample_size for evaluation in evaluations}
    counts = Counter(key for evaluation in evaluations for key in _identity_keys(evaluation, sizes))
    folders: dict[Path, Path] = {}  # the directory to add, by the path of an ambiguous result
    for evaluation in evaluations:
        if any(counts[key] > 1 for key in _identity_keys(evaluation, sizes)):
            path = evaluation.path
            folders[path] = path.parent if path.name == evaluation.record.task else path
    names = short_names(list(dict.fromkeys(folders.values())))
    renamed = []
    for evaluation in evaluations:
        if evaluation.path in folders:
            name = names[folders[evaluation.path]]
            evaluation = replace(evaluation, model=f"{evaluation.model} ({name})")
        renamed.append(evaluation)
    return renamed


def _identity_keys(evaluation: Evaluation, sizes: Iterable[int]) -> list[tuple[object, ...]]:
    """Return a key for every position of an evaluation on the page; two models with a common key cannot be told apart.

    There is one key for each cell in the table of scores. A trained model has one cell; a result without training has
    one for each of `sizes`. The last key is for the point in the curve of scores by number of labeled examples.
    For a model trained on all examples, `sample_size` is 0 and `num_labeled` is the number of all examples.
    """
    # The strings keep the keys distinct if their numbers are equal.
    task_and_model = (evaluation.task_identity, evaluation.model)
    is_trained = evaluation.record.training is not None
    table_sizes = [evaluation.sample_size] if is_trained else sizes
    return [
        *((*task_and_model, "sample size", size) for size in table_sizes),
        (*task_and_model, "labeled", evaluation.num_labeled),
    ]


def _assign_colors(inputs: ReportInputs) -> Colors:
    """Return a color for every run and model, by name; the first model from a run's checkpoints has the run's color."""
    colors = {run.name: series_color(number) for number, run in enumerate(inputs.pretraining)}
    runs_without_model = list(colors)
    next_number = len(colors)
    for model in scores.list_models(inputs.evaluations):
        # A model from a run's checkpoint is named "RUN, step 3,000".
        run = next((name for name in runs_without_model if model.startswith(f"{name}, ")), None)
        if run is None:
            colors[model] = series_color(next_number)
            next_number += 1
        else:
            colors[model] = colors[run]
            runs_without_model.remove(run)
    return colors


def _tabulate_examples(examples: ExampleTable) -> Table:
    """Return a table with a column for every key of the rows."""
    columns = list(dict.fromkeys(name for row in examples.rows for name in row))
    return Table(columns, [[row.get(name, "") for name in columns] for row in examples.rows])


# ---------------------------------------------------------------- provenance


def _list_versions(evaluations: Sequence[Evaluation]) -> str:
    """Return sentences with the version of albert, and with the versions of the libraries that the runs used."""
    numbers_by_library: dict[str, set[str]] = {}
    for evaluation in evaluations:
        for library, number in evaluation.record.versions.items():
            numbers_by_library.setdefault(library, set()).add(number)
    sentence = f"Page made by albert {__version__}."
    if not numbers_by_library:
        return sentence
    libraries = [f"{library} {' and '.join(sorted(numbers))}" for library, numbers in numbers_by_library.items()]
    return f"{sentence} Runs made with {', '.join(libraries)}."


def _tabulate_provenance(inputs: ReportInputs) -> Table:
    """Return a row for every data directory, run and evaluation: the fingerprints of checkpoint, recipe and data."""
    rows = [["data", data.name, "", "", _short_fingerprint(data.fingerprint)] for data in inputs.data]
    for run in inputs.pretraining:
        name = run.name
        checkpoint = ""
        if run.checkpoints:
            checkpoint, title = list(run.checkpoints.items())[-1]  # the newest; by fingerprint
            name = f"{run.name}, {title}"
        rows.append(["pretraining", name, _short_fingerprint(checkpoint), "", _short_fingerprint(run.data)])
    for evaluation in inputs.evaluations:
        record = evaluation.record
        checkpoint = ""
        recipe = ""
        if isinstance(record, CheckpointResult):
            checkpoint = record.checkpoint
            recipe = record.recipe
        fingerprints = map(_short_fingerprint, (checkpoint, recipe, record.data))
        rows.append([record.title, evaluation.model, *fingerprints])
    return Table(["kind", "name", "checkpoint", "recipe", "data"], rows)


def _short_fingerprint(fingerprint: str) -> str:
    """Return the first 16 digits, which are enough to compare fingerprints; "–" for an empty one."""
    return fingerprint[:16] or "–"


# ---------------------------------------------------------------- data


def _tabulate_sizes(directories: Sequence[DataDirectory]) -> Table | None:
    """Return the numbers of documents, sentences and tokens in each split; None without data directories."""
    rows = [
        [data.name, split, f"{counts.documents:,}", f"{counts.sentences:,}", f"{counts.tokens:,}"]
        for data in directories
        for split, counts in read_data_facts(data.path).totals.items()
    ]
    return Table(["data", "split", "documents", "sentences", "tokens"], rows) if rows else None


def _describe_sample(data: DataDirectory, runs: Sequence[PretrainingRun]) -> tuple[str, Sequence[Figure]]:
    """Sample training sequences; return sentences about the sample, and histograms of its lengths and masks.

    The settings and the seed are those of the first run on this data, or the defaults.
    """
    settings = PairSettings()
    seed = 0
    run = next((run for run in runs if run.data == data.fingerprint), None)
    if run is not None:
        with suppress(AlbertError):  # the defaults remain if another version of albert wrote the recipe
            settings = validate_recipe(PairSettings, run.recipe.get("data", {}), run.name)
        seed = int(run.setting("train", "seed") or 0)
    verify_data(data.path)
    corpus = TokenCorpus.open(data.path, "train")
    sample = measure_sample(corpus, Vocabulary.load(data.path / "vocabulary"), settings, seed)
    upper_edges = [f"{settings.max_seq_length * n // LENGTH_BINS:,}" for n in range(1, LENGTH_BINS + 1)]
    lengths = Figure(
        title="Sequence lengths",
        description=f"Lengths of the sequences of {data.name}",
        draw=partial(figures.draw_bars, upper_edges, sample.length_fractions),
        caption=f"Percent of the sequences by length; {100 * sample.fill:.1f} % of the positions are filled.",
    )
    ngram_sizes = [str(n) for n in range(1, settings.ngram + 1)]
    ngrams = Figure(
        title="Words per masked n-gram",
        description=f"Words of a masked n-gram in {data.name}",
        draw=partial(figures.draw_bars, ngram_sizes, sample.ngram_fractions, sample.ngram_expected),
        caption="Percent of the n-grams. Long n-grams are rejected more often because they overlap others.",
        legend=[
            LegendEntry("chosen", figures.PALETTE[0]),
            LegendEntry("sampled with p(n)", figures.PALETTE[1], "line"),
        ],
    )
    text = (
        f"{data.name}: {sample.sequences} sequences of at most {settings.max_seq_length} positions, sampled as in "
        f"training. A pass over the corpus has {sample.examples_per_pass:,} sequences."
    )
    return text, [lengths, ngrams]
