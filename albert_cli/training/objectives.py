"""Pretraining with MLM and SOP (§3.1) as a job of the training loop, evaluated on held-out text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Final, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from albert_cli import store
from albert_cli.counting import costs
from albert_cli.data.batches import PackedBatch, sample_batch, sample_lengths
from albert_cli.data.pairs import NO_LABEL, PairSettings
from albert_cli.data.shards import TokenCorpus
from albert_cli.model import card, hub
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.packing import PackedTokens, pack, to_device
from albert_cli.randomness import Integers
from albert_cli.ranks import RankGroup
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.checkpoint import TrainState
from albert_cli.training.cross_entropy import cross_entropy_sum
from albert_cli.training.distill import Teacher
from albert_cli.training.job import MicroBatch, TrainingJob, split_micro_batches
from albert_cli.training.pretrain_recipe import PretrainRecipe
from albert_cli.training.text_match import write_token_counts

# Held-out examples are sampled like training examples, from a seed that no run can have.
EVALUATION_SEED: Final = 2**62
_PAIR_RULES: Final[tuple[Literal["nsp", "sop"], ...]] = ("nsp", "sop")


@dataclass(frozen=True)
class PretrainingCorpora:
    """The training text of a run, its held-out text, and further corpora to evaluate, by name.

    `unigram_entropy`, in nats, is the held-out loss of a model that only knows token frequencies. If it is None, the
    held-out text is not scored.
    """

    train: TokenCorpus
    heldout: TokenCorpus
    vocabulary: Vocabulary
    unigram_entropy: float | None = None
    further: Mapping[str, TokenCorpus] = field(default_factory=dict)


@dataclass(frozen=True)
class SampledBatch:
    """A micro-batch in host memory; its tokens, masked labels [M] and order labels [N] (int64) on the device."""

    host: PackedBatch
    tokens: PackedTokens
    labels: Tensor
    order: Tensor


def group_by_tokens(lengths: Integers, budget: int) -> list[Integers]:
    """Split the indices of `lengths` [B] into groups whose lengths sum to at most `budget`; no length may exceed it.

    The longest come first. A group then has similar lengths, so there is little padding where attention needs a
    rectangle, and a batch that does not fit into memory fails at once.
    """
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    groups = []
    start = 0
    while start < len(order):
        tokens_before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, tokens_before + budget, side="right"))
        groups.append(order[start:stop])
        start = stop
    return groups


@dataclass
class PretrainingJob(TrainingJob[SampledBatch]):
    """MLM and sentence-pair training on a token corpus."""

    model: PretrainingModel
    settings: PretrainRecipe
    corpora: PretrainingCorpora
    last_metrics: Mapping[str, float] = field(default_factory=dict)
    teacher: Teacher | None = None

    @property
    def loss_names(self) -> tuple[str, ...]:
        """The names of the losses: MLM, sentence pairs unless the recipe has none, and distillation with a teacher."""
        return (*self._evaluated_losses, "distill_loss") if self.teacher else self._evaluated_losses

    @property
    def _evaluated_losses(self) -> tuple[str, ...]:
        return ("mlm_loss",) if self.settings.data.sentence_loss == "none" else ("mlm_loss", "order_loss")

    @property
    def extra_metrics(self) -> Mapping[str, str]:
        """The loss that counts the items of each accuracy, by the accuracy's name."""
        return {name.replace("loss", "accuracy"): name for name in self._evaluated_losses}

    def sample_step(self, step: int, group: RankGroup) -> list[MicroBatch[SampledBatch]]:
        settings = self.settings
        corpus = self.corpora.train
        seed = settings.train.seed
        examples = settings.examples_of(step)
        if settings.batch.tokens:
            # Every rank needs the lengths of all ranks; computing them takes a small part of the sampling time.
            lengths = sample_lengths(corpus, settings.data, seed, examples)
            parts = enumerate(group_by_tokens(lengths, settings.batch.tokens))
            local = [(number, examples[part]) for number, part in parts if number % group.world_size == group.rank]
        else:
            ranges = split_micro_batches(len(examples), settings.train.micro_batch_size, group)
            local = [(number, examples[start:stop]) for number, start, stop in ranges]
        return [self._sample_micro_batch(corpus, number, seed, part, settings.data) for number, part in local]

    def _sample_micro_batch(
        self, corpus: TokenCorpus, number: int, seed: int, examples: Integers, pairs: PairSettings
    ) -> MicroBatch[SampledBatch]:
        batch = sample_batch(corpus, self.corpora.vocabulary, pairs, seed, examples)
        if pairs.sentence_loss == "nsp" and self.model.config.order_labels == 3:  # class 2 is "from another document"
            batch = replace(batch, order_labels=np.where(batch.order_labels == 1, 2, batch.order_labels))
        counts = {"mlm_loss": len(batch.masked_index)}
        if self.teacher:
            counts["distill_loss"] = len(batch.masked_index)
        if self.settings.data.sentence_loss != "none":
            counts["order_loss"] = int(np.count_nonzero(batch.order_labels != NO_LABEL))
        flops = costs.batch_flops(self.model.config, np.diff(batch.offsets), len(batch.masked_index))
        # This runs in the prefetching thread, so nothing waits for the copy to the device.
        labels, order = to_device(
            [batch.masked_labels.astype(np.int64), batch.order_labels.astype(np.int64)], self.device
        )
        data = SampledBatch(batch, pack(batch, self.device, batch.masked_index), labels, order)
        return MicroBatch(number, data, counts, len(batch.ids), flops)

    def loss_sums(self, data: SampledBatch) -> dict[str, Tensor]:
        """Return the sum of each loss over its items, and the number of correct predictions as the accuracies' sums."""
        logits = self.model(data.tokens)
        sum_losses = _compiled_sum_losses() if self.settings.train.compile == "on" else _sum_losses
        sums = dict(sum_losses(logits.masked, logits.sentence_order, data.labels, data.order))
        if self.teacher:
            sums["distill_loss"] = self.teacher.loss(logits.masked, data.tokens)
        return sums

    def evaluate(self, group: RankGroup) -> dict[str, float]:
        """Return losses and accuracies over fixed examples, the same at every step of every run.

        Scores on a further corpus have the prefix `NAME/`; scores on the held-out text have none and include its
        unigram entropy. A model trained on SOP is also scored on NSP, and vice versa (§4.6).
        """
        metrics: dict[str, float] = {}
        corpora = self.corpora
        if corpora.heldout.tokens and corpora.unigram_entropy is not None:
            metrics = {**self._scores(corpora.heldout, group), "unigram_entropy": corpora.unigram_entropy}
        for name, corpus in corpora.further.items():
            for metric, value in self._scores(corpus, group).items():
                metrics[f"{name}/{metric}"] = value
        self.last_metrics = metrics
        return metrics

    def _scores(self, corpus: TokenCorpus, group: RankGroup) -> dict[str, float]:
        pairs = self.settings.data
        means = self._means(corpus, pairs, group)
        metrics = {"mlm_loss": means["mlm_loss"], "mlm_accuracy": means["mlm_accuracy"]}
        if pairs.sentence_loss == "none":
            return metrics
        metrics |= {name: value for name, value in means.items() if name.startswith("order_")}
        for rule in _PAIR_RULES:
            if rule != pairs.sentence_loss:
                means = self._means(corpus, replace(pairs, sentence_loss=rule), group)
                if "order_accuracy" in means:
                    metrics[f"{rule}_accuracy"] = means["order_accuracy"]
        return metrics

    def _means(self, corpus: TokenCorpus, pairs: PairSettings, group: RankGroup) -> dict[str, float]:
        """Return the mean of each loss and accuracy over the evaluation's examples, sampled with the settings `pairs`.

        A metric without items is left out: NSP in a corpus of one document, SOP in documents of one sentence.
        """
        names = (*self._evaluated_losses, *self.extra_metrics)
        sums = np.zeros((len(names), 2))  # a row for each metric: its sum, and the number of items
        micro_batch_size = self.settings.batch.sequences(self.settings.train, pairs.max_seq_length)
        for _, start, stop in split_micro_batches(self.settings.train.eval_sequences, micro_batch_size, group):
            part = self.evaluate_examples(corpus, pairs, np.arange(start, stop))
            sums += [part[name] for name in names]
        sums_of_ranks = group.all_gather(sums.tolist())
        totals = np.sum(sums_of_ranks, axis=0).tolist()
        return {name: total / count for name, (total, count) in zip(names, totals, strict=True) if count}

    def evaluate_examples(
        self, corpus: TokenCorpus, pairs: PairSettings, examples: Integers
    ) -> dict[str, tuple[float, int]]:
        """Return the sum of each loss and accuracy over these evaluation examples, and the number of its items."""
        part = self._sample_micro_batch(corpus, 0, EVALUATION_SEED, examples, pairs)
        sums = self.loss_sums(part.data)
        loss_of_metric = {name: name for name in self._evaluated_losses} | dict(self.extra_metrics)
        return {name: (sums[name].item(), part.counts[loss]) for name, loss in loss_of_metric.items()}

    def keep_best(self, metrics: Mapping[str, float], state: TrainState) -> None:
        """Do nothing: the result of pretraining is its last weights."""

    def write_model(self, directory: Path) -> None:
        config = self.model.config
        order_labels = hub.ORDER_LABELS[self.settings.data.sentence_loss]
        if len(order_labels) != config.order_labels:
            # The recipe has no sentence loss, or trains two classes of a head of three.
            order_labels = hub.ORDER_LABELS["three-way"] if order_labels and config.order_labels == 3 else ()
        hub.write_checkpoint(self.model, directory, "ForPreTraining", order_labels=order_labels)
        self.corpora.vocabulary.copy_to(directory, config.max_position_embeddings)
        parameters = costs.count_parameters(config).with_pooler
        sentence_loss = self.settings.data.sentence_loss
        text = card.pretraining_card(config, parameters, sentence_loss, self.last_metrics, self.recipe)
        store.write_text(directory / "README.md", text)
        if self.corpora.train.directory is not None:
            write_token_counts(directory, self.corpora.train.unigram_counts())


