"""Parameters, FLOPs per token, and bytes of weights and state of a shape, by arithmetic.

Sharing divides the parameters but not the FLOPs: a shared block is computed as often as it is used. The tests compare
all of it with instantiated models.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from albert_cli.model.config import ModelConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MASKED_FRACTION: Final = 0.15  # of the positions, which the masked-language head reads (§4.1)
LENGTHS: Final = (64, 128, 256, 320, 384, 512)  # of BERT's table of batches that fit into a GPU's memory
LONG_LENGTHS: Final = (1024, 2048, 4096, 8192)  # for models with more positions
DEVICES: Final = (2, 8, 64, 512)  # numbers of devices; the paper trained on 64 to 512

Device = Literal["cuda", "cpu"]
Precision = Literal["bf16", "fp32"]


# ---------------------------------------------------------------- parameters


@dataclass(frozen=True)
class ParameterCounts:
    """Numbers of parameters by part; attention and feed-forward sum over the distinct blocks, LayerNorms included."""

    embeddings: int
    projection: int
    attention: int
    feed_forward: int
    pooler: int
    mlm_head: int
    sentence_order_head: int

    @property
    def without_pooler(self) -> int:
        """The parameters of embeddings and blocks alone."""
        return self.embeddings + self.projection + self.attention + self.feed_forward

    @property
    def with_pooler(self) -> int:
        """The parameters of Hugging Face's bare model."""
        return self.without_pooler + self.pooler

    @property
    def total(self) -> int:
        """All parameters that pretraining trains; the decoder is the word table and counts once."""
        return self.with_pooler + self.mlm_head + self.sentence_order_head


def count_parameters(config: ModelConfig) -> ParameterCounts:
    """Count the parameters of a shape (§3.1: word table V·E and projection E·H in place of V·H)."""
    e = config.embedding_size
    h = config.hidden_size
    f = config.intermediate_size
    rows = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    return ParameterCounts(
        embeddings=rows * e + 2 * e,
        projection=e * h + h if config.has_projection else 0,
        attention=config.num_attention_blocks * (4 * (h * h + h) + 2 * h),
        feed_forward=config.num_feed_forward_blocks * (h * f + f + f * h + h + 2 * h),
        pooler=h * h + h,
        mlm_head=h * e + e + 2 * e + config.vocab_size,
        sentence_order_head=config.order_labels * (h + 1),
    )


def applied_parameters(config: ModelConfig) -> int:
    """Count parameters as a forward pass multiplies with them: a shared block counts as often as it is used."""
    return count_parameters(without_sharing(config)).total


def without_sharing(config: ModelConfig) -> ModelConfig:
    """Return the shape with separate weights for every block that is computed."""
    blocks = len(config.blocks())
    return replace(
        config, num_hidden_layers=blocks, sharing="none", num_hidden_groups=1, inner_group_num=1, group_sizes=()
    )


def gradient_bytes(config: ModelConfig, devices: int) -> int:
    """Return the bytes that each device sends per step: 2 (n - 1) / n of its fp32 gradient, around a ring of n."""
    return 8 * count_parameters(config).total * (devices - 1) // devices


# ---------------------------------------------------------------- FLOPs


def forward_flops(config: ModelConfig, length: int, *, pruned: bool = False, masked: float = MASKED_FRACTION) -> float:
    """Return the pretraining model's FLOPs per token in the forward pass, in sequences of `length` tokens.

    Matmuls alone, two FLOPs per multiplication: a block has 4 H^2 multiplications in attention's projections, 2 H F in
    the feed-forward part and 2 S H in scores and contexts, where S is the number of tokens that a token sees
    (`mean_attended_tokens`). The masked-language head runs at the fraction `masked` of the positions. `pruned`: the
    last block computes queries, output and feed-forward part only at the rows that a head reads, as `Encoder` does.
    """
    e = config.embedding_size
    h = config.hidden_size
    f = config.intermediate_size
    per_block = 8 * h * h + 4 * h * f + 4 * mean_attended_tokens(config, length) * h
    flops = len(config.blocks()) * per_block + masked * (2 * h * e + 2 * e * config.vocab_size)
    if config.has_projection:
        flops += 2 * e * h
    if pruned:
        keys_and_values = 4 * h * h  # needed of every token
        flops -= (1 - head_rows(length) / length) * (per_block - keys_and_values)
    return flops


