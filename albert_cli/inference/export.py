"""`albert export`: write a checkpoint as ONNX in fp32 and int8, and compare both with the model.

The layout is the one that onnxruntime, Optimum and transformers.js read: `onnx/model.onnx`,
`onnx/model_quantized.onnx`, the tokenizer and `config.json`, which holds the labels and the task's settings.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from albert_cli import console, store
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.model import hub
from albert_cli.model.heads import BareEncoder, MaskedLanguageModel, MultipleChoice, PretrainingModel
from albert_cli.model.hf_config import CUSTOM_HEADS
from albert_cli.model.padded import INPUT_NAMES, PaddedModel
from albert_cli.tasks.registry import task_from_checkpoint
from albert_cli.text.vocabulary import Vocabulary

_OPSET: Final = 17
_TOLERANCE: Final = 1e-3  # of logits in fp32; a larger difference means that the export is wrong
_BATCH: Final = 16  # texts
_SAMPLE_CHOICES: Final = 4  # options of a multiple-choice question
_MAX_LENGTH: Final = 128  # tokens of a compared text
_SAMPLE: Final = (
    "A short text.",
    "The second sentence is somewhat longer than the first, so that a batch needs padding.",
    "One more.",
    "Numbers such as 2,011 and punctuation - of several kinds! - are compared too.",
)
Arrays = dict[str, NDArray[np.int64]]


@dataclass(frozen=True)
class ExportedFile:
    """One ONNX file compared with the model: the largest difference of outputs, and the fraction of equal decisions."""

    path: str
    bytes: int
    max_difference: float
    equal_decisions: float
    texts_per_second: float


@dataclass(frozen=True)
class ExportResult:
    """The result of an export, as `--json` prints it."""

    out: str
    texts: int
    torch_texts_per_second: float
    files: list[ExportedFile]

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain JSON values."""
        return asdict(self)


def export(checkpoint: str, out: Path, input_file: Path | None = None) -> ExportResult:
    """Export a checkpoint to the new directory `out`, and compare it on the lines of `input_file` or on a sample.

    Raises `ConfigError` without the extra `onnx` or if `out` exists, `CheckpointError` for a head or an attention that
    ONNX runtimes do not have, or if the outputs differ.
    """
    _require_onnx()
    if out.exists():
        raise ConfigError(f"{out}: exists already", "choose another --out")
    source = hub.read_checkpoint(hub.find_checkpoint(checkpoint))
    if source.config.is_sparse:
        raise CheckpointError(f"{source.directory}: has sparse attention, which is not exported")
    vocabulary = hub.load_vocabulary(source)
    padded = PaddedModel(_load_model(source)).eval()
    texts = list(_SAMPLE) if input_file is None else _read_lines(input_file)
    choices = _SAMPLE_CHOICES if isinstance(padded.model, MultipleChoice) else 0
    batches = [_encode(texts[i : i + _BATCH], vocabulary, source, choices) for i in range(0, len(texts), _BATCH)]
    with store.commit_directory(out, "export") as staging:
        (staging / "onnx").mkdir()
        _write_onnx(padded, staging / "onnx" / "model.onnx", batches[0])
        _quantize(staging / "onnx" / "model.onnx", staging / "onnx" / "model_quantized.onnx")
        store.write_bytes(staging / "config.json", store.read_bytes(source.directory / "config.json"))
        vocabulary.copy_to(staging, source.config.max_position_embeddings)
        expected, torch_speed = _run_torch(padded, batches, len(texts))
        files = [
            _compare(staging, f"onnx/{name}", expected, batches, len(texts))
            for name in ("model.onnx", "model_quantized.onnx")
        ]
        if files[0].max_difference > _TOLERANCE:
            raise CheckpointError(f"{source.directory}: ONNX outputs differ by {files[0].max_difference:.3g}")
    return ExportResult(str(out), len(texts), torch_speed, files)


