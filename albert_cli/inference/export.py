"""`albert export`: write a checkpoint as ONNX in fp32 and int8, and compare both with the model in torch.

The output directory has the layout that onnxruntime, Optimum and transformers.js read: `onnx/model.onnx`,
`onnx/model_quantized.onnx`, the tokenizer, and `config.json` with the labels and the task's settings.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from albert_cli import console, store
from albert_cli.errors import BusyError, CheckpointError
from albert_cli.inference.export_source import (
    ExportRequest,
    ExportSource,
    describe_head,
    open_source,
    output_labels,
)
from albert_cli.inference.onnx_files import FULL, QUANTIZED, require_onnx, write_onnx
from albert_cli.inference.runtimes import (
    CPU,
    Outputs,
    ReplayedModel,
    Runtime,
    equal_decisions,
    largest_value,
    max_difference,
    onnx_runtime,
    pad_batch,
    torch_runtime,
)
from albert_cli.model.config import CUSTOM_MODEL_TYPE
from albert_cli.model.heads import MultipleChoice
from albert_cli.model.padded import PaddedModel
from albert_cli.model.weight_files import find_weight_files
from albert_cli.tasks.base import EVALUATION_TOKENS, AnyTask, Example, iter_evaluation_batches

TORCH: Final = "torch, fp32"
# The maximum difference between the outputs of the fp32 file and torch's, relative to the largest output. Differences
# from rounding are far smaller.
_TOLERANCE: Final = 1e-3
# Tokens in a batch of a model that may have logits over the vocabulary: 1,024 * 30,000 logits take 123 MB.
_LANGUAGE_MODEL_TOKENS: Final = 1024


@dataclass(frozen=True)
class RuntimeReport:
    """A runtime's figures on the compared inputs; `bytes` is the size of its weights or its ONNX file.

    `max_difference` is the largest difference of any output from torch's. `equal_predictions` is the fraction of
    predictions that are equal to torch's; None for an encoder, and for predictions that are numbers. `scores` are the
    metrics on the dev split, empty for other inputs.
    """

    name: str
    bytes: int
    inputs_per_second: float
    max_difference: float
    equal_predictions: float | None
    scores: Mapping[str, float]


@dataclass(frozen=True)
class ExportResult:
    """The result of an export, as `--json` prints it.

    `compared_on` names the source of the compared inputs, and `inputs` is their number. `best_null_threshold` is the
    null threshold with the best score on the dev split, None without such a split.
    """

    out: str
    compared_on: str
    inputs: int
    labels: Sequence[str]
    null_threshold: float | None
    best_null_threshold: float | None
    metrics: Sequence[str]
    torch: RuntimeReport
    files: Sequence[RuntimeReport]


def export(request: ExportRequest, out: Path) -> ExportResult:
    """Export a checkpoint to the new directory `out`, and compare the runtimes on the inputs of `open_source`.

    Raises `ConfigError` without the extra `onnx`, and `BusyError` if `out` exists. Raises `CheckpointError` if other
    runtimes do not have the model's head or attention, or if the outputs of the fp32 file differ from torch's.
    """
    require_onnx()
    if out.exists():
        raise BusyError(f"{out}: exists already", "choose another --out")
    source = open_source(request)
    if source.checkpoint.model_type == CUSTOM_MODEL_TYPE:
        console.warn(
            f"{source.checkpoint.directory}: has a shape that Hugging Face lacks; onnxruntime runs the exported model, "
            "but Optimum and transformers.js do not load it"
        )
    padded = PaddedModel(source.model, source.vocabulary.sep_id).eval()
    with store.commit_directory(out, "export") as staging:
        _, first_batch = next(iter_evaluation_batches(source.features, CPU, _LANGUAGE_MODEL_TOKENS))
        write_onnx(padded, staging, pad_batch(first_batch, _choices(source)))
        store.write_json(staging / "config.json", describe_head(source))
        source.vocabulary.copy_to(staging, source.checkpoint.max_length)
        runtimes = {TORCH: torch_runtime(padded)}
        runtimes |= {name: onnx_runtime(staging / name) for name in (FULL, QUANTIZED)}
        comparison = _compare(source, padded, runtimes)
        sizes = {name: (staging / name).stat().st_size for name in (FULL, QUANTIZED)}
        sizes[TORCH] = sum(path.stat().st_size for path in find_weight_files(source.checkpoint.directory))
        # An error within the block leaves no output directory.
        _check_differences(comparison, source.checkpoint.directory)
    return _summarize(source, out, padded, runtimes, comparison, sizes)


def _choices(source: ExportSource) -> int:
    """Return the number of choices of a question, or 0 for a model without multiple choice."""
    return source.features.sequences_per_item if isinstance(source.model, MultipleChoice) else 0


# ---------------------------------------------------------------- comparing


@dataclass
class _Comparison:
    """The outputs of all runtimes on all batches, compared with torch's. The keys of each dictionary are the runtimes.

    `differences` are the largest absolute differences from torch's outputs, and `largest_value` is the largest absolute
    value of torch's outputs. For a model with a task's head, `outputs` has those of each batch, and `_summarize` turns
    them into predictions. For another model, `decisions` has True for each decision that is equal to torch's
    (`equal_decisions`).
    """

    differences: dict[str, float]
    decisions: dict[str, list[bool]]
    outputs: dict[str, list[Outputs]]
    largest_value: float = 0.0


def _compare(source: ExportSource, padded: PaddedModel, runtimes: Mapping[str, Runtime]) -> _Comparison:
    """Run every runtime on every batch, alternating, so that all are measured under the same conditions."""
    comparison = _Comparison(
        differences=dict.fromkeys(runtimes, 0.0),
        decisions={name: [] for name in runtimes},
        outputs={name: [] for name in runtimes},
    )
    # `Task.predict`, which later takes a task head's outputs batch by batch, has batches of `EVALUATION_TOKENS`.
    tokens_per_batch = _LANGUAGE_MODEL_TOKENS if source.task is None else EVALUATION_TOKENS
    batches = iter_evaluation_batches(source.features, CPU, tokens_per_batch)
    for number, (_, tokens) in enumerate(batches):
        inputs = pad_batch(tokens, _choices(source))
        mask = inputs["attention_mask"]
        if number == 0:
            for runtime in runtimes.values():
                runtime.compute(inputs)  # not measured, because the first call allocates memory
        batch_outputs = {name: runtime(inputs) for name, runtime in runtimes.items()}
        expected = batch_outputs[TORCH]
        for name, outputs in batch_outputs.items():
            difference = max_difference(outputs, expected, padded.outputs, mask)
            # Unlike Python's `max`, NumPy's maximum is NaN if one value is NaN.
            comparison.differences[name] = float(np.maximum(comparison.differences[name], difference))
            if source.task is None:
                comparison.decisions[name] += equal_decisions(outputs, expected, padded.outputs, mask).tolist()
            else:
                comparison.outputs[name].append(outputs)
        comparison.largest_value = max(comparison.largest_value, largest_value(expected))
    return comparison


def _check_differences(comparison: _Comparison, checkpoint: Path) -> None:
    """Raise `CheckpointError` if an output is not finite, or if the fp32 file's outputs differ from torch's."""
    for name in (FULL, QUANTIZED):
        if not math.isfinite(comparison.differences[name]):
            message = f"{checkpoint}: an output of torch or of {name} is not finite"
            raise CheckpointError(message, "check the weights: `albert predict` reports them, too")
    difference = comparison.differences[FULL]
    # The tolerance is relative to the largest output, and absolute for outputs below 1.
    if difference > _TOLERANCE * max(1.0, comparison.largest_value):
        raise CheckpointError(f"{checkpoint}: ONNX outputs differ from torch by {difference:.3g}")


def _summarize(
    source: ExportSource,
    out: Path,
    padded: PaddedModel,
    runtimes: Mapping[str, Runtime],
    comparison: _Comparison,
    sizes: Mapping[str, int],
) -> ExportResult:
    """Compute scores and the fractions of equal predictions from the outputs, and collect every runtime's figures."""
    scores: dict[str, dict[str, float]] = {name: {} for name in runtimes}
    best_threshold = None
    shown_metrics: list[str] = []
    equal: dict[str, float | None] = {}
    task = source.task
    if task is None:
        equal = {name: _fraction(decisions) for name, decisions in comparison.decisions.items()}
    else:
        outputs = {
            name: task.predict(ReplayedModel(batches, padded), source.features, CPU)
            for name, batches in comparison.outputs.items()
        }
        predictions = {name: _predictions(task, source.examples, values) for name, values in outputs.items()}
        for name, values in predictions.items():
            pairs = zip(values, predictions[TORCH], strict=True)
            equal[name] = _fraction([prediction == expected for prediction, expected in pairs])
        if source.has_scores:
            # The main metric, and those in the paper's tables, each once.
            shown_metrics = list(dict.fromkeys((*task.metrics[:1], *task.published)))
            for name, task_outputs in outputs.items():
                metrics = task.compute_metrics(task_outputs, source.features, source.examples)
                scores[name] = {metric: metrics[metric] for metric in task.metrics if metric in metrics}
                if name == TORCH:
                    best_threshold = metrics.get("best_threshold")
    reports = {
        name: RuntimeReport(
            name=name,
            bytes=sizes[name],
            inputs_per_second=round(len(source.examples) / runtime.seconds, 1),
            max_difference=comparison.differences[name],
            equal_predictions=equal[name],
            scores=scores[name],
        )
        for name, runtime in runtimes.items()
    }
    return ExportResult(
        out=str(out),
        compared_on=source.origin,
        inputs=len(source.examples),
        labels=output_labels(source),
        null_threshold=None if task is None else task.null_threshold,
        best_null_threshold=best_threshold,
        metrics=shown_metrics,
        torch=reports[TORCH],
        files=[reports[FULL], reports[QUANTIZED]],
    )


