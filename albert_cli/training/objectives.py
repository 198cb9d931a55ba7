"""Pretraining as a job of the loop: masked words and sentence order (§3.1), evaluated on held-out text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from albert_cli.data.batches import PackedBatch, PairSettings, batch, step_indices
from albert_cli.data.random import Integers
from albert_cli.data.shards import TokenCorpus
from albert_cli.distributed import Group
from albert_cli.model import card, hub
from albert_cli.model.heads import PretrainingLogits, PretrainingModel
from albert_cli.model.packing import pack
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.checkpoint import TrainState
from albert_cli.training.loop import MicroBatch, micro_batches
from albert_cli.training.settings import TrainSettings

# Held-out examples are drawn like training ones, from a seed that no run's own seed can equal.
_EVALUATION_SEED = 2**62
IGNORE = -1  # the order label of a sequence that has none


@dataclass
class PretrainingJob:
    """Masked-language and sentence-order training over a token corpus."""

    model: PretrainingModel
    corpus: TokenCorpus
    heldout: TokenCorpus
    vocabulary: Vocabulary
    pairs: PairSettings
    settings: TrainSettings
    device: torch.device
    recipe: str
    unigram_entropy: float | None  # of the held-out text: what a model that only counts pieces would lose, in nats
    last_metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def loss_names(self) -> tuple[str, ...]:
        """Masked words, and the order of sentences unless the recipe leaves it out."""
        return ("mlm_loss",) if self.pairs.sentence_loss == "none" else ("mlm_loss", "order_loss")

    def draw(self, step: int, group: Group) -> list[MicroBatch]:
        """This rank's micro-batches of the step."""
        index = step_indices(step, self.settings.batch_size)
        cuts = micro_batches(self.settings.batch_size, self.settings.micro_batch_size, group)
        return [self._micro_batch(self.corpus, n, self.settings.seed, index[a:b]) for n, a, b in cuts]

    def _micro_batch(self, corpus: TokenCorpus, number: int, seed: int, index: Integers) -> MicroBatch:
        drawn = batch(corpus, self.vocabulary, self.pairs, seed, index)
        counts = {"mlm_loss": len(drawn.masked_index)}
        if self.pairs.sentence_loss != "none":
            counts["order_loss"] = int(np.count_nonzero(drawn.order_labels != IGNORE))
        return MicroBatch(number, drawn, counts, len(drawn.ids))

    def loss_sums(self, data: PackedBatch) -> dict[str, Tensor]:
        """Summed cross-entropy at the masked positions, and over the sequences that have an order."""
        logits, labels, orders = self._forward(data)
        # fp32 softmax, whatever the precision of the products
        return {
            "mlm_loss": F.cross_entropy(logits.masked.float(), labels, reduction="sum"),
            "order_loss": F.cross_entropy(logits.order.float(), orders, ignore_index=IGNORE, reduction="sum"),
        }

    def _forward(self, data: PackedBatch) -> tuple[PretrainingLogits, Tensor, Tensor]:
        tokens = pack(data, self.device, data.masked_index)
        labels = torch.from_numpy(data.masked_labels.astype(np.int64)).to(self.device)
        orders = torch.from_numpy(data.order_labels.astype(np.int64)).to(self.device)
        return self.model(tokens), labels, orders

    def evaluate(self, group: Group) -> dict[str, float]:
        """Losses and accuracies over a fixed set of held-out examples, the same at every step of every run.

        Nothing when no text was held out.
        """
        if self.heldout.tokens == 0 or self.unigram_entropy is None:
            return {}
        sums = np.zeros(6)
        size = self.settings.micro_batch_size
        for number, start, stop in micro_batches(self.settings.eval_sequences, size, group):
            drawn = self._micro_batch(self.heldout, number, _EVALUATION_SEED, np.arange(start, stop)).data
            logits, labels, orders = self._forward(drawn)
            known = orders != IGNORE
            losses = F.cross_entropy(logits.masked.float(), labels, reduction="sum")
            order_losses = F.cross_entropy(logits.order.float()[known], orders[known], reduction="sum")
            right = (logits.masked.argmax(-1) == labels).sum(), (logits.order.argmax(-1) == orders)[known].sum()
            sums += [
                losses.item(),
                right[0].item(),
                len(labels),
                order_losses.item(),
                right[1].item(),
                int(known.sum()),
            ]
        mlm, mlm_right, masked, order, order_right, ordered = group.sum_numbers(sums.tolist())
        metrics = {"mlm_loss": mlm / max(masked, 1), "mlm_accuracy": mlm_right / max(masked, 1)}
        metrics["unigram_entropy"] = self.unigram_entropy
        if self.pairs.sentence_loss != "none":
            metrics |= {"order_loss": order / max(ordered, 1), "order_accuracy": order_right / max(ordered, 1)}
        self.last_metrics = metrics
        return metrics

    def score(self, metrics: Mapping[str, float]) -> float:
        """Held-out masked-word loss, negated."""
        return -metrics["mlm_loss"]

    def keep_best(self, metrics: Mapping[str, float], state: TrainState) -> None:
        """Pretraining keeps its steps, not its best: the schedule ends at the best."""

    def write_model(self, directory: Path) -> None:
        """The encoder with both heads, its tokenizer and its card."""
        hub.write(self.model, directory, "ForPreTraining")
        self.vocabulary.copy_to(directory, self.model.config.max_position_embeddings)
        card.write(
            directory, card.pretrained(self.model.config, self.pairs.sentence_loss, self.last_metrics, self.recipe)
        )
