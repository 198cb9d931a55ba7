"""The results that `albert pretrain` prints: of a finished run, read from its files, and of a dry run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from albert_cli import console, journal, store
from albert_cli.model.weight_files import WEIGHTS_FILE
from albert_cli.training import checkpoint
from albert_cli.training.plan import DurationEstimate, RunPlan
from albert_cli.training.pretrain_recipe import PretrainRecipe


@dataclass(frozen=True)
class PretrainResult:
    """The outcome of a run: its last checkpoint, its speed, and the metrics of its last evaluation.

    `seconds` is the time of training, over all starts of the run. `tokens_per_second` is the last speed in the journal,
    None if the journal has none.
    """

    checkpoint: Path
    steps: int
    seconds: float
    tokens_per_second: float | None
    metrics: Mapping[str, float]
    model_sha256: str

    def to_json(self) -> dict[str, object]:
        """Return the values as `--json` prints them."""
        return {
            "checkpoint": str(self.checkpoint),
            "steps": self.steps,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            **self.metrics,
            "model_sha256": self.model_sha256,
        }

    def to_text(self) -> str:
        """Return the values as sentences."""
        metrics = self.metrics
        lines = [f"{self.checkpoint}: {self.steps:,} steps in {console.format_duration(self.seconds)}"]
        if "below_unigram_entropy" in metrics:
            below = metrics["below_unigram_entropy"]
            side = "below" if below >= 0 else "above"
            lines.append(
                f"held-out MLM loss {metrics['mlm_loss']:.3f} nats, {abs(below):.3f} {side} the unigram "
                f"entropy of the same text ({metrics['unigram_entropy']:.3f}); accuracy {metrics['mlm_accuracy']:.1%}"
            )
        if "order_accuracy" in metrics:
            lines.append(f"held-out sentence-pair accuracy {metrics['order_accuracy']:.1%}")
        scores_by_corpus: dict[str, list[str]] = {}  # the metrics of the recipe's `evaluation` are named CORPUS/METRIC
        for name, value in metrics.items():
            corpus, slash, metric = name.rpartition("/")
            if slash:
                scores_by_corpus.setdefault(corpus, []).append(f"{metric.replace('_', ' ')} {value:.3f}")
        lines += [f"{corpus}: {', '.join(scores)}" for corpus, scores in scores_by_corpus.items()]
        return "\n".join(lines)


@dataclass(frozen=True)
class DryRun:
    """The outcome of a dry run: the resolved recipe, the plan, and the estimated duration."""

    recipe: PretrainRecipe
    plan: RunPlan
    duration: DurationEstimate

    def to_json(self) -> dict[str, object]:
        """Return the values as `--json` prints them."""
        return {**self.plan.to_json(), **self.duration.to_json()}


def read_result(out: Path, total_steps: int) -> PretrainResult:
    """Read the result of a finished run from its directory."""
    last_checkpoint = store.saved_steps(out)[-1]
    state = checkpoint.read_state(last_checkpoint)
    records = journal.read_journal(out / journal.JOURNAL)
    speeds = [record["tokens_per_second"] for record in records if "tokens_per_second" in record]
    metrics = read_last_evaluation(out, total_steps)
    # Some of these metrics are missing without held-out text, or if a line of the journal is damaged.
    if {"mlm_loss", "mlm_accuracy", "unigram_entropy"} <= metrics.keys():
        metrics["below_unigram_entropy"] = round(metrics["unigram_entropy"] - metrics["mlm_loss"], 4)
    return PretrainResult(
        checkpoint=last_checkpoint,
        steps=state.step,
        seconds=round(state.seconds, 3),  # a run of the smoke scale takes some milliseconds
        tokens_per_second=speeds[-1] if speeds else None,
        metrics=metrics,
        model_sha256=store.sha256_file(last_checkpoint / WEIGHTS_FILE),
    )


def read_last_evaluation(out: Path, step: int) -> dict[str, float]:
    """Return the metrics of the last evaluation in the journal up to a step; {} if there is none."""
    path = out / journal.JOURNAL
    if not path.is_file():
        return {}
    evaluations = [r["eval"] for r in journal.read_journal(path) if "eval" in r and r["step"] <= step]
    return evaluations[-1] if evaluations else {}