def _fraction(values: Sequence[bool]) -> float | None:
    """Return the fraction of the values that are True; None without values."""
    return round(float(np.mean(values)), 6) if values else None


def _predictions(task: AnyTask, examples: Sequence[Example], outputs: object) -> list[object]:
    """Return a prediction for each example, to compare runtimes; empty if the predictions are numbers.

    Entities have no scores here, because scores differ by rounding.
    """
    lines = task.format_predictions(examples, outputs, with_details=False)
    predictions = [json.loads(line)["prediction"] for line in lines]
    if any(isinstance(prediction, float) for prediction in predictions):
        return []
    for prediction in predictions:
        if isinstance(prediction, list):  # labels of a multi-label classifier, or entities
            for part in prediction:
                if isinstance(part, dict):
                    part.pop("score", None)
    return predictions


# ---------------------------------------------------------------- printing


def format_export(result: ExportResult) -> str:
    """Format the comparison as a table, followed by the labels and the null threshold if there are any."""
    rows = []
    for report in (result.torch, *result.files):
        scores = [f"{100 * report.scores[name]:.1f}" for name in result.metrics]
        difference = ""
        equal = ""
        if report is not result.torch:
            difference = f"{report.max_difference:.2g}"
            if report.equal_predictions is not None:
                equal = f"{report.equal_predictions:.2%}"
        size = f"{report.bytes / 1e6:.1f} MB"
        rows.append((report.name, size, f"{report.inputs_per_second:,.0f}", *scores, difference, equal))
    title = f"{result.out}, {result.inputs:,} of {result.compared_on}"
    headers = (title, "size", "inputs/s", *result.metrics, "largest difference", "equal predictions")
    lines = [console.format_table(headers, rows)]
    if result.labels:
        lines.append(f"labels: {', '.join(result.labels)}")
    if result.null_threshold is not None:
        best = ""
        if result.best_null_threshold is not None:
            best = f"; the best on {result.compared_on} is {result.best_null_threshold:g}"
        lines.append(f"null threshold: {result.null_threshold:g}{best}")
    return "\n".join(lines)