def _require_onnx() -> None:
    """Raise `ConfigError` unless the extra `onnx` is installed."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError:
        raise ConfigError("exporting needs onnx and onnxruntime", "pip install 'albert-cli[onnx]'") from None


def _load_model(source: hub.Checkpoint) -> nn.Module:
    """Load a checkpoint with its head."""
    if source.architecture in CUSTOM_HEADS:
        raise CheckpointError(f"{source.directory}: has a head for answer beams, which is not exported")
    model: nn.Module
    if source.architecture == "ForPreTraining":
        model = PretrainingModel(source.config)
    elif source.architecture == "ForMaskedLM":
        model = MaskedLanguageModel(source.config)
    elif source.architecture in (None, "Model"):
        model = BareEncoder(source.config, pooler="encoder.pooler.weight" in source.tensors)
    else:
        return task_from_checkpoint(source).load(source)
    hub.load_weights(model, source, hub.LoadPolicy.HEADS)
    return model


def _read_lines(path: Path) -> list[str]:
    lines = [line for line in store.read_bytes(path).decode("utf-8", "replace").splitlines() if line]
    if not lines:
        raise ConfigError(f"{path}: has no lines", "name a file with one text per line")
    return lines


def _encode(texts: Sequence[str], vocabulary: Vocabulary, source: hub.Checkpoint, choices: int) -> Arrays:
    """Return padded inputs; a tab separates the two texts of a pair, and each text is repeated for every choice."""
    limit = min(_MAX_LENGTH, source.config.max_position_embeddings)
    rows = []
    for text in texts:
        first, tab, second = text.partition("\t")
        ids = [vocabulary.cls_id, *vocabulary.encode(first)[: limit // 2 - 2], vocabulary.sep_id]
        segments = [0] * len(ids)
        if tab:
            ids += [*vocabulary.encode(second)[: limit // 2 - 1], vocabulary.sep_id]
            segments += [1] * (len(ids) - len(segments))
        rows.append((ids, segments))
    width = max(len(ids) for ids, _ in rows)
    arrays = {name: np.zeros((len(rows), width), np.int64) for name in INPUT_NAMES}
    arrays["input_ids"][:] = vocabulary.pad_id
    for number, (ids, segments) in enumerate(rows):
        arrays["input_ids"][number, : len(ids)] = ids
        arrays["attention_mask"][number, : len(ids)] = 1
        arrays["token_type_ids"][number, : len(ids)] = segments
    if choices:
        return {name: np.repeat(array[:, None], choices, axis=1) for name, array in arrays.items()}
    return arrays


# ---------------------------------------------------------------- writing


def _write_onnx(padded: PaddedModel, path: Path, batch: Arrays) -> None:
    """Trace the model; the number of texts and their length stay dynamic."""
    inputs = tuple(torch.from_numpy(batch[name]) for name in INPUT_NAMES)
    axes = {0: "batch", 1: "sequence"}
    if inputs[0].ndim == 3:
        axes = {0: "batch", 1: "choices", 2: "sequence"}
    dynamic = dict.fromkeys(INPUT_NAMES, axes)
    with torch.no_grad():
        outputs = padded(*inputs)
    for name, output in zip(padded.output_names, outputs, strict=True):
        has_positions = output.ndim > 1 and output.shape[1] == inputs[0].shape[-1]
        dynamic[name] = {0: "batch", 1: "sequence"} if has_positions else {0: "batch"}
    torch.onnx.export(
        padded,
        inputs,
        str(path),
        input_names=list(INPUT_NAMES),
        output_names=list(padded.output_names),
        dynamic_axes=dynamic,
        opset_version=_OPSET,
        dynamo=False,
    )


def _quantize(source: Path, target: Path) -> None:
    """Write the model with int8 weights; activations are quantized at run time."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(str(source), str(target), weight_type=QuantType.QInt8)


# ---------------------------------------------------------------- comparing


def _run_torch(padded: PaddedModel, batches: Iterable[Arrays], texts: int) -> tuple[list[list[NDArray[Any]]], float]:
    """Return the model's outputs for every batch, and texts per second."""
    start = time.perf_counter()
    with torch.inference_mode():
        outputs = [
            [output.numpy() for output in padded(*(torch.from_numpy(batch[name]) for name in INPUT_NAMES))]
            for batch in batches
        ]
    return outputs, round(texts / (time.perf_counter() - start), 1)


def _compare(
    folder: Path, name: str, expected: Sequence[Sequence[NDArray[Any]]], batches: Sequence[Arrays], texts: int
) -> ExportedFile:
    """Run an ONNX file on the batches and compare its outputs at all positions that are no padding."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(folder / name), providers=["CPUExecutionProvider"])
    difference = 0.0
    equal = 0
    decisions = 0
    seconds = 0.0
    for batch, wanted in zip(batches, expected, strict=True):
        start = time.perf_counter()
        outputs = session.run(None, batch)
        seconds += time.perf_counter() - start
        mask = batch["attention_mask"].astype(bool)
        for output, reference in zip(outputs, wanted, strict=True):
            if reference.shape[: mask.ndim] == mask.shape:
                output = output[mask]
                reference = reference[mask]
            difference = max(difference, float(np.abs(output - reference).max()))
            same = output.argmax(-1) == reference.argmax(-1)
            equal += int(np.sum(same))
            decisions += int(np.size(same))
    return ExportedFile(
        path=name,
        bytes=(folder / name).stat().st_size,
        max_difference=difference,
        equal_decisions=round(equal / max(decisions, 1), 6),
        texts_per_second=round(texts / seconds, 1),
    )


def format_export(result: ExportResult) -> str:
    """Format the comparison as a table."""
    rows = [("torch, fp32", "", "", "", f"{result.torch_texts_per_second:,.0f}")]
    for file in result.files:
        size = f"{file.bytes / 1e6:.1f} MB"
        cells = (file.path, size, f"{file.max_difference:.2g}", f"{file.equal_decisions:.2%}")
        rows.append((*cells, f"{file.texts_per_second:,.0f}"))
    headers = (f"{result.out}, {result.texts} texts", "size", "largest difference", "equal decisions", "texts/s")
    return console.format_table(headers, rows)
