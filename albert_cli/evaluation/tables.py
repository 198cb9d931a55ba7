"""Results as a person reads them: a table, the training protocol behind it, and notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from albert_cli import console
from albert_cli.formatting import format_percent
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
    VerifyResult,
    standard_error,
)
from albert_cli.tasks.glue import GLUE_SCORE_TASKS
from albert_cli.tasks.registry import TASKS, constant_baseline

_BASELINES_NOTE = (
    "classical: a linear model trained on the same examples, the best in cross-validation on them: TF-IDF weights of "
    "n-grams of words (words) or characters (characters), or what the two texts have in common (overlap)"
)
_INITIAL_WEIGHTS = {"random": "random", "init": "step 0 of pretraining"}
_HEADERS = ("task", "metric", "median", "s.e.", "classical", "majority", "diverged", "collapsed", "scores by seed")
_OPTIONAL_COLUMNS = ("diverged", "collapsed", "classical", "s.e.")  # left out if every cell is empty
TrainedResult = RunResult | EvaluationResult


def format_result(result: AnyResult) -> str:
    """Return a result as a table with a row for each task, followed by notes."""
    match result:
        case RunResult() | ScoredResult():
            return format_run(result, None)
        case EvaluationResult():
            headers = [constant_baseline(result.task) if name == "majority" else name for name in _HEADERS]
            return _join_paragraphs(_format_table(headers, _task_rows(result)), _notes([result]))
        case SuiteResult():
            return _format_suite(result)
        case SearchResult():
            return _format_search(result)
        case EnsembleResult():
            return _format_ensemble(result)
        case VerifyResult():
            return _format_verdicts(result)


def format_run(run: RunResult | ScoredResult, out: Path | None) -> str:
    """Return the scores of one run in a line or two, after the path `out` if there is one."""
    scores = ", ".join(f"{name} {format_percent(value)}" for name, value in run.scores.items())
    is_test = any(name.startswith("test") for name in run.examples)  # then the title names the test set
    text = f"{run.title} {scores}" if is_test else f"{run.title} dev {scores}"
    if out is not None:
        text = f"{out}: {text}"
    if isinstance(run, RunResult):
        text += f" at step {run.best_step} of {run.protocol.steps}"
    if run.majority is not None:
        text += f" ({constant_baseline(run.task)} {format_percent(run.majority)})"
    if isinstance(run, RunResult) and run.collapsed is not None:
        text += f"\nThe run collapsed: {run.collapsed}."
    return text


def _join_paragraphs(table: str, notes: Iterator[str]) -> str:
    return "\n\n".join(filter(None, (table, console.wrap_notes(notes))))


def _format_suite(suite: SuiteResult) -> str:
    tasks = list(suite.tasks.values())
    name = "GLUE score"
    mean = suite.glue_score
    if mean is None:
        name = f"mean of {len(tasks)} of {len(GLUE_SCORE_TASKS)} tasks"
        mean = suite.mean_of_tasks
    rows = [row for task in tasks for row in _task_rows(task)]
    rows.append([name, "", format_percent(mean), *[""] * (len(_HEADERS) - 3)])
    notes = list(_notes([task for task in tasks if isinstance(task, EvaluationResult)]))
    if suite.left_out:
        notes.append(f"Left out, without data: {', '.join(TASKS[name].title for name in suite.left_out)}.")
    if isinstance(suite.diagnostics, ScoredResult):
        notes.append(format_run(suite.diagnostics, None))
    return _join_paragraphs(_format_table(_HEADERS, rows), iter(notes))


def _task_rows(result: ScoredResult | EvaluationResult) -> list[list[str]]:
    """Return the row of a task, and one below it for each of its controls."""
    majority = format_percent(result.majority)
    if isinstance(result, ScoredResult):
        return [[result.title, result.metric, format_percent(result.score), "", "", majority, "", "", ""]]
    classical = ""
    if result.best_baseline is not None:
        name, score = result.best_baseline
        classical = f"{name} {format_percent(score)}"
    error = format_percent(standard_error(result.scores_by_seed.values()))
    rows = [
        [
            *(result.title, result.metric, format_percent(result.median), error, classical, majority),
            *_failure_counts(result),
            _format_scores(result.scores_by_seed),
        ]
    ]
    for name, control in result.controls.items():
        error = format_percent(standard_error(control.scores_by_seed.values()))
        rows.append(
            [
                *(f"  {CONTROLS[name]}", "", format_percent(control.median), error, "", ""),
                *_failure_counts(control),
                _format_scores(control.scores_by_seed),
            ]
        )
    return rows


def _format_scores(scores_by_seed: Mapping[str, float]) -> str:
    return " ".join(map(format_percent, scores_by_seed.values()))


def _failure_counts(result: EvaluationResult | ControlResult | SearchPoint) -> list[str]:
    """Return how many seeds diverged and how many collapsed; an empty string for none."""
    total = len(result.scores_by_seed) + len(result.diverged)
    return [f"{len(seeds)} of {total}" if seeds else "" for seeds in (result.diverged, result.collapsed)]


def _format_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    shown = [i for i, name in enumerate(headers) if name not in _OPTIONAL_COLUMNS or any(row[i] for row in rows)]
    return console.format_table([headers[i] for i in shown], [[row[i] for i in shown] for row in rows])


# ---------------------------------------------------------------- notes


def _notes(results: Sequence[EvaluationResult]) -> Iterator[str]:
    if any(result.baselines for result in results):
        yield _BASELINES_NOTE
    for result in results:
        for name, difference in result.differences.items():
            yield f"{result.title}, pretrained minus {CONTROLS.get(name, name)}: {format_difference(difference)}"
    yield from _control_notes(results)
    for result in results:
        if result.diverged:
            finished = f"{len(result.scores_by_seed)} of {len(result.seeds)} seeds"
            reasons = _list_reasons(result.diverged)
            yield f"{result.title} diverged: {reasons}; the median is over the {finished} that finished"
    for result in results:
        if result.collapsed:
            median = format_percent(result.median_without_collapsed)
            rest = f"the median of the others is {median}" if median else "no other seed is left"
            yield f"{result.title} collapsed: {_list_reasons(result.collapsed)}; {rest}"
    titles_by_protocol: dict[str, list[str]] = {}
    for result in results:
        titles_by_protocol.setdefault(format_protocol(result), []).append(result.title)
    for text, titles in titles_by_protocol.items():
        yield f"{', '.join(titles)}: {text}"
    for result in results:
        if result.protocol.intermediate_note:
            yield f"{result.title}: {result.protocol.intermediate_note}"


def _control_notes(results: Sequence[EvaluationResult]) -> Iterator[str]:
    """Yield for each control the tasks on which every pretrained seed is above every seed of the control."""
    for name, control in CONTROLS.items():
        above: list[str] = []
        not_above: list[str] = []
        for result in results:
            if name in result.controls:
                verdict = result.controls[name].every_seed_above
                if verdict is not None:
                    (above if verdict else not_above).append(result.title)
        if above:
            exception = f", but not on {', '.join(not_above)}" if not_above else ""
            yield f"Every pretrained seed is above every seed of the {control} on {', '.join(above)}{exception}."
        elif not_above:
            yield f"On {', '.join(not_above)} not every pretrained seed is above every seed of the {control}."


def format_difference(difference: ScoreDifference) -> str:
    """Return a difference times 100 with its interval."""
    low = _format_points(difference.low)
    return f"{_format_points(difference.difference)} (95 % interval {low} to {_format_points(difference.high)})"


def _list_reasons(reasons: Mapping[str, str]) -> str:
    return ", ".join(f"seed {seed} ({reason})" for seed, reason in reasons.items())


# ---------------------------------------------------------------- protocol


def format_protocol(result: TrainedResult) -> str:
    """Return the protocol of a score in one line."""
    return ", ".join(f"{name} {value}" for name, value in protocol_pairs(result))


def protocol_pairs(result: TrainedResult) -> list[tuple[str, str]]:
    """Return the training settings that a score must be reported with, as (name, value) pairs."""
    protocol = result.protocol
    pairs = [_seeds_pair(result)]
    if protocol.train_examples:
        pairs.append(("subset", f"{result.examples['train']:,} training examples sampled by the seed"))
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
        context = f" and {protocol.overlap_context_heads} for context" if protocol.overlap_context_heads else ""
        pairs.append(("overlap heads", f"{protocol.overlap_heads}{context}"))
    repeated = 0 < protocol.eval_every < protocol.steps
    pairs.append(("scored", f"every {protocol.eval_every:,} steps, best kept" if repeated else "after the last step"))
    sizes = " and ".join(f"{result.examples[name]:,} {name}" for name in ("train", "dev") if result.examples.get(name))
    if sizes:
        pairs.append(("examples", sizes))
    return pairs


def _seeds_pair(result: TrainedResult) -> tuple[str, str]:
    if isinstance(result, RunResult):
        return ("seed", str(result.seed))
    seeds = result.seeds
    if len(seeds) == 1:
        return ("seed", str(seeds[0]))
    finished = len(seeds) - len(result.diverged)
    count = f"{finished} of {len(seeds)}" if result.diverged else f"{finished}"
    return ("seeds", f"{seeds[0]} to {seeds[-1]} (median of {count})")


def _initial_weights(result: TrainedResult) -> str:
    protocol = result.protocol
    if protocol.intermediate_task is not None:
        task = TASKS.get(protocol.intermediate_task)
        return f"a model fine-tuned on {task.title if task else protocol.intermediate_task}"
    return _INITIAL_WEIGHTS.get(protocol.weights, "the pretrained checkpoint")


# ---------------------------------------------------------------- searches, ensembles, verdicts


def _format_search(search: SearchResult) -> str:
    points = sorted(search.points, key=lambda point: (point.median is None, -(point.median or 0.0)))
    rows = []
    for point in points:
        numbers = (point.median, standard_error(point.scores_by_seed.values()), point.spread)
        cells = [*map(format_percent, numbers), *_failure_counts(point), _format_scores(point.scores_by_seed)]
        rows.append([*point.values.values(), *cells])
    score = f"{search.title} {search.metric}"
    headers = (*search.best.values, score, "s.e.", "spread", "diverged", "collapsed", "by seed")
    best = f"Best: {search.best.directory}, {format_percent(search.best.median)}"
    if search.majority is not None:
        best += f", {constant_baseline(search.task)} {format_percent(search.majority)}"
    return _join_paragraphs(_format_table(headers, rows), iter([f"{best}.", search.caveat]))


def _format_ensemble(result: EnsembleResult) -> str:
    rows = []
    for member in result.members:
        chosen = "chosen" if member.directory in result.chosen else ""
        rows.append((member.directory, format_percent(member.score), chosen))
    of_all = format_percent(result.scores_of_all[result.metric])
    gain = result.gain
    rows.append((f"all {len(result.members)}", of_all, f"{_format_points(gain.all_over_best)} over the best"))
    of_chosen = format_percent(result.score)
    rows.append(
        (f"the {len(result.chosen)} chosen", of_chosen, f"{_format_points(gain.chosen_over_best)} over the best")
    )
    notes = [
        f"All members together gain {_format_points(gain.all_over_median)} over the median member.",
        "The chosen members were selected on this dev set, so their score is optimistic.",
    ]
    return _join_paragraphs(console.format_table((result.title, result.metric, ""), rows), iter(notes))


def _format_points(difference: float) -> str:
    return f"{100 * difference:+.1f}"


def _format_verdicts(result: VerifyResult) -> str:
    rows = []
    for task, verdict in result.tasks.items():
        text = verdict.verdict if verdict.reason is None else f"{verdict.verdict}: {verdict.reason}"
        published = _format_published(verdict.published)
        rows.append((task, published, f"{verdict.tolerance:.1f}", _format_published(verdict.scores), text))
    if result.average:
        count = sum(bool(verdict.scores) for verdict in result.tasks.values())
        average = result.average
        rows.append((f"Avg of {count}", f"{average['published']:.1f}", "", f"{average['measured']:.1f}", ""))
    return console.format_table(("task", "published", "tolerance", "measured", "verdict"), rows)


def _format_published(scores: Mapping[str, float]) -> str:
    """Return scores as the paper's tables print them: one number, or `F1/EM`."""
    return "/".join(f"{score:.1f}" for score in scores.values())
