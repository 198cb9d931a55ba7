"""Pretraining with MLM and a sentence-pair loss such as SOP (§3.1) as a job of the training loop.

`PretrainingJob` samples micro-batches from a token corpus, computes their losses, scores held-out text, and writes the
model with its card.

Shapes: M masked positions, V vocabulary size, N sequences, C classes of the sentence-pair loss.
"""

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

# Evaluation examples are sampled like training examples, from a seed that `train.seed` does not allow.
EVALUATION_SEED: Final = 2**62
_MLM_METRICS: Final = ("mlm_loss", "mlm_accuracy")
_PAIR_TASKS: Final[tuple[Literal["nsp", "sop"], ...]] = ("nsp", "sop")  # an evaluation scores both (§4.6)


@dataclass(frozen=True)
class PretrainingCorpora:
    """The training text and the held-out text of a run; `evaluation`: more corpora to score, by name.

    `unigram_entropy`, in nats, is the MLM loss on the held-out text of a model that only knows token frequencies. The
    held-out text is not scored if it is empty or its entropy is None.
    """

    train: TokenCorpus
    heldout: TokenCorpus
    vocabulary: Vocabulary
    unigram_entropy: float | None = None
    evaluation: Mapping[str, TokenCorpus] = field(default_factory=dict)


@dataclass(frozen=True)
class SampledBatch:
    """A micro-batch of N sequences with M masked positions.

    `packed` has the arrays in host memory, which only `bench/pretrain.py` and tests read. The other fields are on the
    device: the packed tokens (sequences concatenated without padding), the ids of the masked tokens (int64 [M]), and
    the classes of the sentence pairs (int64 [N]; `NO_LABEL` for a sequence without a pair).
    """

    packed: PackedBatch
    tokens: PackedTokens
    masked_labels: Tensor
    order_labels: Tensor


def group_by_tokens(lengths: Integers, budget: int) -> list[Integers]:
    """Split the indices of `lengths` [B] into groups whose lengths sum to at most `budget`; no length may exceed it.

    The longest sequences come first. A group then has similar lengths, so there is little padding where attention needs
    a rectangle. And if a micro-batch of the longest sequences does not fit into memory, the step fails at its start.
    """
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])  # tokens up to and including each sequence
    groups = []
    start = 0
    grouped_tokens = 0
    while start < len(order):
        stop = int(np.searchsorted(ends, grouped_tokens + budget, side="right"))
        groups.append(order[start:stop])
        grouped_tokens = int(ends[stop - 1])
        start = stop
    return groups


