"""Load the tensors of a checkpoint (`hub.Checkpoint`) into a model.

A model and a checkpoint often have different heads. `LoadPolicy` lists the parts that the checkpoint must contain.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path

from torch import Tensor, nn

from albert_cli import console, store
from albert_cli.errors import CheckpointError
from albert_cli.model.hub import Checkpoint
from albert_cli.model.weight_files import MISMATCH_HINT, WEIGHTS_FILE


class LoadPolicy(Enum):
    """The parts of a model that a checkpoint must contain; the other parts may retain their initial weights."""

    ENCODER = "encoder"  # the encoder without the pooler: to fine-tune, encode or continue pretraining
    MASKED_LANGUAGE = "masked"  # the encoder without the pooler, and the masked-language head
    HEADS = "heads"  # everything except the pooler: to predict
    EVERYTHING = "everything"  # every parameter: to resume

    def required_parts(self, model: nn.Module) -> set[str]:
        """Return the parts of this model (`_part_name`) that the checkpoint must contain."""
        if self is LoadPolicy.ENCODER:
            return {"encoder"}
        if self is LoadPolicy.MASKED_LANGUAGE:
            return {"encoder", "masked"}
        parts = {_part_name(name) for name in model.state_dict()}
        if self is LoadPolicy.HEADS:
            parts.discard("pooler")
        return parts


def load_weights(model: nn.Module, checkpoint: Checkpoint, policy: LoadPolicy = LoadPolicy.ENCODER) -> None:
    """Copy a checkpoint's tensors into a model; print which parts are new or not used if another program wrote it.

    Raises `CheckpointError` if a tensor that `policy` requires is missing or has another shape, or if the file has
    tensors of an encoder that the model does not have.
    """
    required = policy.required_parts(model)
    if "masked" in required and "masked.bias" not in checkpoint.tensors:
        raise CheckpointError(f"{checkpoint.directory}: has no masked-language head", "name a pretrained checkpoint")
    parameters = model.state_dict()
    matching = {
        name: tensor
        for name, tensor in checkpoint.tensors.items()
        if name in parameters and parameters[name].shape == tensor.shape
    }
    new = [name for name in parameters if name not in matching]
    for name in new:
        _check_new(name, parameters[name], checkpoint, required)
    unused = [name for name in checkpoint.tensors if name not in matching]
    # A name without a translation still begins with Hugging Face's prefix of the encoder, which is the model type.
    encoder_prefixes = ("encoder.", f"{checkpoint.model_type}.")
    unexpected = [name for name in unused if name.startswith(encoder_prefixes) and _part_name(name) != "pooler"]
    if unexpected:
        raise CheckpointError(
            f"{checkpoint.directory / WEIGHTS_FILE}: {unexpected[0]} is not a part of the encoder in config.json",
            MISMATCH_HINT,
        )
    # Not a copy in place, because `ScaledLinear` converts its weights.
    model.load_state_dict({**parameters, **matching})
    if any(_part_name(name) == "pooler" for name in new):
        console.warn(f"{checkpoint.directory}: has no pooler; it starts from random weights")
    if store.read_manifest(checkpoint.directory) is None:  # written by another program, so its parts are not known
        _report_parts(checkpoint.directory, list(matching), new, unused)


def _check_new(name: str, parameter: Tensor, checkpoint: Checkpoint, required: set[str]) -> None:
    """Raise `CheckpointError` if a parameter without a matching tensor is required.

    A pooler of another shape is an error even if no pooler is required, because the file belongs to another shape.
    """
    stored = checkpoint.tensors.get(name)
    part = _part_name(name)
    is_wrong_pooler = part == "pooler" and stored is not None
    if part not in required and not is_wrong_pooler:
        return
    title = "encoder" if part in ("encoder", "pooler") else f"{part} head"
    problem = "is missing"
    if stored is not None:
        problem = f"has shape {tuple(stored.shape)}, not {tuple(parameter.shape)}"
    raise CheckpointError(
        f"{checkpoint.directory / WEIGHTS_FILE}: does not cover the {title}: {name} {problem}", MISMATCH_HINT
    )


def _report_parts(directory: Path, matching: list[str], new: list[str], unused: list[str]) -> None:
    """Print which parts of another program's file match the model, are new, or are not used."""
    names_by_title = {f"{len(matching)} tensors matched": matching, "new": new, "not used": unused}
    summaries = []
    for title, names in names_by_title.items():
        if names:
            parts = sorted({_part_name(name) for name in names})
            summaries.append(f"{title}: {', '.join(parts)}")
    console.info(f"{directory}: {'; '.join(summaries)}")


def _part_name(name: str) -> str:
    """Return the part of a model that a parameter belongs to: encoder, pooler, or the name of a head."""
    return "pooler" if name.startswith("encoder.pooler.") else name.split(".")[0]
