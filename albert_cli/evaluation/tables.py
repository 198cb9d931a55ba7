"""Results of evaluations in words: a table, the protocol behind it, and what must not be overlooked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from albert_cli import console
from albert_cli.results import CONTROLS, Result, SearchResult, SuiteResult, format_percent, standard_error
from albert_cli.tasks.registry import GLUE_SCORE_TASKS, TASKS
from albert_cli.training.task_recipe import PRETRAINED

_BASELINES_NOTE = (
    "classical: the better of linear models on TF-IDF words and bigrams (words) and on what two texts have in common "
    "(overlap), trained on the same examples"
)
_INITIAL_WEIGHTS = {"random": "random weights", "init": "the weights that pretraining started from"}
_HEADERS = ("task", "metric", "median", "s.e.", "classical", "majority", "diverged", "collapsed", "scores by seed")
_OPTIONAL_COLUMNS = (
    "diverged",
    "collapsed",
    "classical",
    "s.e.",
)  # columns that are shown only where there is something in them


def format_result(record: Result | SearchResult | SuiteResult) -> str:
    """A result as a table with a row per task, the protocol, and notes."""
    if isinstance(record, SearchResult):
        return _format_search(record)
    if isinstance(record, SuiteResult):
        return _format_suite(record)
    if record.kind == "run":
        return format_run(record, None)
    if record.kind == "ensemble":
        return _format_ensemble(record)
    return "\n\n".join(
        filter(None, (_format_table(_HEADERS, _table_rows([record])), console.wrap_notes(_notes([record]))))
    )


def format_run(run: Result, out: Path | None) -> str:
    """One run's scores in a line or two."""
    scores = ", ".join(f"{name} {format_percent(value)}" for name, value in run.scores.items())
    where = f"{out}: " if out else ""
    best = f" at step {run.best_step} of {run.steps}" if run.best_step is not None else ""
    majority = f" (majority {format_percent(run.majority)})" if run.majority is not None else ""
    collapsed = f"\nThe run collapsed: {run.collapsed}." if run.collapsed else ""
    return f"{where}{run.title} dev {scores}{best}{majority}{collapsed}"


def _format_suite(suite: SuiteResult) -> str:
    tasks = list(suite.tasks.values())
    whole = suite.glue_score is not None
    name = "GLUE score" if whole else f"mean of {len(tasks)} of {len(GLUE_SCORE_TASKS)} tasks"
    mean = format_percent(suite.glue_score if whole else suite.mean_of_tasks)
    rows = [*_table_rows(tasks), [name, "", mean, *[""] * (len(_HEADERS) - 3)]]
    left_out = ", ".join(TASKS[name].title for name in suite.left_out)
    notes = [*_notes(tasks), *([f"Left out, without data: {left_out}."] if left_out else [])]
    notes += [format_run(suite.diagnostics, None)] if suite.diagnostics else []
    return "\n\n".join(filter(None, (_format_table(_HEADERS, rows), console.wrap_notes(notes))))


def _table_rows(tasks: Sequence[Result]) -> list[list[str]]:
    rows = []
    for r in tasks:
        classical = f"{r.classical[0]} {format_percent(r.classical[1])}" if r.classical else ""
        median, scores = (
            (format_percent(r.score), "")
            if r.kind == "run"
            else (format_percent(r.median), _format_scores(r.scores_by_seed))
        )
        numbers = [median, format_percent(standard_error(r.by_seed.values())), classical, format_percent(r.majority)]
        rows.append([r.title, r.metric, *numbers, *_failure_counts(r), scores])
        for name, c in r.controls.items():
            numbers = [format_percent(c.median), format_percent(standard_error(c.by_seed.values())), "", ""]
            rows.append([f"  {CONTROLS[name]}", "", *numbers, *_failure_counts(c), _format_scores(c.scores_by_seed)])
    return rows


def _format_scores(by_seed: Mapping[str, float]) -> str:
    return " ".join(map(format_percent, by_seed.values()))


def _failure_counts(found: Result) -> list[str]:
    """How many seeds diverged and how many collapsed; nothing for none, or of a single run."""
    total = len(found.scores_by_seed) + len(found.diverged)
    return [f"{len(of)} of {total}" if of and total else "" for of in (found.diverged, found.collapsed)]


def _format_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    shown = [i for i, name in enumerate(headers) if name not in _OPTIONAL_COLUMNS or any(row[i] for row in rows)]
    return console.format_table([headers[i] for i in shown], [[row[i] for i in shown] for row in rows])