@dataclass
class PretrainingJob(TrainingJob[SampledBatch]):
    """MLM and sentence-pair training on a token corpus, evaluated on held-out text.

    `last_metrics` are the scores of the last evaluation, for the model card of a checkpoint. A `teacher` adds a
    distillation loss.
    """

    model: PretrainingModel
    settings: PretrainRecipe
    corpora: PretrainingCorpora
    last_metrics: Mapping[str, float] = field(default_factory=dict)
    teacher: Teacher | None = None

    @property
    def weight_sources(self) -> tuple[str, ...]:
        """The checkpoints in `[warm_start]` and `[distill]`."""
        warm_start = self.settings.warm_start
        distill = self.settings.distill
        parent = warm_start.checkpoint or warm_start.continues if warm_start is not None else None
        teacher = distill.teacher if distill is not None else None
        return tuple(name for name in (parent, teacher) if name)

    @property
    def loss_names(self) -> tuple[str, ...]:
        """The names of the losses: MLM, sentence pairs unless the recipe has none, and distillation with a teacher."""
        if self.teacher is None:
            return self._evaluated_losses
        return (*self._evaluated_losses, "distill_loss")

    @property
    def _evaluated_losses(self) -> tuple[str, ...]:
        """The names of the losses that an evaluation computes: all but distillation."""
        if self.settings.data.sentence_loss == "none":
            return ("mlm_loss",)
        return ("mlm_loss", "order_loss")

    @property
    def extra_metrics(self) -> Mapping[str, str]:
        """The accuracies; each maps to the loss whose item count it shares."""
        return {name.replace("loss", "accuracy"): name for name in self._evaluated_losses}

    def sample_step(self, step: int, group: RankGroup) -> list[MicroBatch[SampledBatch]]:
        settings = self.settings
        corpus = self.corpora.train
        seed = settings.train.seed
        index = settings.batch_index(step)
        local_index: dict[int, Integers] = {}  # of this rank's examples, by the number of their micro-batch
        if settings.batch.max_micro_tokens:
            # Every rank samples the lengths of all examples and splits them alike. For 4,096 examples this takes a core
            # 8 ms with 20 shards and 50 ms with 2,000 (`python -m benchmarks.data`), while the GPU computes.
            lengths = sample_lengths(corpus, settings.data, seed, index)
            for number, rows in enumerate(group_by_tokens(lengths, settings.batch.max_micro_tokens)):
                if number % group.world_size == group.rank:
                    local_index[number] = index[rows]
        else:
            for number, start, stop in split_micro_batches(len(index), settings.train.micro_batch_size, group):
                local_index[number] = index[start:stop]
        return [
            self._sample_micro_batch(corpus, number, seed, part, settings.data) for number, part in local_index.items()
        ]

    def _sample_micro_batch(
        self, corpus: TokenCorpus, number: int, seed: int, index: Integers, pairs: PairSettings
    ) -> MicroBatch[SampledBatch]:
        """Sample the examples `index`, int64 [B], and count their items, tokens and FLOPs.

        `number` is the micro-batch's index in its step. `pairs` can differ from the recipe's settings in an evaluation.
        """
        batch = sample_batch(corpus, self.corpora.vocabulary, pairs, seed, index)
        if pairs.sentence_loss == "nsp" and self.model.config.order_labels == 3:
            # A head of three classes has 0 = in order, 1 = swapped, 2 = other document. NSP labels a pair from two
            # documents as 1.
            batch = replace(batch, order_labels=np.where(batch.order_labels == 1, 2, batch.order_labels))
        counts = {"mlm_loss": len(batch.masked_index)}
        if self.teacher:
            counts["distill_loss"] = len(batch.masked_index)
        if self.settings.data.sentence_loss != "none":
            counts["order_loss"] = int(np.count_nonzero(batch.order_labels != NO_LABEL))
        flops = costs.batch_flops(self.model.config, np.diff(batch.offsets), len(batch.masked_index))
        # In training this runs in the thread of `run_ahead`, so the training thread does not wait for the copy.
        masked_labels, order_labels = to_device(
            [batch.masked_labels.astype(np.int64), batch.order_labels.astype(np.int64)], self.device
        )
        data = SampledBatch(batch, pack(batch, self.device, batch.masked_index), masked_labels, order_labels)
        return MicroBatch(number, data, counts, len(batch.ids), flops)

    def loss_sums(self, data: SampledBatch) -> dict[str, Tensor]:
        """Return the sum of each loss over its items, and for each accuracy the number of correct predictions.

        In evaluation mode the distillation loss is left out.
        """
        logits = self.model(data.tokens)
        sum_losses = _compiled_sum_losses() if self.settings.train.compile == "on" else _sum_losses
        order_logits = logits.sentence_order
        if self.settings.data.sentence_loss == "none":
            # Compiled code would give the unused head gradients of zeros, with which LAMB shrinks its weights.
            order_logits = order_logits.detach()
        sums = sum_losses(logits.masked, order_logits, data.masked_labels, data.order_labels)
        if self.teacher and self.model.training:  # no evaluation reads the loss, and a teacher's forward pass is slow
            sums["distill_loss"] = self.teacher.loss(logits.masked, data.tokens)
        return sums

    def evaluate(self, group: RankGroup) -> dict[str, float]:
        """Return losses and accuracies over examples that are the same at every step of every run.

        Scores on the held-out text have no prefix and include its unigram entropy; scores on another evaluation corpus
        have the prefix `NAME/`. A model trained on SOP is also scored on NSP, and vice versa (§4.6).
        """
        metrics: dict[str, float] = {}
        corpora = self.corpora
        if corpora.heldout.n_tokens and corpora.unigram_entropy is not None:
            metrics = {**self._score_corpus(corpora.heldout, group), "unigram_entropy": corpora.unigram_entropy}
        for name, corpus in corpora.evaluation.items():
            for metric, value in self._score_corpus(corpus, group).items():
                metrics[f"{name}/{metric}"] = value
        self.last_metrics = metrics
        return metrics

    def _score_corpus(self, corpus: TokenCorpus, group: RankGroup) -> dict[str, float]:
        """Return the losses and accuracies on one corpus, and the accuracy of each pair task that is not trained."""
        pairs = self.settings.data
        means = self._compute_means(corpus, pairs, group)
        metrics = {name: value for name, value in means.items() if name in _MLM_METRICS}
        if pairs.sentence_loss == "none":
            return metrics
        metrics |= {name: value for name, value in means.items() if name.startswith("order_")}
        for pair_task in _PAIR_TASKS:
            if pair_task != pairs.sentence_loss:
                means = self._compute_means(corpus, replace(pairs, sentence_loss=pair_task), group)
                if "order_accuracy" in means:
                    metrics[f"{pair_task}_accuracy"] = means["order_accuracy"]
        return metrics

    def _compute_means(self, corpus: TokenCorpus, pairs: PairSettings, group: RankGroup) -> dict[str, float]:
        """Return the mean of each loss and accuracy over the evaluation's examples, sampled with the settings `pairs`.

        A metric without items is left out, such as that of NSP if the corpus has only one document, or that of SOP if
        every document has only one sentence.
        """
        names = (*self._evaluated_losses, *self.extra_metrics)
        sums = np.zeros((len(names), 2))  # a row for each metric: its sum, and the number of items
        micro_batch_size = self.settings.sequences_per_micro_batch
        for _, start, stop in split_micro_batches(self.settings.train.eval_sequences, micro_batch_size, group):
            part_sums = self.evaluate_examples(corpus, pairs, np.arange(start, stop))
            sums += [part_sums[name] for name in names]
        totals = np.sum(group.all_gather(sums.tolist()), axis=0).tolist()
        return {name: total / count for name, (total, count) in zip(names, totals, strict=True) if count}

    def evaluate_examples(
        self, corpus: TokenCorpus, pairs: PairSettings, index: Integers
    ) -> dict[str, tuple[float, int]]:
        """Return (sum, number of items) of each loss and accuracy over the evaluation examples `index`, int64 [B]."""
        micro_batch = self._sample_micro_batch(corpus, 0, EVALUATION_SEED, index, pairs)
        sums = self.loss_sums(micro_batch.data)
        # A loss counts its own items; an accuracy has the items of its loss.
        counted_by = {name: name for name in self._evaluated_losses} | dict(self.extra_metrics)
        return {name: (sums[name].item(), micro_batch.counts[loss]) for name, loss in counted_by.items()}

    def keep_best(self, metrics: Mapping[str, float], state: TrainState) -> None:
        """Do nothing: the result of pretraining is its last weights."""

    def write_model(self, directory: Path) -> None:
        config = self.model.config
        sentence_loss = self.settings.data.sentence_loss
        class_names = hub.ORDER_CLASSES[sentence_loss]
        if sentence_loss != "none" and config.order_labels == 3:  # a head of three classes, whatever loss trains it
            class_names = hub.ORDER_CLASSES["three-way"]
        elif len(class_names) != config.order_labels:  # an untrained head has no class names
            class_names = ()
        hub.write_checkpoint(self.model, directory, "ForPreTraining", order_classes=class_names)
        hub.write_vocabulary(self.corpora.vocabulary, directory, config.max_position_embeddings)
        parameters = costs.count_parameters(config).with_pooler
        text = card.pretraining_card(config, parameters, sentence_loss, self.last_metrics, self.recipe_toml)
        store.write_text(directory / "README.md", text)
        # Fine-tuning reads the counts, to warn if a task's texts differ much from this text. They come from the data
        # directory, which a corpus in memory lacks.
        if self.corpora.train.directory is not None:
            write_token_counts(directory, self.corpora.train.unigram_counts())


