"""Format results of every kind as text for a terminal: a table, then notes with the training protocol.

Reports and pages also use `format_protocol` and `format_difference`. Scores are printed times 100.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from albert_cli import console
from albert_cli.formatting import format_percent, join_words
from albert_cli.results import (
    CONTROLS,
    AnyResult,
    ControlResult,
    EnsembleResult,
    EvaluationResult,
    RunResult,
    ScoreDifference,
    ScoredResult,
    SearchPoint,
    SearchResult,
    SuiteResult,
    TaskScore,
    VerifyResult,
)
from albert_cli.score_summary import standard_error
from albert_cli.tasks.glue import GLUE_SCORE_TASKS
from albert_cli.tasks.registry import TASKS, constant_baseline

_BASELINES_NOTE = (
    "classical: a linear model trained on the same examples, the best in cross-validation on them: TF-IDF weights of "
    "n-grams of words (words) or characters (characters), or what the two texts have in common (overlap)"
)
# Descriptions of `Protocol.weights`; "pretrained" is missing, because its description is the default.
_INITIAL_WEIGHTS = {"random": "random", "init": "step 0 of pretraining"}
_COLUMNS = ("task", "metric", "median", "s.e.", "classical", "majority", "diverged", "collapsed", "scores by seed")
_OPTIONAL_COLUMNS = ("diverged", "collapsed", "classical", "s.e.")  # left out if every cell is empty
TrainedResult = RunResult | EvaluationResult
_Row = dict[str, str]  # cells by column; a missing cell is empty


def format_result(result: AnyResult) -> str:
    """Return a result as a table with a row for each task, followed by notes."""
    match result:
        case RunResult() | ScoredResult():
            return format_run(result, None)
        case EvaluationResult():
            titles = {"majority": constant_baseline(result.task)}
            notes = [*_metric_notes([result]), *_notes([result])]
            return _join_paragraphs(_format_table(_COLUMNS, _task_rows(result), titles), notes)
        case SuiteResult():
            return _format_suite(result)
        case SearchResult():
            return _format_search(result)
        case EnsembleResult():
            return _format_ensemble(result)
        case VerifyResult():
            return _format_verdicts(result)


def format_run(run: RunResult | ScoredResult, out: Path | None) -> str:
    """Return a line with the scores of one run, and a second line if the run collapsed.

    The first line begins with the path `out`, unless `out` is None.
    """
    scores = ", ".join(f"{name} {format_percent(value)}" for name, value in run.scores.items())
    title = run.title
    if not any(split.startswith("test") for split in run.examples):  # the title of a test result names the test set
        title += " dev"
    text = f"{title} {scores}"
    if out is not None:
        text = f"{out}: {text}"
    if isinstance(run, RunResult):
        text += f" at step {run.best_step} of {run.protocol.steps}"
    if run.majority is not None:
        text += f" ({constant_baseline(run.task)} {format_percent(run.majority)})"
    if isinstance(run, RunResult) and run.collapsed is not None:
        text += f"\nThe run collapsed: {run.collapsed}."
    return text


def _join_paragraphs(table: str, notes: Iterable[str]) -> str:
    """Return the table and, below it, the notes as wrapped lines, if there are any."""
    return "\n\n".join(filter(None, (table, console.wrap_notes(notes))))


def _format_suite(suite: SuiteResult) -> str:
    """Return a table of the tasks, with the mean of their scores in the last row, and notes."""
    tasks = list(suite.tasks.values())
    mean_title = "GLUE score"
    mean = suite.glue_score
    if mean is None:
        mean_title = f"mean of {len(tasks)} of {len(GLUE_SCORE_TASKS)} tasks"
        mean = suite.mean_of_tasks
    rows = [row for task in tasks for row in _task_rows(task)]
    rows.append({"task": mean_title, "median": format_percent(mean)})
    notes = [*_metric_notes(tasks), *_notes([task for task in tasks if isinstance(task, EvaluationResult)])]
    if suite.left_out:
        notes.append(f"Left out, without data: {', '.join(TASKS[name].title for name in suite.left_out)}.")
    if isinstance(suite.diagnostics, ScoredResult):
        notes.append(format_run(suite.diagnostics, None))
    return _join_paragraphs(_format_table(_COLUMNS, rows), notes)


def _task_rows(result: ScoredResult | EvaluationResult) -> list[_Row]:
    """Return the row of a task and, below it, a row for each of its controls."""
    row = {"task": result.title, "metric": result.metric, "majority": format_percent(result.majority)}
    if isinstance(result, ScoredResult):
        return [row | {"median": format_percent(result.score)}]
    if result.best_baseline is not None:
        name, score = result.best_baseline
        row["classical"] = f"{name} {format_percent(score)}"
    rows = [row | _seed_cells(result)]
    for name, control in result.controls.items():
        rows.append({"task": f"  {CONTROLS[name]}"} | _seed_cells(control))
    return rows


def _seed_cells(result: EvaluationResult | ControlResult | SearchPoint) -> _Row:
    """Return the cells that summarize the seeds; those for diverged and collapsed seeds only if there are any."""
    cells = {
        "median": format_percent(result.median),
        "s.e.": format_percent(standard_error(result.scores_by_seed.values())),
        "scores by seed": " ".join(map(format_percent, result.scores_by_seed.values())),
    }
    total = len(result.scores_by_seed) + len(result.diverged)
    for column, seeds in (("diverged", result.diverged), ("collapsed", result.collapsed)):
        if seeds:
            cells[column] = f"{len(seeds)} of {total}"
    return cells


def _format_table(columns: Sequence[str], rows: Sequence[_Row], titles: Mapping[str, str] | None = None) -> str:
    """Format rows as a table without the optional columns that are empty.

    titles: the headers of columns, by column; the others have the column's name as header.
    """
    shown = [name for name in columns if name not in _OPTIONAL_COLUMNS or any(row.get(name) for row in rows)]
    headers = [(titles or {}).get(name, name) for name in shown]
    return console.format_table(headers, [[row.get(name, "") for name in shown] for row in rows])


# ---------------------------------------------------------------- notes


def _notes(results: Sequence[EvaluationResult]) -> Iterator[str]:
    """Yield notes for a table of results: on baselines, differences, controls, failed seeds and protocols."""
    if any(result.baselines for result in results):
        yield _BASELINES_NOTE
    for result in results:
        model = "pretrained" if result.protocol.weights == "pretrained" else "model"
        for name, difference in result.differences.items():
            yield f"{result.title}, {model} minus {CONTROLS.get(name, name)}: {format_difference(difference)}"
    yield from _control_notes(results)
    for result in results:
        if result.diverged:
            median_note = (
                f"the median is over the {len(result.scores_by_seed)} of {len(result.seeds)} seeds that finished"
            )
            yield f"{result.title} diverged: {_list_reasons(result.diverged)}; {median_note}"
    for result in results:
        if result.collapsed:
            median_note = "no other seed is left"
            if result.median_without_collapsed is not None:
                median_note = f"the median of the others is {format_percent(result.median_without_collapsed)}"
            yield f"{result.title} collapsed: {_list_reasons(result.collapsed)}; {median_note}"
    titles_by_protocol: dict[str, list[str]] = {}
    for result in results:
        titles_by_protocol.setdefault(format_protocol(result), []).append(result.title)
    for text, titles in titles_by_protocol.items():
        yield f"{', '.join(titles)}: {text}"
    for result in results:
        if result.protocol.intermediate_note:
            yield f"{result.title}: {result.protocol.intermediate_note}"


def medians_on_other_splits(result: TaskScore) -> dict[str, float]:
    """Return the medians of the metrics on the splits that are not a task's main one, such as MNLI's mismatched one."""
    prefixes = tuple(f"{split.removeprefix('dev_')}_" for split in result.examples)
    return {name: median for name, median in result.medians.items() if name.startswith(prefixes)}


def _metric_notes(results: Sequence[ScoredResult | EvaluationResult]) -> Iterator[str]:
    """Yield a note with the medians of the further metrics of each result; the table has only the main metric."""
    for result in results:
        medians = {name: median for name, median in result.medians.items() if name != result.metric}
        scores = [f"{name.replace('_', ' ')} {format_percent(median)}" for name, median in medians.items()]
        if scores:
            yield f"{result.title}, other metrics: {', '.join(scores)}"


def _control_notes(results: Sequence[EvaluationResult]) -> Iterator[str]:
    """Yield for each control a note on the tasks where every seed of the model is above every seed of the control."""
    is_pretrained = all(result.protocol.weights == "pretrained" for result in results)
    seed = "pretrained seed" if is_pretrained else "seed of the model"
    for name, title in CONTROLS.items():
        controlled = [result for result in results if name in result.controls]
        # If all seeds of the control diverged, `every_seed_above` is None and the task is in neither list.
        above = ", ".join(r.title for r in controlled if r.controls[name].every_seed_above is True)
        not_above = ", ".join(r.title for r in controlled if r.controls[name].every_seed_above is False)
        if above and not_above:
            yield f"Every {seed} is above every seed of the {title} on {above}, but not on {not_above}."
        elif above:
            yield f"Every {seed} is above every seed of the {title} on {above}."
        elif not_above:
            yield f"On {not_above} not every {seed} is above every seed of the {title}."


def format_difference(difference: ScoreDifference) -> str:
    """Return a difference times 100 with its 95 % interval, and with a note if the interval leaves out the seeds."""
    points, low, high = map(_format_points, (difference.difference, difference.low, difference.high))
    note = ", without the error from seeds, because there is only one" if difference.seeds == 1 else ""
    return f"{points} (95 % interval {low} to {high}{note})"


def _list_reasons(reasons: Mapping[str, str]) -> str:
    return ", ".join(f"seed {seed} ({reason})" for seed, reason in reasons.items())


# ---------------------------------------------------------------- protocol


def format_protocol(result: TrainedResult) -> str:
    """Return the training settings with which a score was reached, in one line."""
    return ", ".join(f"{name} {value}" for name, value in protocol_pairs(result))


def protocol_pairs(result: TrainedResult) -> list[tuple[str, str]]:
    """Return the training settings that a score must be reported with, as (name, value) pairs."""
    protocol = result.protocol
    pairs = [_seeds_pair(result)]
    if protocol.train_examples:
        pairs.append(("subset", f"{result.examples['train']:,} training examples sampled by the seed"))
    if protocol.dev_examples:
        pairs.append(("scored on", f"at most {protocol.dev_examples:,} examples of each dev split"))
    epochs = f"{protocol.epochs:g}"
    if protocol.both_orders:
        epochs += " (each pair in both orders)"
    pairs += [
        ("steps", f"{protocol.steps:,}"),
        ("epochs", epochs),
        ("batch size", f"{protocol.batch_size}"),
        ("learning rate", f"{protocol.lr:g}"),
        ("warmup", f"{protocol.warmup_steps:,} steps"),
        ("length", f"up to {protocol.max_seq_length} tokens"),
        ("dropout", f"{protocol.dropout:g}"),
        ("initial weights", _initial_weights(result)),
    ]
    if protocol.overlap_heads:
        heads = f"{protocol.overlap_heads}"
        if protocol.overlap_context_heads:
            heads += f" and {protocol.overlap_context_heads} for context"
        pairs.append(("overlap heads", heads))
    scored = "after the last step"
    if 0 < protocol.eval_every < protocol.steps:
        scored = f"every {protocol.eval_every:,} steps, best kept"
    pairs.append(("scored", scored))
    sizes = [f"{size:,} {split.replace('_', ' ')}" for split, size in result.examples.items() if size]
    if sizes:
        pairs.append(("examples", join_words(sizes)))
    return pairs


def _seeds_pair(result: TrainedResult) -> tuple[str, str]:
    if isinstance(result, RunResult):
        return ("seed", str(result.seed))
    seeds = result.seeds
    if len(seeds) == 1:
        return ("seed", str(seeds[0]))
    count = f"{len(seeds)}"
    if result.diverged:
        count = f"{len(seeds) - len(result.diverged)} of {count}"
    return ("seeds", f"{seeds[0]} to {seeds[-1]} (median of {count})")


def _initial_weights(result: TrainedResult) -> str:
    """Return the weights that training started from, and those that the intermediate task started from, if any."""
    protocol = result.protocol
    name = protocol.intermediate_task
    if name is None:
        return _INITIAL_WEIGHTS.get(protocol.weights, "the pretrained checkpoint")
    text = f"a model fine-tuned on {TASKS[name].title if name in TASKS else name}"
    if protocol.weights in _INITIAL_WEIGHTS:
        text += f" (its initial weights: {_INITIAL_WEIGHTS[protocol.weights]})"
    return text


# ---------------------------------------------------------------- searches, ensembles, verdicts


def _format_search(search: SearchResult) -> str:
    # A point whose seeds all diverged has no median and comes last.
    points = sorted(search.points, key=lambda point: -math.inf if point.median is None else point.median, reverse=True)
    rows = [point.values | _seed_cells(point) | {"spread": format_percent(point.spread)} for point in points]
    # `SearchPoint.values` is a field: the point's hyperparameters by key.
    columns = (*search.best.values, "median", "s.e.", "spread", "diverged", "collapsed", "scores by seed")
    titles = {"median": f"{search.title} {search.metric}", "scores by seed": "by seed"}
    best = f"Best: {search.best.directory}, {format_percent(search.best.median)}"
    if search.majority is not None:
        best += f", {constant_baseline(search.task)} {format_percent(search.majority)}"
    return _join_paragraphs(_format_table(columns, rows, titles), [f"{best}.", search.caveat])


def _format_ensemble(result: EnsembleResult) -> str:
    rows = []
    for member in result.members:
        note = "chosen" if member.directory in result.chosen else ""
        rows.append((member.directory, format_percent(member.score), note))
    score_of_all = format_percent(result.scores_of_all[result.metric])
    lead_of_all = f"{_format_points(result.gain.all_over_best)} over the best"
    rows.append((f"all {len(result.members)}", score_of_all, lead_of_all))
    lead_of_chosen = f"{_format_points(result.gain.chosen_over_best)} over the best"
    rows.append((f"the {len(result.chosen)} chosen", format_percent(result.score), lead_of_chosen))
    notes = [
        f"All members together gain {_format_points(result.gain.all_over_median)} over the median member.",
        "The chosen members were selected on this dev set, so their score is optimistic.",
    ]
    return _join_paragraphs(console.format_table((result.title, result.metric, ""), rows), notes)


def _format_points(difference: float) -> str:
    """Return a difference between two scores times 100, with its sign."""
    return f"{100 * difference:+.1f}"


def _format_verdicts(result: VerifyResult) -> str:
    rows = []
    for task, verdict in result.tasks.items():
        text: str = verdict.verdict
        if verdict.reason is not None:
            text += f": {verdict.reason}"
        published = _join_scores(verdict.published)
        measured = _join_scores(verdict.scores)
        rows.append((task, published, f"{verdict.tolerance:.1f}", measured, text))
    if result.average:
        name = f"Avg of {sum(bool(verdict.scores) for verdict in result.tasks.values())}"
        rows.append((name, f"{result.average['published']:.1f}", "", f"{result.average['measured']:.1f}", ""))
    return console.format_table(("task", "published", "tolerance", "measured", "verdict"), rows)


def _join_scores(scores: Mapping[str, float]) -> str:
    """Return scores, already times 100, as the paper's tables print them: one number, or `F1/EM`."""
    return "/".join(f"{score:.1f}" for score in scores.values())
