"""The scores of `albert probe`: the records that `probe` fills, the output of `--json`, and the printed tables."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

import numpy as np

from albert_cli import config, console
from albert_cli.data.pairs import PairSettings
from albert_cli.experiments.minimal_pairs import MinimalPairScores, format_minimal_pairs


@dataclasses.dataclass(frozen=True)
class TextScores:
    """Scores on held-out text by name, such as `mlm_accuracy`."""

    values: dict[str, float]
    # Leave-one-group-out scores, from which the sampling error is computed (`uncertainty`): for each jackknife group of
    # sequences, the score of all other sequences.
    without_groups: dict[str, list[float]]


@dataclasses.dataclass(frozen=True)
class LayerDistances:
    """Figure 1: how far each layer moves its input.

    `by_measure` are the distances between the input and the output of each layer, by measure (`l2`, `degrees`, …).
    `summaries` are statistics of these distances over the layers (`l2_mean`, `degrees_last`, …).
    """

    masked_tokens: int  # number of masked tokens in the scored text; the key in `--json` is `masked_words`
    by_measure: dict[str, list[float]]
    summaries: dict[str, float]


@dataclasses.dataclass(frozen=True)
class DepthScores:
    """The scores of a model whose layers are run to every depth up to `layers`.

    `trained` is the depth that the model was trained with, beyond which its layers repeat. Each list has one value per
    depth d from 1. With x(d) for the output of layer d, and x(0) for the input of the first layer, `l2` is the distance
    |x(d) - x(d-1)| and `two_back` the distance |x(d) - x(d-2)|; at depth 1 `two_back` equals `l2`. `mlm_accuracy` and
    `speed` are those of a model that ends at depth d; the speed is relative to the trained depth. `behavior` is
    "converges", "oscillates" or "keeps moving".
    """

    layers: int
    trained: int
    behavior: str
    l2: list[float]
    two_back: list[float]
    mlm_accuracy: list[float]
    speed: list[float]


@dataclasses.dataclass(frozen=True)
class ProbeScores:
    """The measurements of a checkpoint."""

    checkpoint: Path
    fingerprint: str
    sequences: int
    data: PairSettings  # the settings with which the examples were sampled
    parameters: int
    block_parameters: int
    layers: int
    text: TextScores
    distances: LayerDistances
    depths: DepthScores | None
    minimal_pairs: MinimalPairScores | None

    def to_json(self) -> dict[str, object]:
        """Return the output of `--json`, in which every score is a key of the outermost object."""
        values: dict[str, object] = {
            "checkpoint": str(self.checkpoint),
            "fingerprint": self.fingerprint,
            "sequences": self.sequences,
            "data": config.to_toml_values(self.data),
            "parameters": self.parameters,
            "block_parameters": self.block_parameters,
            "layers": self.layers,
            **self.text.values,
            "without_parts": self.text.without_groups,
            "masked_words": self.distances.masked_tokens,
            "layer_steps": self.distances.by_measure,
            **self.distances.summaries,
        }
        if self.depths is not None:
            values["depths"] = dataclasses.asdict(self.depths)
        if self.minimal_pairs is not None:
            values["minimal_pairs"] = self.minimal_pairs.to_json()
            estimates = {
                "minimal_pairs_accuracy": self.minimal_pairs.accuracy,
                "minimal_pairs_preference": self.minimal_pairs.preference,
            }
            # Item 0 of an estimate is the score of all pairs, item 1 + i the score without jackknife group i
            # (`uncertainty`).
            values |= {name: round(float(estimate[0]), 6) for name, estimate in estimates.items()}
            without_groups = {
                name: np.round(estimate[1:], 8).tolist()
                for name, estimate in estimates.items()
                if np.isfinite(estimate).all()  # a single pair has no score without its group
            }
            values["without_parts"] = self.text.without_groups | without_groups
        return values


# ---------------------------------------------------------------- tables

# Key, title and format of each score.
_SCORE_ROWS: Final = (
    ("mlm_accuracy", "MLM accuracy", "{:.1%}"),
    ("mlm_loss", "MLM loss", "{:.3f} nats"),
    ("below_unigram_entropy", "below the unigram entropy", "{:+.3f} nats"),
    ("nsp_accuracy", "NSP accuracy", "{:.1%}"),
    ("sop_accuracy", "SOP accuracy", "{:.1%}"),
)


def format_probe(probe: ProbeScores) -> str:
    """Format the scores, the distances of the layers, the depths and the minimal pairs as tables."""
    values = probe.text.values
    scores = [(title, form.format(values[key])) for key, title, form in _SCORE_ROWS if key in values]
    scores.append(("parameters", f"{probe.parameters:,}"))
    settings = probe.data
    unit = "words" if settings.whole_word else "tokens"
    note = f"Sequences of at most {settings.max_seq_length} tokens, masked n-grams of up to {settings.ngram} {unit}."
    parts = [f"{console.format_table((probe.checkpoint.name, ''), scores)}\n{note}"]
    by_measure = probe.distances.by_measure
    distances = zip(by_measure["l2"], by_measure["degrees"], by_measure["cosine"], strict=True)
    rows = [
        (str(layer), f"{l2:.3f}", f"{degrees:.1f}°", f"{cosine:.4f}")
        for layer, (l2, degrees, cosine) in enumerate(distances, start=1)
    ]
    parts.append(console.format_table(("layer: input to output", "L2 distance", "angle", "cosine"), rows))
    depths = probe.depths
    if depths is not None:
        columns = zip(depths.l2, depths.two_back, depths.mlm_accuracy, depths.speed, strict=True)
        depth_rows = [
            (str(depth), f"{l2:.3f}", f"{two_back:.3f}", f"{accuracy:.1%}", f"{speed:.2f}x")
            for depth, (l2, two_back, accuracy, speed) in enumerate(columns, start=1)
        ]
        headers = ("depth", "L2 to layer before", "L2 to two layers before", "MLM accuracy", "speed")
        parts.append(console.format_table(headers, depth_rows))
        parts.append(f"Run to {depths.layers} layers, the model of {depths.trained} layers {depths.behavior}.")
    if probe.minimal_pairs is not None:
        parts.append(format_minimal_pairs(probe.minimal_pairs))
    return "\n\n".join(parts)
