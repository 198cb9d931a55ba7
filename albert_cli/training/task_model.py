"""The model of a fine-tuning run: its "auto" settings and schedule, building it from a checkpoint, and scoring it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from albert_cli.errors import MissingDataError
from albert_cli.model import loading
from albert_cli.model.encoder import Encoder
from albert_cli.model.overlap_heads import SAMPLED_POSITIONS, check_overlap_heads, init_overlap_heads
from albert_cli.training.device import autocast, prepare_model, resolve_auto
from albert_cli.training.settings import ScheduleSettings, TrainSettings
from albert_cli.training.task_inputs import Inputs
from albert_cli.training.task_setup import PreparedTask


def resolve_train_settings(prepared: PreparedTask, inputs: Inputs) -> TrainSettings:
    """Return the recipe's `[train]` with every "auto" resolved.

    `resolve_auto` measures the speed of some values at the size of the first micro-batch of the inputs.
    """
    features = inputs.train_features if prepared.needs_training else inputs.dev_features
    train = prepared.recipe.train
    packed, _ = features.batch(np.arange(min(len(features), train.micro_batch_size)))
    lengths = np.diff(packed.offsets)
    mean_length = max(1, round(float(lengths.mean())))
    shape = prepared.checkpoint.config
    return resolve_auto(train, shape, prepared.device, sequences=len(lengths), length=mean_length)


def resolve_schedule(prepared: PreparedTask, inputs: Inputs) -> ScheduleSettings:
    """Convert the recipe's `[schedule]` to steps; an epoch is one pass over the training features.

    With few epochs the result can have fewer steps than the warmup; the caller checks it (`ScheduleSettings.check`).
    """
    # `finetune` has already filled in "auto" epochs, but other callers have not.
    recipe = prepared.recipe.with_auto_values(inputs.num_training_examples)
    # A schedule with steps instead of epochs ignores the number of items, and the inputs of a run that only scores may
    # have no training features.
    num_items = 1 if recipe.schedule.epochs is None else len(inputs.train_features)
    return recipe.schedule.to_steps(num_items, recipe.train.batch_size)


def build_model(prepared: PreparedTask, inputs: Inputs, seed: int, train: TrainSettings) -> Any:
    """Build the model that a run starts from, and move it to the device.

    The encoder is the intermediate task's, or the one that `model.weights` selects. The head is new or the checkpoint's
    (`model.head`). New weights are sampled from `seed`. `train` configures the encoder and must not contain "auto".
    """
    settings = prepared.recipe.model
    config = dataclasses.replace(
        prepared.checkpoint.config,
        hidden_dropout_prob=settings.encoder_dropout,
        attention_probs_dropout_prob=settings.encoder_dropout,
        classifier_dropout_prob=settings.classifier_dropout,
    )
    torch.manual_seed(seed)
    model = prepared.task.new_model(config)
    assert isinstance(model.encoder, Encoder)
    prepared.task.scale_to_labels(model, inputs.train_examples)  # before a trained head is loaded, which keeps its bias
    _load_checkpoint(model, prepared)
    check_overlap_heads(settings.overlap_heads, settings.overlap_context_heads, config)
    # The overlap heads replace the first heads of each block, and the context heads the last ones, also in a pretrained
    # encoder. With 0 overlap heads nothing is replaced.
    if not prepared.has_trained_overlap_heads:
        vocabulary = prepared.vocabulary
        # The heads are computed for words at the first `positions` positions. Most pairs of texts end within the
        # default, but answers, for which context heads are, may be anywhere in a long passage.
        positions = SAMPLED_POSITIONS
        if settings.overlap_context_heads:
            positions = prepared.recipe.data.max_seq_length
        init_overlap_heads(
            model.encoder,
            settings.overlap_heads,
            seed=seed,
            cls_id=vocabulary.cls_id,
            word_ids=torch.from_numpy(vocabulary.ordinary_ids).long(),
            positions=positions,
            context_heads=settings.overlap_context_heads,
        )
    if settings.classifier_bias == "labels" and settings.head != "checkpoint":  # a trained head keeps its bias
        prepared.task.init_bias_from_labels(model, inputs.train_examples)
    prepare_model(model, train, prepared.device)
    return model


def _load_checkpoint(model: nn.Module, prepared: PreparedTask) -> None:
    """Copy an encoder into a new model: the intermediate run's if there is one, else the checkpoint's.

    With `model.head = "checkpoint"`, copy the head too. With random weights and no intermediate run, copy nothing.
    """
    settings = prepared.recipe.model
    if settings.weights == "random" and prepared.intermediate is None:
        return
    source = prepared.intermediate or prepared.checkpoint
    if settings.head == "checkpoint":
        loading.load_weights(model, prepared.task.reorder_labels(source), loading.LoadPolicy.HEADS)
        return
    # A head in the file belongs to another task, even if its shape is the same.
    encoder = {name: tensor for name, tensor in source.tensors.items() if name.startswith("encoder.")}
    loading.load_weights(model, dataclasses.replace(source, tensors=encoder), loading.LoadPolicy.ENCODER)


@dataclass(frozen=True)
class ModelScores:
    """A model's metrics on every dev split, and its outputs on the first dev split.

    The names of metrics on other dev splits have a prefix, such as `mismatched_` for MNLI's second split.
    `best_threshold` is the best threshold on the null score; only SQuAD 2.0 has one.
    """

    scores: dict[str, float]
    best_threshold: float | None
    outputs: object


def score_model(prepared: PreparedTask, inputs: Inputs, model: nn.Module, precision: str) -> ModelScores:
    """Compute every metric of the task on every dev split.

    precision: of matmuls, "fp32" or "bf16". After training use the run's precision, so that the score equals the one by
    which the run selected the model.
    """
    task = prepared.task
    model.eval()
    scores: dict[str, float] = {}
    outputs: dict[str, object] = {}
    best_threshold = None
    for split in task.dev_splits:
        with autocast(precision, prepared.device):
            outputs[split] = task.predict(model, inputs.features[split], prepared.device)
        metrics = task.compute_metrics(outputs[split], inputs.features[split], inputs.examples[split])
        prefix = ""
        if split != task.dev_splits[0]:
            prefix = split.removeprefix("dev_") + "_"  # MNLI's "dev_mismatched" becomes "mismatched_"
        scores |= {prefix + name: metrics[name] for name in task.metrics if name in metrics}
        best_threshold = metrics.get("best_threshold", best_threshold)
    return ModelScores(scores, best_threshold, outputs[task.dev_splits[0]])


def score_majority(prepared: PreparedTask, inputs: Inputs) -> float | None:
    """Return the first metric of a predictor that knows only the training labels; None without training data.

    If a finished checkpoint is scored on the task's only file, this file would be the training data too. The result is
    then None as well, because a predictor must not know the labels that it predicts.
    """
    task = prepared.task
    if task.train_split is None:
        return None
    try:
        train = inputs.examples.get(task.train_split) or task.read(task.train_split, prepared.request.data)
    except MissingDataError:
        return None
    if not prepared.needs_training and train == inputs.dev_examples:
        return None
    return task.score_majority(train, inputs.dev_examples)
