"""Open what `albert export` exports: a checkpoint's model with its head, and the examples to compare outputs on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from torch import nn

from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.evaluation.scoring import prepare_evaluation
from albert_cli.inference.convert import infer_architecture
from albert_cli.inference.encode import TEXTS
from albert_cli.inference.predict import read_rows
from albert_cli.model import hub
from albert_cli.model.heads import BareEncoder, MaskedLanguageModel, PretrainingModel
from albert_cli.tasks.base import AnyTask, as_any_tasks
from albert_cli.tasks.features import Features
from albert_cli.tasks.input_lines import InputLine
from albert_cli.tasks.registry import task_from_checkpoint
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.task_setup import OpenCheckpoint, TaskRequest

_SAMPLE: Final = (
    "A short text.",
    "The second sentence is somewhat longer than the first, so that a batch needs padding.",
    "One more.",
    "Numbers such as 2,011 and punctuation - of several kinds! - are compared too.",
)
_HEADLESS: Final = ("ForPreTraining", "ForMaskedLM", "Model")  # no head of a task


@dataclass(frozen=True)
class ExportRequest:
    """The options of `albert export`.

    data: the files of the task, whose dev split is scored; task: the name of the task or its recipe if the checkpoint
    does not record it; input_file: inputs to compare outputs on without scores; null_threshold: null odds above which
    a question has no answer.
    """

    checkpoint: str
    data: str | None = None
    task: str | None = None
    input_file: str | None = None
    null_threshold: float | None = None
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExportSource:
    """A checkpoint with its model, and the examples to compare outputs on.

    `task` is None for a model without a task's head. `origin` names the source of the examples; `has_scores` is True if
    they are a dev split.
    """

    checkpoint: hub.Checkpoint
    vocabulary: Vocabulary
    model: nn.Module
    task: AnyTask | None
    examples: Sequence[Any]
    features: Features
    origin: str
    has_scores: bool = False


def open_source(request: ExportRequest) -> ExportSource:
    """Open the checkpoint and read the examples.

    Raises `CheckpointError` for a head or an attention that other runtimes do not have, and `ConfigError` for options
    that do not fit the checkpoint.
    """
    checkpoint = hub.read_checkpoint(hub.find_checkpoint(request.checkpoint))
    _require_exportable(checkpoint)
    opened = OpenCheckpoint(checkpoint, hub.load_vocabulary(checkpoint))
    if request.data is not None:
        return _open_with_dev(request, request.data, opened)
    task = _task_of_head(checkpoint)
    if request.null_threshold is not None:
        task = _require_task(task, checkpoint).with_null_threshold(request.null_threshold)
    reader = as_any_tasks({"": TEXTS})[""] if task is None else task
    examples, origin = _read_examples(request.input_file, reader, checkpoint)
    features = reader.encode(examples, opened.vocabulary, checkpoint.max_length)
    model = _headless_model(checkpoint) if task is None else task.load(checkpoint)
    return ExportSource(checkpoint, opened.vocabulary, model.eval(), task, examples, features, origin)


def _require_exportable(checkpoint: hub.Checkpoint) -> None:
    if checkpoint.config.is_sparse:
        raise CheckpointError(
            f"{checkpoint.directory}: has sparse attention, which other runtimes do not have",
            "export a model with full attention",
        )
    if checkpoint.architecture == "ForBeamQuestionAnswering":
        raise CheckpointError(
            f"{checkpoint.directory}: has the beam head of SQuAD, which other runtimes do not have",
            "fine-tune with -s span.head=linear, and export that model",
        )


def _architecture(checkpoint: hub.Checkpoint) -> str:
    return checkpoint.architecture or infer_architecture(checkpoint.tensors)


def _task_of_head(checkpoint: hub.Checkpoint) -> AnyTask | None:
    """Return the task that the checkpoint's head answers; None for an encoder or a pretrained model."""
    return None if _architecture(checkpoint) in _HEADLESS else task_from_checkpoint(checkpoint)


def _require_task(task: AnyTask | None, checkpoint: hub.Checkpoint) -> AnyTask:
    if task is None:
        raise ConfigError(
            f"{checkpoint.directory}: has no head of a task, so it answers no questions", "leave out --null-threshold"
        )
    return task


