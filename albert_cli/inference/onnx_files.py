"""Write a model as two ONNX files, in fp32 and with int8 weights; needs the optional packages of the extra `onnx`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import torch

from albert_cli.errors import ConfigError
from albert_cli.inference.runtimes import Inputs
from albert_cli.model.padded import INPUT_NAMES, PaddedModel

FULL: Final = "onnx/model.onnx"
QUANTIZED: Final = "onnx/model_quantized.onnx"
_OPSET: Final = 17  # the first version of the operators with LayerNormalization


def require_onnx() -> None:
    """Raise `ConfigError` unless the extra `onnx` is installed."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError:
        raise ConfigError("exporting needs onnx and onnxruntime", "pip install 'albert-cli[onnx]'") from None


def write_onnx(model: PaddedModel, directory: Path, example: Inputs) -> None:
    """Write `onnx/model.onnx` and `onnx/model_quantized.onnx` into `directory`.

    The files accept batches of any size and length. example: any batch; the exporter records the operations that the
    model applies to it.
    """
    full = directory / FULL
    full.parent.mkdir()
    torch.onnx.export(
        model,
        tuple(torch.from_numpy(example[name]) for name in INPUT_NAMES),
        str(full),
        input_names=list(INPUT_NAMES),
        output_names=list(model.outputs),
        dynamic_axes={**dict.fromkeys(INPUT_NAMES, model.input_axes), **model.outputs},
        opset_version=_OPSET,
        dynamo=False,  # the dynamo exporter needs another package, onnxscript
    )
    _quantize(full, directory / QUANTIZED)


def _quantize(source: Path, target: Path) -> None:
    """Write the ONNX file `target` with int8 weights; activations are quantized at run time."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.disable(logging.WARNING)  # onnxruntime recommends a step that only static quantization needs
    try:
        quantize_dynamic(str(source), str(target), weight_type=QuantType.QInt8)
    finally:
        logging.disable(logging.NOTSET)
