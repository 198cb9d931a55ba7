"""Find and read the weight files of a directory, and describe layouts that cannot be read.

Readable layouts are safetensors and `pytorch_model.bin`, each as one file or in shards. Pickled files are read by
torch's restricted unpickler, which runs no code. `read_weights` returns tensors by the names in the files; `hf_names`
translates them.
"""

from __future__ import annotations

import errno
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from albert_cli import store
from albert_cli.errors import CheckpointError
from albert_cli.formatting import first_line
from albert_cli.model.config import ModelConfig
from albert_cli.os_errors import errno_of

WEIGHTS_FILE: Final = "model.safetensors"
_PICKLED_FILE: Final = "pytorch_model.bin"
_INDEX_SUFFIX: Final = ".index.json"
# Keys under which training programs save the weights, next to the optimizer's state.
_WEIGHT_KEYS: Final = ("state_dict", "model_state_dict", "model")
_WRAPPER_PREFIX: Final = "module."  # DataParallel adds it to every name
_CHECKPOINT_HINT: Final = "name a model directory, a run or a Hub id"
MISMATCH_HINT: Final = "use a weights file and a config.json that belong together"

# Layouts that cannot be read: the pattern of a file's name, a description of the file, and the remedy.
_OTHER_LAYOUTS: Final = (
    ("adapter_config.json", "an adapter without its base model", "merge it with peft: merge_and_unload()"),
    ("*.gguf", "a GGUF file", "name the checkpoint that it was converted from"),
    ("tf_model.h5", "Keras weights", "save them with transformers 4: from_pretrained(…, from_tf=True)"),
    ("flax_model.msgpack", "Flax weights", "save them with transformers 4: from_pretrained(…, from_flax=True)"),
    ("*.onnx", "an ONNX model", "name the checkpoint that it was exported from"),
    (
        "saved_model.pb",
        "a TensorFlow SavedModel",
        "download the checkpoint (model.ckpt-*) instead: albert convert reads it",
    ),
)


def is_tensorflow(directory: Path) -> bool:
    """Return True if the directory contains a TensorFlow checkpoint of the kind that Google published."""
    return any(directory.glob("*.ckpt*.index")) or any(directory.glob("*.ckpt*.data-*"))


def describe_layout(directory: Path) -> tuple[str, str]:
    """Return a description of the content of a directory without readable weights, and the remedy for a message."""
    if is_tensorflow(directory):
        return "a TensorFlow checkpoint", f"convert it: albert convert {directory} --out NEW"
    if layout := _find_other_layout([*directory.glob("*"), *directory.glob("onnx/*")]):
        return layout
    if (directory / "config.json").is_file():
        return f"no weights ({WEIGHTS_FILE} or {_PICKLED_FILE})", "copy the weights next to config.json"
    content = "no checkpoint (no config.json, no finished step-*)"
    runs = sorted(directory.glob("run-*/config.json"))
    if runs:
        return content, f"it is an evaluation; name one of its runs, such as {runs[0].parent}"
    return content, _CHECKPOINT_HINT


def describe_repository(names: Sequence[str]) -> tuple[str, str]:
    """Return a description of a repository on the Hub without readable weights, and the remedy for a message.

    names: its files.
    """
    paths = [PurePosixPath(name) for name in names]
    if any(path.match("*.ckpt*.index") for path in paths):
        return "a TensorFlow checkpoint", "download it, and convert it: albert convert DIRECTORY --out NEW"
    if layout := _find_other_layout(paths):
        return layout
    if "config.json" in names:
        return f"no weights ({WEIGHTS_FILE} or {_PICKLED_FILE})", "use another model"
    return "no checkpoint (no config.json)", "use another model"


def _find_other_layout(paths: Sequence[PurePath]) -> tuple[str, str] | None:
    """Return the description of the first layout that has one of these files, and the remedy; None without one."""
    for pattern, content, hint in _OTHER_LAYOUTS:
        if any(path.match(pattern) for path in paths):
            return content, hint
    return None


def describe_file(path: Path) -> tuple[str, str]:
    """Return the message and the remedy for a file that was named instead of a directory."""
    if layout := _find_other_layout([path]):
        content, hint = layout
        return f"{path}: is {content}", hint
    return store.no_directory_message(path, _CHECKPOINT_HINT)


def has_weights(directory: Path) -> bool:
    """Return True if a directory has a weight file that can be read, or an index of such files."""
    names = [f"{name}{suffix}" for name in (WEIGHTS_FILE, _PICKLED_FILE) for suffix in ("", _INDEX_SUFFIX)]
    return any((directory / name).is_file() for name in names)


def find_weight_files(directory: Path) -> list[Path]:
    """Return the weight files of a directory; safetensors are preferred to pickled files.

    Raises `CheckpointError` if there are none, or if an index of shards is damaged or lists a missing shard.
    """
    for name in (WEIGHTS_FILE, _PICKLED_FILE):
        if (directory / name).is_file():
            return [directory / name]
        index = directory / f"{name}{_INDEX_SUFFIX}"
        if index.is_file():
            return _read_index(index)
    content, hint = describe_layout(directory)
    raise CheckpointError(f"{directory}: contains {content}", hint)


