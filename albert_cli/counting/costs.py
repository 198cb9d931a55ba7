"""Parameters, FLOPs per token, and bytes of training state of a shape, by arithmetic.

Sharing reduces the parameters but not the FLOPs, because a shared block is computed once for each layer that uses it.
The tests compare all numbers with built models.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from albert_cli.model.config import ModelConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MASKED_FRACTION: Final = 0.15  # fraction of the positions that the masked-language head reads (§4.1)
LENGTHS: Final = (64, 128, 256, 320, 384, 512)  # sequence lengths for which BERT's README lists the largest batches
LONG_LENGTHS: Final = (1024, 2048, 4096, 8192)  # tokens, for models with more than 512 positions
DEVICE_COUNTS: Final = (2, 8, 64, 512)  # the paper trained on 64 to 512 devices (§4.1)

Device = Literal["cuda", "cpu"]
Precision = Literal["fp32", "bf16"]
PRECISIONS: Final[tuple[Precision, ...]] = ("fp32", "bf16")


# ---------------------------------------------------------------- parameters


@dataclass(frozen=True)
class ParameterCounts:
    """Numbers of parameters by part.

    `attention` and `feed_forward` are sums over the distinct blocks and include LayerNorms. `embeddings` include their
    LayerNorm too.
    """

    embeddings: int
    projection: int
    attention: int
    feed_forward: int
    pooler: int
    mlm_head: int
    sentence_order_head: int

    @property
    def without_pooler(self) -> int:
        """The parameters of embeddings, projection and blocks."""
        return self.embeddings + self.projection + self.attention + self.feed_forward

    @property
    def with_pooler(self) -> int:
        """The parameters of Hugging Face's bare model."""
        return self.without_pooler + self.pooler

    @property
    def total(self) -> int:
        """All parameters that pretraining trains; the decoder's matrix is the word table, which is counted once."""
        return self.with_pooler + self.mlm_head + self.sentence_order_head


def count_parameters(config: ModelConfig) -> ParameterCounts:
    """Count the parameters of a shape (§3.1: a word table V x E and a projection E x H in place of a table V x H)."""
    e = config.embedding_size
    h = config.hidden_size
    f = config.intermediate_size
    table_rows = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    return ParameterCounts(
        embeddings=table_rows * e + _norm_parameters(e),
        projection=_linear_parameters(e, h) if config.has_projection else 0,
        attention=config.num_attention_sublayers * (4 * _linear_parameters(h, h) + _norm_parameters(h)),
        feed_forward=config.num_feed_forward_sublayers
        * (_linear_parameters(h, f) + _linear_parameters(f, h) + _norm_parameters(h)),
        pooler=_linear_parameters(h, h),
        mlm_head=_linear_parameters(h, e) + _norm_parameters(e) + config.vocab_size,  # the decoder has only a bias
        sentence_order_head=_linear_parameters(h, config.order_labels),
    )


def _linear_parameters(inputs: int, outputs: int) -> int:
    """Count the parameters of a linear layer: a matrix and a bias."""
    return inputs * outputs + outputs


def _norm_parameters(size: int) -> int:
    """Count the parameters of a LayerNorm: a weight and a bias."""
    return 2 * size


def without_sharing(config: ModelConfig) -> ModelConfig:
    """Return the shape with separate weights for every block of the stack.

    In its number of parameters, a shared block of `config` counts once for each layer that uses it.
    """
    blocks = len(config.blocks())
    return replace(
        config, num_hidden_layers=blocks, sharing="none", num_hidden_groups=1, inner_group_num=1, group_sizes=()
    )


def gradient_bytes(config: ModelConfig, devices: int) -> int:
    """Return the bytes of gradient that each device sends per step.

    In a ring all-reduce, each of n devices sends 2 (n - 1) / n times the gradient.
    """
    gradient = 4 * count_parameters(config).total  # in fp32
    return 2 * gradient * (devices - 1) // devices


