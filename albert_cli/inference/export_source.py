"""Prepare an export: load the checkpoint's model with its head, and read the examples to compare outputs on.

`open_source` returns both. The examples are the task's dev split, the rows of a file, or a few built-in sentences.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from torch import nn

from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.evaluation.scoring import load_scoring_inputs, prepare_evaluation
from albert_cli.inference.convert import infer_architecture
from albert_cli.inference.encode import TEXT_READER
from albert_cli.inference.predict import read_rows
from albert_cli.model import hub, loading
from albert_cli.model.heads import BareEncoder, MaskedLanguageModel, PretrainingModel
from albert_cli.tasks.base import AnyTask, Example
from albert_cli.tasks.features import Features
from albert_cli.tasks.input_lines import InputLine
from albert_cli.tasks.registry import sentence_order_classifier, task_from_checkpoint
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.task_setup import OpenCheckpoint, TaskRequest, open_checkpoint

_SAMPLE: Final = (
    "A short text.",
    "The second sentence is somewhat longer than the first, so that a batch needs padding.",
    "One more.",
    "Numbers such as 2,011 and punctuation - of several kinds! - are compared too.",
)
_WITHOUT_TASK_HEAD: Final = ("ForPreTraining", "ForMaskedLM", "Model")  # values of `hub.Checkpoint.architecture`


@dataclass(frozen=True)
class ExportRequest:
    """The options of `albert export`.

    data: the folder of the task's files, whose dev split is scored; task: the name of the task or its recipe, which a
    checkpoint of another program does not record; input_file: inputs to compare outputs on without scores;
    null_threshold: null score above which a question has no answer; overrides: the values of `-s KEY=VALUE`.
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

    task: None for a model without a task's head; origin: the name of the examples' source, for the printed table;
    has_scores: True if the examples are a dev split.
    """

    checkpoint: hub.Checkpoint
    vocabulary: Vocabulary
    model: nn.Module
    task: AnyTask | None
    examples: Sequence[Example]
    features: Features
    origin: str
    has_scores: bool = False


def open_source(request: ExportRequest) -> ExportSource:
    """Open the checkpoint and read the examples.

    Raises `CheckpointError` if other runtimes do not have the model's head or attention, and `ConfigError` for options
    that do not fit the checkpoint.
    """
    opened = open_checkpoint(hub.find_checkpoint(request.checkpoint))
    checkpoint = opened.checkpoint
    _require_exportable(checkpoint)
    if request.data is not None:
        return _open_with_dev(request, opened)
    architecture = checkpoint.architecture or infer_architecture(checkpoint.tensors)
    task: AnyTask | None = None
    if architecture in _WITHOUT_TASK_HEAD:
        if request.null_threshold is not None:
            raise ConfigError(f"{checkpoint.directory}: has no question-answering head", "leave out --null-threshold")
        model = _load_without_task_head(checkpoint, architecture)
        reader = TEXT_READER
    else:
        # A model with only a sentence head, such as BertForNextSentencePrediction, is exported as a classifier.
        checkpoint = sentence_order_classifier(checkpoint) or checkpoint
        task = task_from_checkpoint(checkpoint)
        if request.null_threshold is not None:
            task = task.with_null_threshold(request.null_threshold)
        model = task.load(checkpoint)
        reader = task
    examples, origin = _read_examples(request.input_file, reader, checkpoint)
    features = reader.encode(examples, opened.vocabulary, checkpoint.max_length)
    return ExportSource(checkpoint, opened.vocabulary, model.eval(), task, examples, features, origin)


def _require_exportable(checkpoint: hub.Checkpoint) -> None:
    """Raise `CheckpointError` if other runtimes do not have the model's attention or head."""
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


def _load_without_task_head(checkpoint: hub.Checkpoint, architecture: str) -> nn.Module:
    """Load a bare encoder, or a pretrained model with its heads; architecture: one of `_WITHOUT_TASK_HEAD`."""
    model: nn.Module
    if architecture == "ForPreTraining":
        model = PretrainingModel(checkpoint.config)
    elif architecture == "ForMaskedLM":
        model = MaskedLanguageModel(checkpoint.config)
    else:
        model = BareEncoder(checkpoint.config, pooler="encoder.pooler.weight" in checkpoint.tensors)
    loading.load_weights(model, checkpoint, loading.LoadPolicy.HEADS)
    return model


# ---------------------------------------------------------------- examples


