"""The summary of a quickstart: scores by number of labels, and a comparison of the encoder with classical features.

The outputs of `albert eval` come in. `summarize` returns values for `quickstart.json`, from which `format_summary`
makes the text that the command prints at its end. The classical baseline is the best linear model of features that need
no encoder, such as a bag of words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from albert_cli import console
from albert_cli.evaluation.tables import format_difference
from albert_cli.formatting import join_words
from albert_cli.results import CLASSICAL, CONTROLS, ScoreDifference
from albert_cli.score_summary import best_baseline
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
    """Return the scores by number of labels, the metric, and the differences from the controls and the baseline.

    evaluations: the output of `albert eval` by number of labels.
    """
    scores = {count: _summarize_scores(evaluation) for count, evaluation in evaluations.items()}
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


def _summarize_scores(evaluation: Mapping[str, Any]) -> JsonObject:
    """Return the scores of one evaluation by model: the pretrained model, its controls and the baselines.

    For a control or a baseline, `every_seed_above` is True if every seed of the pretrained model is above it.
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
    """Return True for each control or baseline that every pretrained seed is above with every number of labels.

    scores: by number of labels and model. A model without scores for some number of labels is left out.
    """
    is_above = {}
    for name in (*CONTROLS, CLASSICAL):
        if all(name in by_model for by_model in scores.values()):
            is_above[name] = all(by_model[name].get("every_seed_above", False) for by_model in scores.values())
    return is_above


def conclude(differences: Mapping[str, Mapping[str, Any]]) -> str:
    """Return sentences that compare the encoder with classical features: for each verdict, the numbers of labels.

    differences: by number of labels and model, the fields of `ScoreDifference`.
    """
    verdicts: dict[str, list[str]] = defaultdict(list)
    for count, by_model in differences.items():
        if CLASSICAL in by_model:
            difference = ScoreDifference.model_validate(by_model[CLASSICAL])
            verdict = "Undecided, the interval includes zero"
            if difference.low > 0:
                verdict = "Yes"
            elif difference.high < 0:
                verdict = "No, it is worse"
            verdicts[verdict].append(f"with {int(count):,} labels {format_difference(difference)}")
    if not verdicts:
        return "There is no classical baseline for this kind of table, so the encoder was compared with controls only."
    sentences = [f"{verdict}: {join_words(counts)}." for verdict, counts in verdicts.items()]
    return "Is the encoder better than classical features here? " + " ".join(sentences)


def format_summary(result: Mapping[str, Any]) -> str:
    """Format a quickstart's result: the pretraining loss, the scores, some guesses of masked words, the conclusion."""
    scores = result["task"]  # by number of labels and model
    headers = ("labels", *(f"{int(count):,}" for count in scores))
    rows = []
    for name, title in _MODEL_TITLES.items():
        if all(name in by_model for by_model in scores.values()):
            rows.append((title, *(_format_scores(by_model[name]) for by_model in scores.values())))
    lines = [
        _format_loss(result["pretraining"]),
        "",
        f"{result['title']}: {result['metric']} on the development set, the median and every seed",
        console.format_table(headers, rows),
        *_format_verdicts(scores),
        "",
    ]
    shown = result["examples"][:_SHOWN_EXAMPLES]
    examples = [f"  {row['sentence']}\n    {row['word']}: {row['guesses']}" for row in shown]
    if examples:
        lines += ["masked words in texts of the development set:", *examples, ""]
    report = f"report: {result['report']}"
    if "seconds" in result:  # not if the quickstart was interrupted and resumed
        report += f"  ({console.format_duration(result['seconds'])})"
    return "\n".join([*lines, report, "", result["conclusion"]])


def _format_loss(pretraining: Mapping[str, Any]) -> str:
    """Return a line with the held-out MLM loss; pretraining: the output of `albert pretrain`."""
    gain = pretraining.get("below_unigram_entropy")  # positive if the loss is below the entropy
    if gain is None:
        return "no text is held out, so there is no held-out MLM loss"
    side = "above" if gain >= 0 else "below"
    entropy = f"unigram entropy {pretraining['unigram_entropy']:.3f} ({abs(gain):.3f} {side} the loss)"
    return f"held-out MLM loss {pretraining['mlm_loss']:.3f} nats, {entropy}"


def _format_verdicts(scores: Mapping[str, JsonObject]) -> list[str]:
    """Return a line for each list of models that every pretrained seed is above, with the numbers of labels.

    scores: by number of labels and model.
    """
    counts_by_models: dict[str, list[str]] = defaultdict(list)
    for count, by_model in scores.items():
        titles = [title for name, title in _MODEL_TITLES.items() if by_model.get(name, {}).get("every_seed_above")]
        counts_by_models["; ".join(titles) or "none of them"].append(f"{int(count):,}")
    return [
        f"with {join_words(counts)} labels every pretrained seed is above: {models}"
        for models, counts in counts_by_models.items()
    ]


def _format_scores(scores: Mapping[str, Any]) -> str:
    """Return a median times 100 with the scores of the seeds, such as `61.2 (60.1 61.2 63.0)`."""
    if scores.get("median") is None:
        return "diverged"
    median = f"{100 * scores['median']:.1f}"
    seeds = " ".join(f"{100 * score:.1f}" for score in scores.get("scores_by_seed", {}).values())
    return f"{median} ({seeds})" if seeds else median