def _sum_losses(masked_MV: Tensor, order_NC: Tensor, labels_M: Tensor, labels_N: Tensor) -> dict[str, Tensor]:
    """Return the summed MLM and sentence-pair losses, with softmax in fp32, and the numbers of correct predictions."""
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
    """Return `_sum_losses` compiled, which makes fewer passes over the large logits [M, V]."""
    from torch._dynamo import maybe_mark_dynamic

    compiled = torch.compile(_sum_losses)

    def sum_losses(*tensors: Tensor) -> dict[str, Tensor]:
        for tensor in tensors:  # M and N differ from batch to batch, and a new size must not cause a compilation
            maybe_mark_dynamic(tensor, 0)
        return compiled(*tensors)

    return sum_losses


def count_correct(logits: Tensor, labels: Tensor) -> Tensor:
    """Count the labels [N] that are the argmax of their logits [N, C]; a label of -1 is never correct."""
    if logits.dtype != torch.float32:
        return (logits.max(-1).indices == labels).sum()  # in bf16 on a CPU four times faster than argmax
    # In fp32 on a CPU this is ten times faster than argmax. It differs from argmax only where several logits are equal
    # and largest, which is rare in fp32 and common in bf16.
    label_logits = logits.gather(1, labels.clamp(min=0)[:, None])[:, 0]
    return ((label_logits == logits.amax(-1)) & (labels >= 0)).sum()
