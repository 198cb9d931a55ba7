"""Results of evaluations in words: a table, the protocol behind it, and what must not be overlooked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from albert_cli import console
from albert_cli.evaluation.baselines import best
from albert_cli.evaluation.results import CONTROLS
from albert_cli.tasks.spec import SCORED, TASKS
from albert_cli.training.task_recipe import PRETRAINED

Result = Mapping[str, Any]
_CLASSICAL = (
    "classical: the better of linear models on TF-IDF words and bigrams (words) and on what two texts have in common "
    "(overlap), trained on the same examples"
)
_BEGINNINGS = {"random": "random weights", "start": "the weights that pretraining started from"}
_FAILURES = ("diverged", "collapsed")  # how a seed may fail, as `results.json` and a table's heading call it


def text(result: Result) -> str:
    """A result as a table with a row a task, the protocol, and notes."""
    match result["kind"]:
        case "run":
            return run_text(result, None)
        case "predictions":
            return _predictions_text(result)
        case "search":
            return _search_text(result)
        case "ensemble":
            return _ensemble_text(result)
    tasks = list(result["tasks"].values()) if result["kind"] == "suite" else [result]
    rows = [row for r in tasks for row in (_row(r), *_control_rows(r))]
    if result["kind"] == "suite":
        mean = result.get("glue_score", result.get("mean_of_tasks"))
        name = "GLUE score" if "glue_score" in result else f"mean of {result['tasks_scored']} of {len(SCORED)} tasks"
        rows.append((name, "", percent(mean), "", "", "", "", "", ""))
    headers = ("task", "metric", "median", "s.e.", "classical", "majority", *_FAILURES, "scores by seed")
    notes = [_CLASSICAL] if any(r.get("baselines") for r in tasks) else []
    notes += [*_verdicts(tasks), *_divergences(tasks), *_collapses(tasks), *_protocols(tasks), *_left_out(result)]
    if diagnostics := result.get("diagnostics"):
        notes.append(text(diagnostics))
    parts = [_table(headers, rows), console.wrapped(notes)]
    if result.get("submission"):
        parts.append(_submission_text(result["submission"]))
    return "\n\n".join(filter(None, parts))


def run_text(result: Result, out: Path | None) -> str:
    """One run's scores in a line or two."""
    scores = ", ".join(f"{name} {percent(value)}" for name, value in result["scores"].items())
    where = f"{out}: " if out else ""
    best = f" at step {result['best_step']} of {result['steps']}" if "best_step" in result else ""
    majority = f" (majority {percent(result['majority'])})" if result["majority"] is not None else ""
    collapsed = f"\nThe run collapsed: {result['collapsed']}." if result.get("collapsed") else ""
    return f"{where}{result['title']} dev {scores}{best}{majority}{collapsed}"


def percent(value: float | None) -> str:
    """A score of 0..1 as the field writes it, times 100; nothing for None."""
    return "" if value is None else f"{100 * value:.1f}"


def _row(result: Result) -> tuple[str, ...]:
    title, metric = result["title"], result["metric"]
    if result["kind"] == "run":
        return (title, metric, percent(result["score"]), "", "", percent(result["majority"]), "", "", "")
    scores = " ".join(map(percent, result["scores_by_seed"].values()))
    numbers = map(percent, (result["median"], result.get("standard_error")))
    return (title, metric, *numbers, _classical(result), percent(result["majority"]), *_failures(result), scores)


def _control_rows(result: Result) -> Iterator[tuple[str, ...]]:
    """A row for each control, below its task."""
    for name, found in result.get("controls", {}).items():
        scores = " ".join(map(percent, found["scores_by_seed"].values()))
        numbers = map(percent, (found["median"], found.get("standard_error")))
        yield (f"  {CONTROLS[name]}", "", *numbers, "", "", *_failures(found), scores)