def _headless_model(checkpoint: hub.Checkpoint) -> nn.Module:
    """Load an encoder or a pretrained model."""
    architecture = _architecture(checkpoint)
    model: nn.Module
    if architecture == "ForPreTraining":
        model = PretrainingModel(checkpoint.config)
    elif architecture == "ForMaskedLM":
        model = MaskedLanguageModel(checkpoint.config)
    else:
        model = BareEncoder(checkpoint.config, pooler="encoder.pooler.weight" in checkpoint.tensors)
    hub.load_weights(model, checkpoint, hub.LoadPolicy.HEADS)
    return model


# ---------------------------------------------------------------- examples


def _open_with_dev(request: ExportRequest, data: str, opened: OpenCheckpoint) -> ExportSource:
    """Open the checkpoint as a model of its task, with the task's dev split."""
    checkpoint = opened.checkpoint
    name = request.task
    if name is None and checkpoint.finetuned_task is not None:
        name = checkpoint.finetuned_task.task
    if name is None:
        raise ConfigError(
            f"{checkpoint.directory}: does not record a task, so --data cannot be read",
            "use --task NAME for a classifier of another program, or --input FILE to compare without scores",
        )
    task_request = TaskRequest(request.checkpoint, data, overrides=request.overrides, device="cpu")
    prepared = prepare_evaluation(name, task_request, {checkpoint.directory: opened})
    if not prepared.for_scoring:
        raise ConfigError(
            f"{checkpoint.directory}: has no head for {prepared.task.title}",
            f"fine-tune it first: albert finetune {name}",
        )
    task = prepared.task
    if request.null_threshold is not None:
        task = task.with_null_threshold(request.null_threshold)
    inputs = prepared.load_inputs()
    return ExportSource(
        checkpoint=prepared.checkpoint,
        vocabulary=opened.vocabulary,
        model=task.load(prepared.checkpoint).eval(),
        task=task,
        examples=inputs.dev_examples,
        features=inputs.dev,
        origin=f"{task.title} {task.dev_splits[0]}",
        has_scores=True,
    )


def _read_examples(input_file: str | None, task: AnyTask, checkpoint: hub.Checkpoint) -> tuple[Sequence[Any], str]:
    """Return the examples of the input file or of a sample, and the name of their source."""
    if input_file is None:
        return [task.example(line) for line in _sample_lines(task.inputs == 2)], "sample"
    chunks = read_rows(task, checkpoint.finetuned_task, input_file)
    examples = [row.example for row in itertools.chain.from_iterable(chunks)]
    if not examples:
        raise ConfigError(f"{input_file}: has no lines", "name a file with an input a line")
    return examples, input_file


def _sample_lines(has_pairs: bool) -> list[InputLine]:
    """Return inputs that every kind of task reads."""
    lines = []
    for number, text in enumerate(_SAMPLE, 1):
        record: dict[str, object] = {"text": text, "question": _SAMPLE[0], "choices": list(_SAMPLE)}
        if has_pairs:
            record["text_pair"] = _SAMPLE[-number]
        lines.append(InputLine("", "sample", number, record))
    return lines


def output_labels(source: ExportSource) -> list[str]:
    """Return the names of the head's outputs in their order; empty for a head whose outputs have no names."""
    names = [] if source.task is None else list(source.task.output_names)
    return names if len(names) == len(source.checkpoint.output_names) > 1 else []


def describe_head(source: ExportSource) -> dict[str, object]:
    """Return the content of `config.json`: labels in the order of the outputs, and the null threshold.

    A question has no answer if the start and end logits of [CLS] minus those of the best span exceed `null_threshold`.
    """
    values = dict(source.checkpoint.values)
    if source.task is None:
        return values
    names = output_labels(source)
    if names:
        values["id2label"] = {str(number): name for number, name in enumerate(names)}
        values["label2id"] = {name: number for number, name in enumerate(names)}
    threshold = source.task.null_threshold
    if threshold is not None:
        values["null_threshold"] = threshold
        recorded = source.checkpoint.finetuned_task
        if recorded is not None:
            values |= replace(recorded, settings={**recorded.settings, "threshold": threshold}).to_json()
    return values