def _read_index(index: Path) -> list[Path]:
    """Return the shards that an index lists; raise `CheckpointError` if the index is damaged or a shard is missing."""
    weight_map = store.read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: has no weight_map", "download the index again")
    shards = sorted({str(name) for name in weight_map.values()})
    for name in shards:
        if Path(name).name != name:
            raise CheckpointError(f"{index}: lists {name!r}, which is not next to it", "download the index again")
        if not (index.parent / name).is_file():
            raise CheckpointError(f"{index.parent / name}: missing (listed in {index.name})", "download this shard")
    return [index.parent / name for name in shards]


def read_weights(files: Sequence[Path]) -> dict[str, Tensor]:
    """Return the tensors of all files; raise `CheckpointError` if a file cannot be read."""
    tensors: dict[str, Tensor] = {}
    for path in files:
        if path.suffix == ".safetensors":
            tensors |= read_tensors(path)
        else:
            tensors |= _read_pickled(path)
    return tensors


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file; raise `CheckpointError` if it cannot be read."""
    with store.translate_os_errors(path):
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            if errno_of(error) == errno.ENOMEM:  # too little memory to map the file says nothing about its content
                raise
            raise CheckpointError(f"{path}: cannot be read ({error})", "use a file in safetensors format") from None


def _read_pickled(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file of `torch.save`, without running code from the file.

    Raises `CheckpointError` if the file cannot be read, if it contains objects other than tensors by name, or if its
    tensors are larger than the file.
    """
    try:
        _reject_compressed_archive(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (MemoryError, CheckpointError):
        raise
    except Exception as error:  # torch raises errors of many types for files that it cannot read
        reason = first_line(error)
        if type(error).__name__ == "UnpicklingError":
            raise CheckpointError(f"{path}: contains more than tensors ({reason})", "save it as safetensors") from None
        raise CheckpointError(f"{path}: cannot be read ({reason})", "download it again") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: contains no tensors by name", "save the model's state_dict()")
    for key in _WEIGHT_KEYS:  # they may be nested: the weights in content["state_dict"]["model"]
        if isinstance(content.get(key), dict):
            content = content[key]
    tensors = {str(name): tensor for name, tensor in content.items() if isinstance(tensor, Tensor)}
    for name, tensor in tensors.items():
        _reject_sparse_or_expanded(path, name, tensor)
    if all(name.startswith(_WRAPPER_PREFIX) for name in tensors):
        return {name.removeprefix(_WRAPPER_PREFIX): tensor for name, tensor in tensors.items()}
    return tensors


def _reject_compressed_archive(path: Path) -> None:
    """Raise `CheckpointError` if an archive is compressed, unlike those of `torch.save`: it may expand to any size."""
    if not zipfile.is_zipfile(path):  # torch before 1.6 wrote no archives
        return
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > path.stat().st_size:
        raise CheckpointError(f"{path}: is compressed and expands to {size:,} bytes", "save it again by torch.save")


def _reject_sparse_or_expanded(path: Path, name: str, tensor: Tensor) -> None:
    """Raise `CheckpointError` for a tensor with more values than the file contains, such as a sparse or expanded one.

    A dense copy of such a tensor could fill the memory.
    """
    is_dense = tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_nested
    if not is_dense or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        message = f"{path}: {name} is sparse, or has a shape for more values than the file contains"
        raise CheckpointError(message, "save it as a dense tensor: tensor.to_dense().contiguous()")


# ---------------------------------------------------------------- checks


def check_values(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Raise `CheckpointError` for weights with NaN or infinity, and for quantized weights.

    Quantized weights are floats of one byte, or matrices of integers. They need scales, and no reader here reads
    scales.
    """
    for name, tensor in tensors.items():
        is_float = tensor.is_floating_point()
        if is_float and tensor.element_size() > 1:
            if tensor.numel() and not torch.stack(torch.aminmax(tensor)).isfinite().all():
                raise CheckpointError(f"{directory}: {name} has values that are not finite", "use other weights")
        elif is_float or (tensor.ndim == 2 and name.endswith("weight")):
            message = f"{directory}: the weights are quantized: {name} has values of {tensor.dtype}"
            raise CheckpointError(message, "use the checkpoint in fp32, fp16 or bf16")


def check_size(files: Sequence[Path], config: ModelConfig) -> None:
    """Raise `CheckpointError` if the files have less than a byte for each weight of the encoder's matrices.

    The model is built before its weights are compared with the files. Without this check, a wrong number in config.json
    could make it allocate a terabyte. Every readable format has at least one byte per parameter.
    """
    hidden = config.hidden_size
    table_rows = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    parameters = (
        table_rows * config.embedding_size
        + config.num_attention_sublayers * 4 * hidden * hidden
        + config.num_feed_forward_sublayers * 2 * hidden * config.intermediate_size
    )
    size = sum(path.stat().st_size for path in files)
    if size < parameters:
        raise CheckpointError(
            f"{files[0]}: {size:,} bytes cannot hold the {parameters:,} parameters that config.json describes",
            MISMATCH_HINT,
        )