def _verdicts(tasks: list[Any]) -> Iterator[str]:
    """Whether every seed is above every seed of a control, in words."""
    for name, control in CONTROLS.items():
        apart: dict[bool, list[str]] = {True: [], False: []}
        for result in tasks:
            clear = result.get("controls", {}).get(name, {}).get("every_seed_above")
            if clear is not None:
                apart[clear].append(result["title"])
        if apart[True]:
            rest = f", but not on {', '.join(apart[False])}" if apart[False] else ""
            yield f"Every pretrained seed is above every seed of the {control} on {', '.join(apart[True])}{rest}."
        elif apart[False]:
            yield f"On {', '.join(apart[False])} not every pretrained seed is above every seed of the {control}."


def _classical(result: Result) -> str:
    """The best of the linear models, and which it is."""
    found = best(result.get("baselines", {}), result["metric"])
    return f"{found[0]} {percent(found[1])}" if found else ""


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table, with the columns of failures, of classical baselines and of errors only where there are some."""
    seldom = (*_FAILURES, "classical", "s.e.")
    shown = [i for i, name in enumerate(headers) if name not in seldom or any(row[i] for row in rows)]
    return console.table([headers[i] for i in shown], [[row[i] for i in shown] for row in rows])


def _failures(result: Result) -> list[str]:
    """How many seeds diverged and how many collapsed; nothing for none."""
    total = len(result["scores_by_seed"]) + len(result.get("diverged", ()))
    return [f"{len(result[name])} of {total}" if result.get(name) else "" for name in _FAILURES]


def _predictions_text(result: Result) -> str:
    total = sum(result["predicted"].values())
    shares = ", ".join(f"{label} {100 * count / total:.0f}%" for label, count in result["predicted"].items())
    return f"{result['title']}: {total:,} predictions and no labels to score them by ({shares})"


def _search_text(result: Mapping[str, Any]) -> str:
    """A row a combination, the best first."""
    points = sorted(result["points"], key=lambda point: (point["median"] is None, -(point["median"] or 0.0)))
    keys = tuple(result["best"]["values"])
    rows = [
        (
            *(point["values"][key] for key in keys),
            percent(point["median"]),
            percent(point["spread"]),
            *_failures(point),
            " ".join(map(percent, point["scores_by_seed"].values())),
        )
        for point in points
    ]
    headers = (*keys, f"{result['title']} {result['metric']}", "spread", *_FAILURES, "by seed")
    values = result["best"]["directory"]
    majority = f", majority {percent(result['majority'])}" if result["majority"] is not None else ""
    best = f"Best: {values}, {percent(result['best']['median'])}{majority}."
    return f"{_table(headers, rows)}\n\n{console.wrapped([best, result['caveat']])}"


def _ensemble_text(result: Mapping[str, Any]) -> str:
    """Each member, all of them, the chosen ones, and what was gained."""
    metric, gain = result["metric"], result["gain"]
    rows: list[tuple[str, str, str]] = [
        (member["directory"], percent(member["score"]), "chosen" if member["directory"] in result["chosen"] else "")
        for member in result["members"]
    ]
    best = f"{100 * gain['all_over_best']:+.1f}"
    rows.append((f"all {len(rows)}", percent(result["of_all"][metric]), f"{best} over the best"))
    best = f"{100 * gain['chosen_over_best']:+.1f}"
    rows.append((f"the {len(result['chosen'])} chosen", percent(result["score"]), f"{best} over the best"))
    notes = [f"All of them gain {100 * gain['all_over_median']:+.1f} over the median of their members."]
    notes += ["The chosen were picked by their score on this very dev set, which flatters it."]
    return f"{console.table((result['title'], metric, ''), rows)}\n\n{console.wrapped(notes)}"


def _submission_text(submission: Mapping[str, Any]) -> str:
    """Which model answers which file, and which files are placeholders."""
    files: Mapping[str, Mapping[str, Any]] = submission["files"]
    empty = [name for name, file in files.items() if "model" not in file]
    rows = [
        (
            name,
            f"{file['rows']:,}",
            f"{file['placeholder']} everywhere: {file['because']}" if name in empty else file["model"],
        )
        for name, file in files.items()
    ]
    table = console.table((submission["file"], "rows", "predicted by"), rows)
    if not empty:
        return table
    note = (
        f"{len(empty)} of {len(files)} files hold one answer for all rows, and so will their scores: {', '.join(empty)}"
    )
    return f"{table}\n{console.wrapped([note])}"


def _divergences(tasks: list[Any]) -> Iterator[str]:
    """Which seeds have no score, and why."""
    for result in tasks:
        if diverged := result.get("diverged") if result["kind"] == "eval" else None:
            each = ", ".join(f"seed {seed} ({why})" for seed, why in diverged.items())
            ended, total = len(result["scores_by_seed"]), len(result["seeds"])
            yield f"{result['title']} diverged: {each}; the median is of the {ended} of {total} seeds that ended"


def _collapses(tasks: list[Any]) -> Iterator[str]:
    """Which seeds collapsed and how, and the median of the others."""
    for result in tasks:
        if collapsed := result.get("collapsed") if result["kind"] == "eval" else None:
            each = ", ".join(f"seed {seed} ({why})" for seed, why in collapsed.items())
            rest = result["median_without_collapsed"]
            others = f"the median of the others is {percent(rest)}" if rest is not None else "no seed is left"
            yield f"{result['title']} collapsed: {each}; {others}"


def _left_out(result: Result) -> Iterator[str]:
    """Which tasks of a suite had no data, and which began without what their recipe starts from."""
    if names := [TASKS[name].title for name in result.get("left_out", ())]:
        yield f"Left out, without data: {', '.join(names)}."
    tasks = result.get("tasks", {}).values() if result["kind"] == "suite" else [result]
    for task in tasks:
        if note := task.get("start_note"):
            yield f"{task['title']}: {note}"


def _protocols(tasks: list[Any]) -> Iterator[str]:
    """How the scores came about, a line for all tasks that share it."""
    by_text: dict[str, list[str]] = {}
    for result in tasks:
        if said := protocol(result):
            by_text.setdefault(said, []).append(result["title"])
    for said, titles in by_text.items():
        yield f"{', '.join(titles)}: {said}"


def protocol(result: Result) -> str:
    """What a score must never be shown without: seeds, steps, batch, rate, length, start; "" where it is not known."""
    if result["kind"] != "eval" or "eval_every" not in result:
        return ""
    k, seeds, ended = len(result["seeds"]), result["seeds"], len(result["seeds"]) - len(result.get("diverged", ()))
    start = result["start_from"]
    begin = _BEGINNINGS.get(result["initial"], "the pretrained checkpoint")
    begin = begin if start == PRETRAINED else f"a model fine-tuned on {TASKS[start].title}"
    if heads := result.get("matching_heads"):
        begin += f" with {heads} of its attention heads set to compare words"
    if heads := result.get("count_heads"):
        begin += f" with {heads} of its attention heads set to count the words that the two texts share"
        begin += f" and {more} to tell those around" if (more := result.get("spreading_heads")) else ""
    of = f"{ended} of {k}" if ended < k else k
    count = f"{result['examples']['train']:,}" if result.get("train_examples") else ""
    part = f"{count} training examples drawn by its seed, " if count else ""
    every, steps = result["eval_every"], result["steps"]
    length = f"{steps:,} steps of {result['batch_size']}"
    length += f" ({result['epochs']:g} epochs)" if "epochs" in result else ""
    looks = f"on dev every {every:,} steps, the best kept" if 0 < every < steps else "once, after the last step"
    return (f"median of {of} seeds ({seeds[0]} to {seeds[-1]}), " if k > 1 else f"seed {seeds[0]}, ") + (
        f"{part}{length}, rate {result['lr']:g} after {result['warmup_steps']:,} "
        f"steps of warm-up, at most {result['max_seq_length']} pieces, dropout {result['dropout']:g}, from {begin}; "
        f"scored {looks}"
    )