def _sum_losses(masked_MV: Tensor, order_NC: Tensor, labels_M: Tensor, labels_N: Tensor) -> dict[str, Tensor]:
    """Sum both losses, always with softmax in fp32, and count correct predictions."""
    if masked_MV.device.type == "cpu" and not torch.compiler.is_compiling():
        mlm_loss, mlm_correct = cross_entropy_sum(masked_MV, labels_M)
    else:
        mlm_loss = F.cross_entropy(masked_MV.float(), labels_M, reduction="sum")
        mlm_correct = count_correct(masked_MV.detach(), labels_M)
    return {
        "mlm_loss": mlm_loss,
        "order_loss": F.cross_entropy(order_NC.float(), labels_N, ignore_index=NO_LABEL, reduction="sum"),
        "mlm_accuracy": mlm_correct,
        "order_accuracy": count_correct(order_NC.detach(), labels_N),
    }


@cache
def _compiled_sum_losses() -> Callable[..., dict[str, Tensor]]:
    """Compile `_sum_losses`, which then makes fewer passes over the large logits [M, V]."""
    from torch._dynamo import maybe_mark_dynamic

    compiled = torch.compile(_sum_losses)

    def sum_losses(*tensors: Tensor) -> dict[str, Tensor]:
        for tensor in tensors:  # M and N differ from batch to batch and must not cause a compilation
            maybe_mark_dynamic(tensor, 0)
        return compiled(*tensors)

    return sum_losses


def count_correct(logits: Tensor, labels: Tensor) -> Tensor:
    """Count the labels [N] that are the argmax of their logits [N, C]; a label of -1 is never correct."""
    if logits.dtype != torch.float32:
        return (logits.max(-1).indices == labels).sum()  # in bf16 on a CPU four times faster than argmax
    # In fp32 on a CPU this is ten times faster than argmax. The two differ only if logits are equal, as often in bf16.
    label_logits = logits.gather(1, labels.clamp(min=0)[:, None])[:, 0]
    return ((label_logits == logits.amax(-1)) & (labels >= 0)).sum()
