"""Pretraining as a job of the loop: masked words and sentence order (§3.1), evaluated on held-out text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from albert_cli import store
from albert_cli.counting import costs
from albert_cli.data.batches import PackedBatch, sample_batch, sample_lengths
from albert_cli.data.pairs import PairSettings
from albert_cli.data.shards import TokenCorpus
from albert_cli.model import card, hub
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.packing import PackedTokens, pack, to_device
from albert_cli.randomness import Integers
from albert_cli.ranks import RankGroup
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.distill import Teacher
from albert_cli.training.loop import MicroBatch, TrainingJob, split_micro_batches
from albert_cli.training.pretrain_recipe import PretrainRecipe

# Held-out examples are drawn like training ones, from a seed that no run's own seed can equal.
EVALUATION_SEED = 2**62
IGNORED_LABEL = -1  # the sentence-order label of a sequence that has none


@dataclass(frozen=True)
class PretrainingCorpora:
    """What a run reads: text to train on, held-out text with its unigram entropy, and further text by name.

    `unigram_entropy`, nats: what a model that only counts tokens would lose on the held-out text; None: not scored.
    """

    train: TokenCorpus
    heldout: TokenCorpus
    vocabulary: Vocabulary
    unigram_entropy: float | None = None
    others: Mapping[str, TokenCorpus] = field(default_factory=dict)


@dataclass(frozen=True)
class SampledBatch:
    """A micro-batch as it was drawn and, on the device, its tokens, masked labels [M] and order labels [N], int64."""

    drawn: PackedBatch
    tokens: PackedTokens
    labels: Tensor
    order: Tensor


def group_by_tokens(lengths: Integers, budget: int) -> list[Integers]:
    """The places in `lengths` [B], in groups whose lengths add up to at most `budget`, none of which is greater.

    Longest first: a group's lengths are alike, so that little is padded where attention needs a rectangle, and what
    does not fit into memory fails at once.
    """
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    groups, start = [], 0
    while start < len(order):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + budget, side="right"))
        groups.append(order[start:stop])
        start = stop
    return groups


@dataclass
class PretrainingJob(TrainingJob):
    """Masked-language and sentence-order training over a token corpus."""

    model: PretrainingModel
    settings: PretrainRecipe
    text: PretrainingCorpora
    last_metrics: Mapping[str, float] = field(default_factory=dict)
    teacher: Teacher | None = None

    @property
    def loss_names(self) -> tuple[str, ...]:
        """Masked words, the order of sentences unless the recipe leaves it out, and the distance to a teacher."""
        return (*self._scored, "distill_loss") if self.teacher else self._scored

    @property
    def _scored(self) -> tuple[str, ...]:
        return ("mlm_loss",) if self.settings.data.sentence_loss == "none" else ("mlm_loss", "order_loss")

    @property
    def extra_metrics(self) -> Mapping[str, str]:
        """The share of masked words, and of sentence orders, that the model gets right while it learns."""
        return {name.replace("loss", "accuracy"): name for name in self._scored}

    def draw(self, step: int, group: RankGroup) -> list[MicroBatch]:
        s = self.settings
        index, seed = s.examples_of(step), s.train.seed
        if budget := s.batch.tokens:
            # Every rank needs all lengths, which takes a small part of the time of drawing.
            groups = group_by_tokens(sample_lengths(self.text.train, s.data, seed, index), budget)
            own = [(n, index[group_]) for n, group_ in enumerate(groups) if n % group.world_size == group.rank]
        else:
            cuts = split_micro_batches(len(index), s.train.micro_batch_size, group)
            own = [(n, index[start:stop]) for n, start, stop in cuts]
        return [self._micro_batch(self.text.train, number, seed, examples, s.data) for number, examples in own]

    def _micro_batch(
        self, corpus: TokenCorpus, number: int, seed: int, index: Integers, pairs: PairSettings
    ) -> MicroBatch:
        drawn = sample_batch(corpus, self.text.vocabulary, pairs, seed, index)
        if pairs.sentence_loss == "nsp" and self.model.config.order_labels == 3:  # class 2 is "from another document"
            drawn = replace(drawn, order_labels=np.where(drawn.order_labels == 1, 2, drawn.order_labels))
        counts = {"mlm_loss": len(drawn.masked_index)}
        if self.teacher:
            counts["distill_loss"] = len(drawn.masked_index)
        if self.settings.data.sentence_loss != "none":
            counts["order_loss"] = int(np.count_nonzero(drawn.order_labels != IGNORED_LABEL))
        flops = costs.batch_flops(self.model.config, np.diff(drawn.offsets), len(drawn.masked_index))
        # On the device from here on: drawing goes on beside the computation, so that nothing waits for the copy.
        labels = to_device([drawn.masked_labels.astype(np.int64), drawn.order_labels.astype(np.int64)], self.device)
        data = SampledBatch(drawn, pack(drawn, self.device, drawn.masked_index), *labels)
        return MicroBatch(number, data, counts, len(drawn.ids), flops)

    def loss_sums(self, data: SampledBatch) -> dict[str, Tensor]:
        """Summed cross-entropy at masked positions and over sequences that have an order, and how many are right."""
        logits = self.model(data.tokens)
        given = (logits.masked, logits.sentence_order, data.labels, data.order)
        sums = dict(_compiled_sum_losses()(*given)) if self.settings.train.compile == "on" else _sum_losses(*given)
        if self.teacher:
            sums["distill_loss"] = self.teacher.loss(logits.masked, data.tokens)
        return sums

    def evaluate(self, group: RankGroup) -> dict[str, float]:
        """Losses and accuracies over fixed sets of examples, the same at every step of every run.

        The held-out text, if there is any, with its unigram entropy; then every other corpus, `NAME/` before its
        scores. Where sentence order was trained, next-sentence accuracy stands beside it, and vice versa (§4.6).
        """
        metrics, text = dict[str, float](), self.text
        if text.heldout.tokens and text.unigram_entropy is not None:
            metrics = {**self._scores(text.heldout, group), "unigram_entropy": text.unigram_entropy}
        for name, corpus in text.others.items():
            metrics |= {f"{name}/{key}": value for key, value in self._scores(corpus, group).items()}
        self.last_metrics = metrics
        return metrics

    def _scores(self, corpus: TokenCorpus, group: RankGroup) -> dict[str, float]:
        pairs = self.settings.data
        own = self._means(corpus, pairs, group)
        metrics = {"mlm_loss": own["mlm_loss"], "mlm_accuracy": own["mlm_accuracy"]}
        if pairs.sentence_loss == "none":
            return metrics
        metrics |= {name: value for name, value in own.items() if name.startswith("order_")}
        others: tuple[Literal["nsp", "sop"], ...] = ("nsp", "sop")
        for other in others:
            if other != pairs.sentence_loss:
                found = self._means(corpus, replace(pairs, sentence_loss=other), group)
                metrics |= {f"{other}_accuracy": found["order_accuracy"]} if "order_accuracy" in found else {}
        return metrics

    def _means(self, corpus: TokenCorpus, pairs: PairSettings, group: RankGroup) -> dict[str, float]:
        """The mean of all that `loss_sums` gives, over the evaluation's examples drawn by these rules.

        What there is none of has no mean: next sentences in a single document, order where documents have one sentence.
        """
        sums = dict.fromkeys((*self._scored, *self.extra_metrics), (0.0, 0))
        size = self.settings.batch.sequences(self.settings.train, pairs.max_seq_length)
        for _, start, stop in split_micro_batches(self.settings.train.eval_sequences, size, group):
            for name, (total, count) in self.summed(corpus, pairs, np.arange(start, stop)).items():
                sums[name] = (sums[name][0] + total, sums[name][1] + count)
        ranks = group.all_gather([float(number) for both in sums.values() for number in both])
        totals = [sum(values) for values in zip(*ranks, strict=True)]
        means = zip(sums, totals[::2], totals[1::2], strict=True)
        return {name: total / count for name, total, count in means if count}

    def summed(self, corpus: TokenCorpus, pairs: PairSettings, index: Integers) -> dict[str, tuple[float, int]]:
        """For each loss and accuracy its sum over these examples of the evaluation, and their number."""
        part = self._micro_batch(corpus, 0, EVALUATION_SEED, index, pairs)
        found = self.loss_sums(part.data)
        over = {name: name for name in self._scored} | dict(self.extra_metrics)
        return {name: (found[name].item(), part.counts[of]) for name, of in over.items()}

    def write_model(self, directory: Path) -> None:
        hub.write_checkpoint(self.model, directory, "ForPreTraining")
        shape, sentence_loss = self.model.config, self.settings.data.sentence_loss
        self.text.vocabulary.copy_to(directory, shape.max_position_embeddings)
        text = card.pretraining_card(
            shape, costs.count_parameters(shape).with_pooler, sentence_loss, self.last_metrics, self.recipe
        )
        store.write_text(directory / "README.md", text)


def _sum_losses(masked_MV: Tensor, order_NC: Tensor, labels_M: Tensor, labels_N: Tensor) -> dict[str, Tensor]:
    """Both losses summed, softmax in fp32 whatever the precision of the products, and how many are right."""
    return {
        "mlm_loss": F.cross_entropy(masked_MV.float(), labels_M, reduction="sum"),
        "order_loss": F.cross_entropy(order_NC.float(), labels_N, ignore_index=IGNORED_LABEL, reduction="sum"),
        "mlm_accuracy": count_correct(masked_MV.detach(), labels_M),
        "order_accuracy": count_correct(order_NC.detach(), labels_N),
    }


@cache
def _compiled_sum_losses() -> Callable[..., dict[str, Tensor]]:
    """`_sums` compiled: logits are as wide as the vocabulary, and are read and written in few passes."""
    from torch._dynamo import maybe_mark_dynamic

    compiled = torch.compile(_sum_losses)

    def sums(*given: Tensor) -> dict[str, Tensor]:
        for tensor in given:  # their first sizes differ from batch to batch
            maybe_mark_dynamic(tensor, 0)
        return compiled(*given)

    return sums


def count_correct(logits: Tensor, labels: Tensor) -> Tensor:
    """How many of the labels [N] are the argmax of their logits [N, C]; a label of -1 is never right."""
    if logits.dtype != torch.float32:
        return (logits.max(-1).indices == labels).sum()  # on a CPU four times faster than argmax in bf16
    # Ten times faster on a CPU, and the same where no two logits are equal, which in bf16 they may be.
    own = logits.gather(1, labels.clamp(min=0)[:, None])[:, 0]
    return ((own == logits.amax(-1)) & (labels >= 0)).sum()
