"""Comparisons with `transformers`: outputs and gradients of every head, and of every shape that both have."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from albert_cli import store
from albert_cli.bench.peer import pad_batch
from albert_cli.data.batches import PackedBatch
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.packing import pack
from albert_cli.model.weight_files import WEIGHTS_FILE
from tests.helpers.hugging_face import (
    HEADS,
    Head,
    assert_same_outputs,
    hf_config,
    load_with_transformers,
    new_of_theirs,
    read_all_into,
    saved,
)
from tests.helpers.shapes import HF_SHAPES, TINY, random_batch, shake

LENGTHS = (20, 3, 11, 2, 7, 16)  # padded to 20; every sequence has both segments
WIDE = replace(
    TINY, vocab_size=200, hidden_size=768, num_hidden_layers=2, num_attention_heads=12, intermediate_size=512,
    max_position_embeddings=512, initializer_range=0.05,
)  # fmt: skip
# Widths of the paper's Tables 1 and 3, for inputs of 512 tokens.
WIDTHS: dict[str, ModelConfig] = {
    "E 128, two groups": replace(WIDE, embedding_size=128, num_hidden_groups=2),
    "BERT": replace(WIDE, embedding_size=768, num_hidden_layers=1, sharing="none"),
}

# A head reads only the encoder's output, so two shapes are enough for all heads: an ALBERT and a BERT. Only in the
# head `bare` the names of the encoder's weights have no prefix; the prefix does not depend on the shape.
COMBINATIONS = [
    (shape, name) for shape in HF_SHAPES for name in HEADS if shape in ("one group", "BERT") or name == "pretraining"
]


@pytest.mark.parametrize(("shape", "name"), COMBINATIONS)
def test_parity_our_checkpoint_gives_equal_outputs(shape: str, name: str, tmp_path: Path) -> None:
    head = HEADS[name]
    ours = head.make(HF_SHAPES[shape])
    shake(ours)
    directory = saved(ours, tmp_path / "ours", head.architecture, head.labels)
    theirs = load_with_transformers(head.auto, directory)
    family = "Bert" if shape == "BERT" else "Albert"
    assert type(theirs).__name__ == family + head.architecture
    assert tuple(theirs.config.id2label.values()) == (head.labels or ("LABEL_0", "LABEL_1"))
    assert hub.read_checkpoint(directory).labels == head.labels
    assert_same_outputs(head, ours, theirs, random_batch(LENGTHS))


@pytest.mark.parametrize(("shape", "name"), COMBINATIONS)
def test_parity_round_trip_from_transformers_is_equal(shape: str, name: str, tmp_path: Path) -> None:
    head, batch = HEADS[name], random_batch(LENGTHS, seed=1)
    theirs = new_of_theirs(head, HF_SHAPES[shape])
    shake(theirs)
    theirs.save_pretrained(tmp_path / "theirs")
    checkpoint = hub.read_checkpoint(tmp_path / "theirs")
    assert checkpoint.config.blocks() == HF_SHAPES[shape].blocks()
    ours = head.make(checkpoint.config)
    read_all_into(ours, tmp_path / "theirs")
    assert_same_outputs(head, ours, theirs, batch)
    # These weights are so large that in fp32 the rounding errors alone are almost 1e-4, so gradients are in fp64.
    ours_64, theirs_64 = (copy.deepcopy(model).double() for model in (ours, theirs))
    assert_same_gradients(head, ours_64, theirs_64, batch, tmp_path, 1e-9)

    directory = saved(ours, tmp_path / "ours", head.architecture, checkpoint.labels)
    assert_same_tensors(load_file(directory / WEIGHTS_FILE), load_file(tmp_path / "theirs" / WEIGHTS_FILE))
    assert_same_tensors(load_with_transformers(head.auto, directory).state_dict(), theirs.state_dict())


@pytest.mark.parametrize("shape", WIDTHS)
def test_parity_real_widths_at_512_tokens_are_equal(shape: str, tmp_path: Path) -> None:
    head, batch = HEADS["pretraining"], random_batch((512, 3), WIDTHS[shape])
    theirs = new_of_theirs(head, WIDTHS[shape])
    shake(theirs)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = head.make(hub.read_checkpoint(tmp_path / "theirs").config)
    read_all_into(ours, tmp_path / "theirs")
    assert_same_outputs(head, ours, theirs, batch)
    assert_same_gradients(head, ours, theirs, batch, tmp_path, 1e-4)


def test_parity_groups_that_do_not_divide_the_layers_are_equal(tmp_path: Path) -> None:
    """If the groups do not divide the layers, `transformers` rounds a quotient to find a layer's group."""
    head, config = HEADS["bare"], replace(TINY, num_hidden_layers=18, num_hidden_groups=14)
    ours = head.make(config)
    shake(ours)
    theirs = load_with_transformers(head.auto, saved(ours, tmp_path / "ours", head.architecture))
    assert_same_outputs(head, ours, theirs, random_batch(LENGTHS))