def mean_attended_tokens(config: ModelConfig, length: int) -> float:
    """Return how many tokens of its sequence a token sees on average; [CLS] is the only global token counted."""
    if length == 0 or config.covers_sequence(length):
        return length
    if config.attention == "window":
        reach = config.attention_window
        local = length * (2 * reach + 1) - reach * (reach + 1)  # less the positions beyond both ends
        beyond_cls = length - 1 - reach
    else:
        size = config.attention_block
        blocks = -(-length // size)
        last = length - (blocks - 1) * size
        local = (3 * (blocks - 1) - 2) * size * size + 2 * size * last + last * last
        beyond_cls = length - 2 * size
    return (local + 2 * beyond_cls) / length


def training_flops(config: ModelConfig, length: int, *, pruned: bool = False, masked: float = MASKED_FRACTION) -> float:
    """Return the FLOPs per token of forward and backward pass: three forward passes; recomputation is not counted."""
    return 3 * forward_flops(config, length, pruned=pruned, masked=masked)


def batch_flops(config: ModelConfig, lengths: NDArray[np.integer[Any]], masked: int) -> float:
    """Return the FLOPs of a training step on sequences of these lengths, with `masked` masked positions in total."""
    tokens = float(lengths.sum())
    per_token = training_flops(config, 0, masked=masked / max(tokens, 1.0))  # without scores and contexts
    attended = sum(int(n) * mean_attended_tokens(config, int(n)) for n in lengths)
    return tokens * per_token + attended * 12 * config.hidden_size * len(config.blocks())


def masked_positions(length: int) -> int:
    """Return the number of masked positions in a sequence."""
    return max(1, round(MASKED_FRACTION * length))


def head_rows(length: int) -> int:
    """Return the number of rows of a sequence that heads read: its masked positions and [CLS]."""
    return min(length, masked_positions(length) + 1)


# ---------------------------------------------------------------- bytes that do not depend on the batch


@dataclass(frozen=True)
class ComputeSetup:
    """The device, precision and compilation of training; the defaults are what "auto" chooses on a GPU."""

    device: Device = "cuda"
    precision: Precision = "bf16"
    compiled: bool = True  # for CUDA; the estimates for a CPU assume that nothing is compiled

    @classmethod
    def of(cls, device: str, precision: str, compile_: str) -> ComputeSetup:
        """Build from a device's type (all but CUDA count as a CPU) and a recipe's `precision` and `compile`."""
        return cls(
            device="cuda" if device == "cuda" else "cpu",
            precision="bf16" if precision == "bf16" else "fp32",
            compiled=compile_ == "on",
        )

    @property
    def fused(self) -> bool:
        """True if losses and blocks are compiled for CUDA."""
        return self.compiled and self.device == "cuda"

    @property
    def item(self) -> int:
        """Bytes of a number in matmuls."""
        return 2 if self.precision == "bf16" else 4

    @property
    def norm_item(self) -> int:
        """Bytes of a number that a block's LayerNorm saves: uncompiled, CUDA's autocast casts it to fp32."""
        return 4 if self.device == "cuda" and not self.compiled else self.item


GPU: Final = ComputeSetup()


@dataclass(frozen=True)
class StateBytes:
    """Bytes of training that do not depend on the batch; `update` is LAMB's workspace between two batches."""

    weights: int
    gradients: int
    moments: int
    copy: int
    update: int

    @property
    def total(self) -> int:
        """Bytes in memory while a batch is computed."""
        return self.weights + self.gradients + self.moments + self.copy


def state_bytes(config: ModelConfig, setup: ComputeSetup = GPU) -> StateBytes:
    """Return weights, gradients and LAMB's two moments in fp32, and the weights' bf16 copy for matmuls in bf16."""
    parameters = count_parameters(config).total
    copy = 2 * parameters if setup.precision == "bf16" else 0
    return StateBytes(4 * parameters, 4 * parameters, 8 * parameters, copy, 4 * parameters)


def checkpoint_bytes(config: ModelConfig) -> int:
    """Return the bytes of a step's checkpoint: the weights and two moments in fp32."""
    return 12 * count_parameters(config).total


# ---------------------------------------------------------------- formatting


def format_three_digits(value: float) -> str:
    """Format a number with three significant digits: `0.190`, `14.8`, `1230`."""
    return f"{value:#.3g}".rstrip(".") if value < 999.5 else f"{value:.0f}"


def format_bytes(size: float) -> str:
    """Format bytes in powers of ten: `47.3 MB`."""
    power = next((n for n in range(4) if size < 999.5 * 1000**n), 4)
    return f"{format_three_digits(size / 1000**power)} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"