def _open_with_dev(request: ExportRequest, opened: OpenCheckpoint) -> ExportSource:
    """Open the checkpoint as a model of its task, with the task's dev split from the request's `data`.

    Raises `ConfigError` if neither the request nor the checkpoint names a task, if the head is not for the task, or if
    an override sets sparse attention.
    """
    checkpoint = opened.checkpoint
    name = request.task
    if name is None and checkpoint.finetuned_task is not None:
        name = checkpoint.finetuned_task.task
    if name is None:
        raise ConfigError(
            f"{checkpoint.directory}: does not record a task, so --data cannot be read",
            "use --task NAME for a classifier of another program, or --input FILE to compare without scores",
        )
    task_request = TaskRequest(str(checkpoint.directory), request.data, overrides=request.overrides, device="cpu")
    checkpoints = {checkpoint.directory: opened}
    prepared = prepare_evaluation(name, task_request, checkpoints, can_train=False)
    if prepared.checkpoint.config.is_sparse:  # the checkpoint itself was checked by `open_source`
        raise ConfigError(
            "model.attention: other runtimes do not have sparse attention", "leave out the override that sets it"
        )
    if prepared.needs_training:
        raise ConfigError(
            f"{checkpoint.directory}: has no head for {prepared.task.title}",
            f"fine-tune it first: albert finetune {name}",
        )
    task = prepared.task
    if request.null_threshold is not None:
        task = task.with_null_threshold(request.null_threshold)
    inputs = load_scoring_inputs(name, task_request, prepared, list(checkpoints), checkpoints)
    return ExportSource(
        checkpoint=prepared.checkpoint,
        vocabulary=opened.vocabulary,
        model=task.load(prepared.checkpoint).eval(),
        task=task,
        examples=inputs.dev_examples,
        features=inputs.dev_features,
        origin=f"{task.title} {task.dev_splits[0]}",
        has_scores=True,
    )


def _read_examples(input_file: str | None, task: AnyTask, checkpoint: hub.Checkpoint) -> tuple[Sequence[Example], str]:
    """Return the examples of the input file, or a few built-in ones if it is None, and the name of their source.

    task: parses the examples. Raises `ConfigError` for a file without inputs.
    """
    if input_file is None:
        return [task.parse_example(line) for line in _sample_lines(task.inputs == 2)], "sample"
    chunks = read_rows(task, checkpoint.finetuned_task, input_file)
    examples = [row.example for row in itertools.chain.from_iterable(chunks)]
    if not examples:
        raise ConfigError(f"{input_file}: has no lines", "use a file with one input per line")
    return examples, input_file


def _sample_lines(has_pairs: bool) -> list[InputLine]:
    """Return built-in inputs with the keys of every kind of task; a task reads only the keys that it needs.

    has_pairs: True if the task requires pairs of texts.
    """
    lines = []
    for number, (text, text_pair) in enumerate(zip(_SAMPLE, reversed(_SAMPLE), strict=True), start=1):
        record: dict[str, object] = {"text": text, "question": _SAMPLE[0], "choices": list(_SAMPLE)}
        if has_pairs:
            record["text_pair"] = text_pair
        lines.append(InputLine("", "sample", number, record))
    return lines


def output_labels(source: ExportSource) -> list[str]:
    """Return the names of the head's outputs in the order of the outputs; empty for a head whose outputs have no names.

    A regression has one output, without a name.
    """
    if source.task is None:
        return []
    names = list(source.task.output_names)
    n_outputs = len(source.checkpoint.output_names)
    # A span head has no layer `classifier`, so the checkpoint names no outputs. A head for multiple choice has one
    # output, the score of an option, while its task names all options.
    has_names = n_outputs > 1 and len(names) == n_outputs
    return names if has_names else []


def describe_head(source: ExportSource) -> dict[str, object]:
    """Return the content of the exported `config.json`: the checkpoint's content with output labels and null threshold.

    A question has no answer if the sum of the start and end logits of [CLS], minus the sum of those of the best span,
    exceeds `null_threshold`.
    """
    values = dict(source.checkpoint.values)
    if source.task is None:
        return values
    values["max_position_embeddings"] = source.checkpoint.config.max_position_embeddings  # an override may resize them
    names = output_labels(source)
    if names:
        values["id2label"] = {str(number): name for number, name in enumerate(names)}
        values["label2id"] = {name: number for number, name in enumerate(names)}
    threshold = source.task.null_threshold
    if threshold is not None:
        values["null_threshold"] = threshold
        finetuned = source.checkpoint.finetuned_task
        if finetuned is not None:
            values |= replace(finetuned, settings={**finetuned.settings, "threshold": threshold}).to_json()
    return values