def assert_same_tensors(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in actual.items():
        assert tensor.dtype == expected[name].dtype, name
        assert torch.equal(tensor, expected[name]), name


def assert_same_gradients(
    head: Head, ours: nn.Module, theirs: Any, batch: PackedBatch, folder: Path, tolerance: float
) -> None:
    """Compare the gradients of one loss: the difference is at most `tolerance` times a tensor's largest entry."""
    backward(head.ours(ours.eval(), pack(batch, torch.device("cpu"), batch.masked_index)))
    backward(head.theirs(theirs.eval(), pad_batch(batch, torch.device("cpu")), batch))
    gradients = {name: p.grad for name, p in ours.named_parameters() if p.grad is not None}
    expected = under_our_names(theirs, folder / "gradients")
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        scale = expected[name].abs().max()
        if name.endswith("key.bias"):
            # This bias adds the same number to all scores of a row, so its gradient is zero up to rounding.
            scale = expected[name.replace("key", "query")].abs().max()
            assert expected[name].abs().max() <= tolerance * scale
        assert float((gradient - expected[name]).abs().max()) <= tolerance * float(scale), name


def backward(outputs: tuple[Tensor, ...]) -> None:
    """Compute the gradients of a sum of all outputs with random weights, the same in each call."""
    generator = torch.Generator().manual_seed(7)
    torch.stack([(o * torch.randn(o.shape, generator=generator).to(o)).sum() for o in outputs]).sum().backward()


def under_our_names(theirs: Any, directory: Path) -> dict[str, Tensor]:
    """Return the gradients of a model of transformers under our names, by saving and reading them like weights."""
    directory.mkdir()
    gradients = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    save_file(gradients, directory / WEIGHTS_FILE)
    store.write_json(directory / "config.json", theirs.config.to_dict())
    return hub.read_checkpoint(directory).tensors


def test_parity_old_official_config_is_read(tmp_path: Path) -> None:
    head = HEADS["bare"]
    theirs = new_of_theirs(head, TINY)
    theirs.save_pretrained(tmp_path)
    old = {"net_structure_type": 0, "gap_size": 0, "num_memory_blocks": 0, "down_scale_factor": 1, "layers_to_keep": []}
    values = store.read_json(tmp_path / "config.json")
    store.write_json(tmp_path / "config.json", values | old)
    ours = head.make(hub.read_checkpoint(tmp_path).config)
    read_all_into(ours, tmp_path)
    assert_same_outputs(head, ours, theirs, random_batch(LENGTHS))


def test_parity_old_layer_norm_names_are_read(tmp_path: Path) -> None:
    head = HEADS["pretraining"]
    theirs = new_of_theirs(head, HF_SHAPES["BERT"])
    shake(theirs)
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    tensors = {}
    for name, tensor in theirs.state_dict().items():
        prefix, _, leaf = name.rpartition("LayerNorm.")
        tensors[prefix + old[f"LayerNorm.{leaf}"] if prefix else name] = tensor.clone()
    assert sum(name.endswith((".gamma", ".beta")) for name in tensors) == 2 * (2 * TINY.num_hidden_layers + 2)
    save_file(tensors, tmp_path / WEIGHTS_FILE)
    store.write_json(tmp_path / "config.json", hf_config(HF_SHAPES["BERT"]).to_dict())
    ours = head.make(HF_SHAPES["BERT"])
    read_all_into(ours, tmp_path)
    assert_same_outputs(head, ours, theirs, random_batch(LENGTHS))