# ---------------------------------------------------------------- FLOPs


def forward_flops(
    config: ModelConfig, length: int, *, pruned: bool = False, masked_fraction: float = MASKED_FRACTION
) -> float:
    """Return the pretraining model's FLOPs per token in the forward pass, in sequences of `length` tokens.

    The matmuls of the projection, the blocks and the masked-language head are counted, with two FLOPs per
    multiplication. Pooler and sentence head, which run once per sequence, are not counted.

    * A block has 4 H^2 multiplications per token in the projections of attention, 2 H F in the feed-forward network,
      and 2 S H in scores and contexts, where S is the number of tokens to which a token attends
      (`mean_attended_tokens`).
    * The masked-language head runs at `masked_fraction` of the positions.
    * With `pruned`, the last block computes queries, output and feed-forward network only at the rows that a head
      reads, as `Encoder` does.
    """
    e = config.embedding_size
    h = config.hidden_size
    f = config.intermediate_size
    per_block = 8 * h * h + 4 * h * f + 4 * mean_attended_tokens(config, length) * h
    flops = len(config.blocks()) * per_block + masked_fraction * (2 * h * e + 2 * e * config.vocab_size)
    if config.has_projection:
        flops += 2 * e * h
    if pruned:
        keys_and_values = 4 * h * h  # the rows attend to every token, so every token needs them
        flops -= (1 - head_rows(length) / length) * (per_block - keys_and_values)
    return flops