def _notes(tasks: Sequence[Result]) -> Iterator[str]:
    if any(r.baselines for r in tasks):
        yield _BASELINES_NOTE
    for name, control in CONTROLS.items():
        apart: dict[bool | None, list[str]] = {True: [], False: [], None: []}
        for r in tasks:
            apart[r.controls[name].every_seed_above if name in r.controls else None].append(r.title)
        if apart[True]:
            rest = f", but not on {', '.join(apart[False])}" if apart[False] else ""
            yield f"Every pretrained seed is above every seed of the {control} on {', '.join(apart[True])}{rest}."
        elif apart[False]:
            yield f"On {', '.join(apart[False])} not every pretrained seed is above every seed of the {control}."
    several = [r for r in tasks if r.kind == "eval"]
    for r in several:
        if diverged := r.divergence_reasons:
            each, ended = _list_reasons(diverged), len(r.scores_by_seed)
            yield f"{r.title} diverged: {each}; the median is of the {ended} of {len(r.seeds)} seeds that ended"
    for r in several:
        if collapsed := r.collapse_reasons:
            rest = format_percent(r.median_without_collapsed)
            others = f"the median of the others is {rest}" if rest else "no seed is left"
            yield f"{r.title} collapsed: {_list_reasons(collapsed)}; {others}"
    by_text: dict[str, list[str]] = {}
    for r in tasks:
        if r.kind == "eval" and (how := protocol(r)):
            by_text.setdefault(how, []).append(r.title)
    yield from (f"{', '.join(titles)}: {how}" for how, titles in by_text.items())
    yield from (f"{r.title}: {r.intermediate_note}" for r in tasks if r.intermediate_note)


def _list_reasons(why: Mapping[str, str]) -> str:
    return ", ".join(f"seed {seed} ({reason})" for seed, reason in why.items())


def protocol(r: Result) -> str:
    """What a score must never be shown without: seeds, steps, batch, rate, length, start; "" where it is not known."""
    known = (r.eval_every, r.steps, r.batch_size, r.lr, r.warmup_steps, r.max_seq_length, r.dropout)
    numbers = r.seeds if r.kind == "eval" else [r.seed] if r.kind == "run" and r.steps else []
    if not numbers or None in (*known, *numbers):
        return ""
    assert r.steps is not None and r.eval_every is not None
    k, ended = len(numbers), len(numbers) - len(r.divergence_reasons)
    begin = _INITIAL_WEIGHTS.get(r.weights, "the pretrained checkpoint")
    if r.intermediate_task not in (PRETRAINED, ""):
        intermediate = TASKS.get(r.intermediate_task)
        begin = f"a model fine-tuned on {intermediate.title if intermediate else r.intermediate_task}"
    if r.overlap_heads:
        begin += f" with {r.overlap_heads} of its attention heads set to count the words that the two texts share"
        begin += f" and {r.overlap_context_heads} to mark those around" if r.overlap_context_heads else ""
    seeds = f"median of {f'{ended} of {k}' if ended < k else k} seeds ({numbers[0]} to {numbers[-1]})"
    part = f"{r.examples['train']:,.0f} training examples drawn by its seed, " if r.train_examples else ""
    of_what = " of each pair in both orders" if r.both_orders else ""
    epochs = f" ({r.epochs:g} epochs{of_what})" if r.epochs is not None else ""
    looks = f"on dev every {r.eval_every:,} steps, the best kept" if 0 < r.eval_every < r.steps else ""
    sizes = ", ".join(f"{name} {r.examples[name]:,.0f}" for name in ("train", "dev") if r.examples.get(name))
    return (
        f"{seeds if k > 1 else f'seed {numbers[0]}'}, {part}{r.steps:,} steps of {r.batch_size}{epochs}, rate {r.lr:g} "
        f"after {r.warmup_steps:,} steps of warm-up, at most {r.max_seq_length} tokens, dropout {r.dropout:g}, from "
        f"{begin}; scored {looks or 'once, after the last step'}"
        f"{f'; {sizes} examples' if sizes else ''}"
    )


def _format_search(search: SearchResult) -> str:
    points = sorted(search.points, key=lambda point: (point.median is None, -(point.median or 0.0)))
    rows = [
        (
            *point.values.values(),
            *map(format_percent, (point.median, standard_error(point.scores_by_seed.values()), point.spread)),
            *_failure_counts(point),
            _format_scores(point.scores_by_seed),
        )
        for point in points
    ]
    headers = (*search.best.values, f"{search.title} {search.metric}", "s.e.", "spread", *_HEADERS[-3:-1], "by seed")
    majority = f", majority {format_percent(search.majority)}" if search.majority is not None else ""
    best = f"Best: {search.best.directory}, {format_percent(search.best.median)}{majority}."
    return f"{_format_table(headers, rows)}\n\n{console.wrap_notes([best, search.caveat])}"


def _format_ensemble(result: Result) -> str:
    gain = {name: f"{100 * points:+.1f}" for name, points in result.gain.items()}
    rows = [
        (m.directory, format_percent(m.score), "chosen" if m.directory in result.chosen else "") for m in result.members
    ]
    of_all = format_percent(result.of_all[result.metric])
    rows.append((f"all {len(result.members)}", of_all, f"{gain['all_over_best']} over the best"))
    chosen = f"the {len(result.chosen)} chosen"
    rows.append((chosen, format_percent(result.score), f"{gain['chosen_over_best']} over the best"))
    notes = [f"All of them gain {gain['all_over_median']} over the median of their members."]
    notes += ["The chosen were picked by their score on this very dev set, which flatters it."]
    return f"{console.format_table((result.title, result.metric, ''), rows)}\n\n{console.wrap_notes(notes)}"
