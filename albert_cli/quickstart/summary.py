"""The summary of a quickstart: scores by number of labels, and a comparison of the encoder with classical features.

`summarize` returns values for `quickstart.json`, and `format_summary` the text that closes the command.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from albert_cli import console
from albert_cli.evaluation.tables import format_difference
from albert_cli.formatting import join_words
from albert_cli.results import CLASSICAL, CONTROLS, ScoreDifference, best_baseline
from albert_cli.store import JsonObject

_MODEL_TITLES: Final = {
    "pretrained": "mini ALBERT, pretrained",
    "init": "same init, not pretrained",
    "random": "random weights",
    CLASSICAL: "classical baseline",
    "majority": "majority class",
}
_SHOWN_EXAMPLES: Final = 4


def summarize(evaluations: Mapping[str, Mapping[str, Any]]) -> JsonObject:
    """Return the scores by number of labels, the metric, and the differences from controls and baseline.

    evaluations: the output of `albert eval` by number of labels.
    """
    scores = {count: summarize_scores(evaluation) for count, evaluation in evaluations.items()}
    first = next(iter(evaluations.values()))
    differences = {count: evaluation.get("differences", {}) for count, evaluation in evaluations.items()}
    return {
        "title": first["title"],
        "metric": first["metric"],
        "task": scores,
        "every_pretrained_seed_above": _above_at_every_count(scores),
        "differences": differences,
        "conclusion": conclude(differences),
    }


def summarize_scores(evaluation: Mapping[str, Any]) -> JsonObject:
    """Return the scores of the model, its controls and its baselines, by name.

    `every_seed_above` is True for a control or a baseline if every seed of the pretrained model is above it.
    """
    keys = ("median", "spread", "scores_by_seed", "every_seed_above")
    models = {"pretrained": evaluation, **evaluation["controls"]}
    summary = {name: {key: scores[key] for key in keys if key in scores} for name, scores in models.items()}
    baseline = best_baseline(evaluation.get("baselines", {}), evaluation["metric"])
    if baseline is not None:
        _, baseline_score = baseline
        lowest = min(evaluation["scores_by_seed"].values())
        summary[CLASSICAL] = {"median": baseline_score, "every_seed_above": lowest > baseline_score}
    return summary | {"majority": {"median": evaluation.get("majority")}}


def _above_at_every_count(scores: Mapping[str, JsonObject]) -> dict[str, bool]:
    """Return True for a control or the baseline if every pretrained seed is above it with every number of labels."""
    return {
        name: all(by_model[name].get("every_seed_above", False) for by_model in scores.values())
        for name in (*CONTROLS, CLASSICAL)
        if all(name in by_model for by_model in scores.values())
    }


def conclude(differences: Mapping[str, Mapping[str, Any]]) -> str:
    """Return sentences that compare the encoder with classical features: a verdict by number of labels, with intervals.

    differences: by number of labels and model, the fields of `ScoreDifference`.
    """
    verdicts: dict[str, list[str]] = defaultdict(list)
    for count, by_model in differences.items():
        if CLASSICAL in by_model:
            difference = ScoreDifference.model_validate(by_model[CLASSICAL])
            verdicts[_judge(difference)].append(f"with {int(count):,} labels {format_difference(difference)}")
    if not verdicts:
        return "There is no classical baseline for this kind of table, so the encoder was compared with controls only."
    sentences = [f"{verdict}: {join_words(counts)}." for verdict, counts in verdicts.items()]
    return "Is the encoder better than classical features here? " + " ".join(sentences)


def _judge(difference: ScoreDifference) -> str:
    if difference.low > 0:
        return "Yes"
    return "No, it is worse" if difference.high < 0 else "Undecided, the interval includes zero"


def format_summary(result: Mapping[str, Any]) -> str:
    """Format a quickstart's result: the pretraining loss, the scores, some guesses of masked words, the conclusion."""
    pretraining = result["pretraining"]
    below = pretraining["below_unigram_entropy"]
    side = "above" if below >= 0 else "below"
    task = result["task"]
    headers = ("labels", *(f"{int(count):,}" for count in task))
    rows = [
        (title, *(_format_scores(by_model[name]) for by_model in task.values()))
        for name, title in _MODEL_TITLES.items()
        if all(name in by_model for by_model in task.values())
    ]
    lines = [
        f"held-out MLM loss {pretraining['mlm_loss']:.3f} nats, unigram entropy "
        f"{pretraining['unigram_entropy']:.3f} ({abs(below):.3f} {side} the loss)",
        "",
        f"{result['title']}: {result['metric']} on the development set, the median and every seed",
        console.format_table(headers, rows),
        *_format_verdicts(task),
        "",
    ]
    examples = [f"  {e['sentence']}\n    {e['word']}: {e['guesses']}" for e in result["examples"][:_SHOWN_EXAMPLES]]
    if examples:
        lines += ["masked words in texts of the development set:", *examples, ""]
    seconds = console.format_duration(result["seconds"])
    return "\n".join([*lines, f"report: {result['report']}  ({seconds})", "", result["conclusion"]])


def _format_verdicts(task: Mapping[str, JsonObject]) -> list[str]:
    """Return a line for each list of models that every pretrained seed is above, with the numbers of labels."""
    counts_by_models: dict[str, list[str]] = defaultdict(list)
    for count, by_model in task.items():
        titles = [title for name, title in _MODEL_TITLES.items() if by_model.get(name, {}).get("every_seed_above")]
        counts_by_models["; ".join(titles) or "none of them"].append(f"{int(count):,}")
    return [
        f"with {join_words(counts)} labels every pretrained seed is above: {models}"
        for models, counts in counts_by_models.items()
    ]


def _format_scores(scores: Mapping[str, Any]) -> str:
    if scores.get("median") is None:
        return "diverged"
    median = f"{100 * scores['median']:.1f}"
    seeds = " ".join(f"{100 * score:.1f}" for score in scores.get("scores_by_seed", {}).values())
    return f"{median} ({seeds})" if seeds else median