def mean_attended_tokens(config: ModelConfig, length: int) -> float:
    """Return the mean number of tokens to which a token of a sequence of `length` tokens attends.

    With sparse attention, this is the number of pairs (query, key) divided by the length; [CLS] is the only global
    token that is counted.
    """
    if config.covers_sequence(length):
        return length
    if config.attention == "window":
        reach = config.attention_window
        local_pairs = length * (2 * reach + 1) - reach * (reach + 1)  # minus the positions beyond both ends
        outside_neighborhood_of_cls = length - 1 - reach
    else:
        # These blocks are blocks of tokens. The last block may be shorter; there are n full blocks before it.
        size = config.attention_block
        n = -(-length // size) - 1
        last = length - n * size  # tokens of the last block
        # A block attends to itself and to its neighbors. Each full block attends to three full blocks, except the first
        # and the last of them, which attend to two: 3 n - 2 pairs of full blocks. The last block and its neighbor
        # attend to each other, and the last block attends to itself.
        local_pairs = (3 * n - 2) * size * size + 2 * size * last + last * last
        outside_neighborhood_of_cls = length - 2 * size
    global_pairs = 2 * outside_neighborhood_of_cls  # [CLS] as query, and as key
    return (local_pairs + global_pairs) / length


def training_flops(
    config: ModelConfig, length: int, *, pruned: bool = False, masked_fraction: float = MASKED_FRACTION
) -> float:
    """Return the FLOPs per token of forward and backward pass together: three times those of `forward_flops`.

    The recomputation of activation checkpointing is not counted.
    """
    return 3 * forward_flops(config, length, pruned=pruned, masked_fraction=masked_fraction)


def batch_flops(config: ModelConfig, lengths: NDArray[np.integer[Any]], masked: int) -> float:
    """Return the FLOPs of a training step on sequences of these lengths, with `masked` masked positions in total."""
    tokens = float(lengths.sum())
    # At length 0, `training_flops` leaves out attention's scores and contexts, because they depend on the length. They
    # are added below for each sequence.
    per_token = training_flops(config, 0, masked_fraction=masked / max(tokens, 1.0))
    attended_pairs = sum(int(n) * mean_attended_tokens(config, int(n)) for n in lengths)
    # As in `forward_flops`, each block has 2 H multiplications per pair, and a multiplication counts as two FLOPs.
    forward_per_pair = 4 * config.hidden_size * len(config.blocks())
    per_pair = 3 * forward_per_pair  # as in `training_flops`
    return tokens * per_token + attended_pairs * per_pair


def masked_positions(length: int) -> int:
    """Return the number of masked positions in a sequence."""
    return max(1, round(MASKED_FRACTION * length))


def head_rows(length: int) -> int:
    """Return the number of rows of a sequence that heads read: its masked positions and [CLS]."""
    return min(length, masked_positions(length) + 1)


# ---------------------------------------------------------------- bytes that do not depend on the batch


@dataclass(frozen=True)
class ComputeSetup:
    """The device, precision and compilation of training; the defaults are the values that "auto" has on a GPU."""

    device: Device = "cuda"
    precision: Precision = "bf16"
    compiled: bool = True  # no effect on a CPU, for which the estimates assume that nothing is compiled

    @classmethod
    def from_recipe(
        cls, device: str, precision: Literal["auto", "fp32", "bf16"], compile_: Literal["auto", "on", "off"]
    ) -> ComputeSetup:
        """Build from a device's type and a recipe's `precision` and `compile`; types other than "cuda" become "cpu".

        Callers resolve "auto" first (`training.device.resolve_auto`).
        """
        assert precision != "auto" and compile_ != "auto", "resolve_auto comes first"
        return cls("cuda" if device == "cuda" else "cpu", precision, compiled=compile_ == "on")

    @property
    def is_compiled_for_cuda(self) -> bool:
        """True if losses and blocks are compiled; the estimates assume this on CUDA only."""
        return self.compiled and self.device == "cuda"

    @property
    def itemsize(self) -> int:
        """Bytes of a number in matmuls."""
        return 2 if self.precision == "bf16" else 4

    @property
    def norm_itemsize(self) -> int:
        """Bytes of a number that a block's LayerNorm saves; CUDA's autocast runs an uncompiled LayerNorm in fp32."""
        if self.device == "cuda" and not self.compiled:
            return 4
        return self.itemsize


GPU_SETUP: Final = ComputeSetup()


@dataclass(frozen=True)
class StateBytes:
    """Bytes of training that do not depend on the batch.

    `weights`, `gradients` and the optimizer's `moments` are in fp32. `copy` is a copy of the weights in bf16 for
    matmuls; it is 0 if the matmuls are in fp32. `update` is LAMB's workspace, which is freed before the next batch.
    """

    weights: int
    gradients: int
    moments: int
    copy: int
    update: int

    @property
    def total(self) -> int:
        """Bytes in memory during forward and backward pass; `update` is not in memory then."""
        return self.weights + self.gradients + self.moments + self.copy


def state_bytes(config: ModelConfig, setup: ComputeSetup = GPU_SETUP) -> StateBytes:
    """Return the bytes of training state; LAMB and AdamW have two moments, and the copy exists only with bf16."""
    parameters = count_parameters(config).total
    return StateBytes(
        weights=4 * parameters,
        gradients=4 * parameters,
        moments=8 * parameters,
        copy=2 * parameters if setup.precision == "bf16" else 0,
        update=4 * parameters,
    )


def checkpoint_bytes(config: ModelConfig) -> int:
    """Return the bytes of a training step's checkpoint on disk: the weights and the optimizer's two moments in fp32."""
    return 12 * count_parameters(config).total


# ---------------------------------------------------------------- formatting


def format_three_digits(value: float) -> str:
    """Format a number with three significant digits: `0.190`, `14.8`, `1230`."""
    if value >= 999.5:
        return f"{value:.0f}"
    return f"{value:#.3g}".rstrip(".")  # "#" keeps the last zero of 0.190, and the point of "123."


def format_bytes(size: float) -> str:
    """Format bytes with the unit B, kB, MB, GB or TB (powers of 1,000): `47.3 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:  # a larger number would have four digits
            return f"{format_three_digits(size)} {unit}"
        size /= 1000
    return f"{format_three_digits(size)} TB"
