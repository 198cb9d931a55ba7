"""What a shape has and costs, by arithmetic: parameters, FLOPs a token, bytes of weights, state and activations.

Sharing divides the parameters, and neither the FLOPs nor the activations: a shared block is computed, and its
activations are kept, as often as it is used. The activations are those that `encoder.py` and `heads.py` leave
behind for the backward pass. The tests compare all of it with instantiated models and with what autograd really keeps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from albert_cli.model.config import ModelConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MASKED_FRACTION: Final = 0.15  # share of the positions that the masked-word head sees (§4.1)
LENGTHS: Final = (64, 128, 256, 320, 384, 512)  # of BERT's table of batches that fit into a GPU's memory
LONG_LENGTHS: Final = (1024, 2048, 4096, 8192)  # for models with more positions
DEVICES: Final = (2, 8, 64, 512)  # the paper trained on 64 to 512
USABLE_FRACTION: Final = 0.9  # of a memory; the rest is for the device's context, work space and fragments

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
        """Embeddings and encoder alone."""
        return self.embeddings + self.projection + self.attention + self.feed_forward

    @property
    def with_pooler(self) -> int:
        """What Hugging Face's bare model holds."""
        return self.without_pooler + self.pooler

    @property
    def total(self) -> int:
        """Everything that pretraining trains; the decoder is the word table again and counts as nothing."""
        return self.with_pooler + self.mlm_head + self.sentence_order_head


def count_parameters(config: ModelConfig) -> ParameterCounts:
    """Count the parameters of a shape (§3.1: word table V·E and projection E·H in place of V·H)."""
    e, h, f = config.embedding_size, config.hidden_size, config.intermediate_size
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
    """Parameters as a forward pass multiplies with them: those of a shared block as often as it is used."""
    return count_parameters(without_sharing(config)).total


def without_sharing(config: ModelConfig) -> ModelConfig:
    """The shape with weights of its own for every block that is computed."""
    blocks = len(config.blocks())
    alone = {"sharing": "none", "num_hidden_groups": 1, "inner_group_num": 1, "group_sizes": ()}
    return replace(config, num_hidden_layers=blocks, **alone)  # type: ignore[arg-type]


def gradient_bytes(config: ModelConfig, devices: int) -> int:
    """Bytes that each device sends a step: 2 (n - 1) / n of its fp32 gradient, around a ring of n."""
    return 8 * count_parameters(config).total * (devices - 1) // devices


# ---------------------------------------------------------------- FLOPs


def forward_flops(config: ModelConfig, length: int, *, pruned: bool = False, masked: float = MASKED_FRACTION) -> float:
    """FLOPs a token of the pretraining model's forward pass, in sequences of `length` tokens.

    Matrix products alone, two FLOPs a multiplication: a block has 4 H^2 of them in attention's projections,
    2 H F in the feed-forward part and 2 S H in scores and contexts, where S is what a token sees (`seen_tokens`); the
    masked-word head runs at the share `masked` of the positions. `pruned`: the last block's queries, output and
    feed-forward part at the rows alone that a head reads (masked positions and [CLS]), as `Encoder` computes it.
    """
    e, h, f = config.embedding_size, config.hidden_size, config.intermediate_size
    per_block = 8 * h * h + 4 * h * f + 4 * mean_attended_tokens(config, length) * h
    flops = len(config.blocks()) * per_block + masked * (2 * h * e + 2 * e * config.vocab_size)
    if config.has_projection:
        flops += 2 * e * h
    if pruned:
        keys_and_values = 4 * h * h  # which every token needs
        flops -= (1 - _rows(length) / length) * (per_block - keys_and_values)
    return flops


def mean_attended_tokens(config: ModelConfig, length: int) -> float:
    """How many tokens of a sequence one of its tokens sees on average; of the global tokens [CLS] alone is counted."""
    if length == 0 or config.covers_sequence(length):
        return length
    if config.attention == "window":
        near, reach = length * (2 * config.attention_window + 1), config.attention_window
        near -= reach * (reach + 1)  # at both ends
        from_cls = length - 1 - reach
    else:
        size, blocks = config.attention_block, -(-length // config.attention_block)
        last = length - (blocks - 1) * size
        near = (3 * (blocks - 1) - 2) * size * size + 2 * size * last + last * last
        from_cls = length - 2 * size
    return (near + 2 * from_cls) / length


def training_flops(config: ModelConfig, length: int, *, pruned: bool = False, masked: float = MASKED_FRACTION) -> float:
    """FLOPs a token of forward and backward pass: three forward passes; recomputation counts as nothing."""
    return 3 * forward_flops(config, length, pruned=pruned, masked=masked)


def batch_flops(config: ModelConfig, lengths: NDArray[np.integer[Any]], masked: int) -> float:
    """FLOPs of the full model's forward and backward pass over sequences of these lengths, `masked` masks in all."""
    tokens, pairs = float(lengths.sum()), sum(int(n) * mean_attended_tokens(config, int(n)) for n in lengths)
    a_token = training_flops(config, 0, masked=masked / max(tokens, 1.0))
    # The rest grows with what a token sees of the sequence that it stands in.
    return tokens * a_token + pairs * 12 * config.hidden_size * len(config.blocks())


def _masked(length: int) -> int:
    return max(1, round(MASKED_FRACTION * length))


def _rows(length: int) -> int:
    """Rows of a sequence that a head reads: its masked positions and [CLS]."""
    return min(length, _masked(length) + 1)


# ---------------------------------------------------------------- bytes that do not depend on the batch


@dataclass(frozen=True)
class ComputeSetup:
    """Where and how training computes; the defaults are what "auto" chooses on a GPU."""

    device: Device = "cuda"
    precision: Precision = "bf16"
    compiled: bool = True  # on CUDA; a CPU is never compiled for by "auto", and counts as if it were not

    @classmethod
    def of(cls, device: str, precision: str, compile_: str) -> ComputeSetup:
        """From a device's type (all but CUDA count as a CPU) and a recipe's `precision` and `compile`."""
        is_cuda = device == "cuda"
        return cls("cuda" if is_cuda else "cpu", "bf16" if precision == "bf16" else "fp32", compile_ == "on")

    @property
    def fused(self) -> bool:
        """Whether losses and blocks are compiled for CUDA."""
        return self.compiled and self.device == "cuda"

    @property
    def item(self) -> int:
        """Bytes of a number in matrix products."""
        return 2 if self.precision == "bf16" else 4

    @property
    def norm_item(self) -> int:
        """Bytes of a number that a block's LayerNorm keeps: CUDA's autocast makes fp32 of it, if it is not compiled."""
        return 4 if self.device == "cuda" and not self.compiled else self.item


GPU: Final = ComputeSetup()


@dataclass(frozen=True)
class StateBytes:
    """Bytes that training holds whatever the batch; `update` is LAMB's work space, needed between two batches."""

    weights: int
    gradients: int
    moments: int
    copy: int
    update: int

    @property
    def total(self) -> int:
        """What lies in memory while a batch is computed."""
        return self.weights + self.gradients + self.moments + self.copy


def state_bytes(config: ModelConfig, setup: ComputeSetup = GPU) -> StateBytes:
    """Weights, gradients and LAMB's two moments in fp32, and the weights' copy in bf16 where products are in bf16."""
    parameters = count_parameters(config).total
    copy = 2 * parameters if setup.precision == "bf16" else 0
    return StateBytes(4 * parameters, 4 * parameters, 8 * parameters, copy, 4 * parameters)


def checkpoint_bytes(config: ModelConfig) -> int:
    """Bytes of a step's checkpoint: the weights and two moments in fp32."""
    return 12 * count_parameters(config).total


# ---------------------------------------------------------------- activations


def activation_bytes(config: ModelConfig, length: int, setup: ComputeSetup = GPU, *, checkpointed: bool = False) -> int:
    """Bytes that a pretraining step keeps for the backward pass, a sequence of `length` tokens.

    `checkpointed`: only the input of every block is kept, and one block at a time is computed again.
    """
    blocks = len(config.blocks())
    whole, last = _block(config, length, length, setup), _block(config, length, _rows(length), setup)
    size = config.embedding_size
    embeddings = 3 * 8 + size * 4 + 2 * 4  # of a token: ids, the input of the LayerNorm over E
    if config.has_projection:
        embeddings += size * setup.item  # its input
    if config.hidden_dropout_prob:
        embeddings += size * (1 if setup.device == "cuda" else 4)
    around = length * embeddings + _heads(config, length, setup)
    if checkpointed:
        return around + blocks * length * config.hidden_size * setup.item + (whole if blocks > 1 else last)
    return around + (blocks - 1) * whole + last


def _block(config: ModelConfig, tokens: int, rows: int, setup: ComputeSetup) -> int:
    """One block of a sequence whose queries and feed-forward part run at `rows` of its tokens."""
    h, f, heads, item = config.hidden_size, config.intermediate_size, config.num_attention_heads, setup.item
    kept = tokens * 3 * h * item  # the block's input, keys, values
    if rows < tokens:
        kept += rows * h * item  # the input again, at the rows
    # Queries, contexts, the feed-forward part's input; before and after its activation, which for ReLU is one.
    wide = f if config.hidden_act == "relu" else 2 * f
    row = (3 * h + wide) * item
    row += 2 * (h * setup.norm_item + 2 * 4)  # what both LayerNorms take, its mean and deviation
    keys = tokens if config.covers_sequence(tokens) else 0  # sparse attention is computed again (`model/sparse.py`)
    if setup.device == "cpu" and setup.precision == "bf16":
        row += heads * keys * item  # no fused kernel there: probabilities
    else:
        row += 4 * heads  # the logarithm of softmax's denominators
    if config.hidden_dropout_prob:
        row += 2 * h * (1 if setup.device == "cuda" else item)  # the masks: bools on CUDA, else the numbers' own type
    if config.attention_probs_dropout_prob and setup.device == "cpu":
        row += 3 * heads * keys * item  # no fused kernel there: probabilities, their mask, their product
    return kept + rows * row


def _heads(config: ModelConfig, length: int, setup: ComputeSetup) -> int:
    """The masked-word head with its softmax in fp32, and the pooler."""
    h, e, item = config.hidden_size, config.embedding_size, setup.item
    # Softmax's logarithm in fp32; compiled, the logits as they are and two numbers a row.
    masked = (h + 2 * e) * item + e * setup.norm_item + 2 * 4 + (item if setup.fused else 4) * config.vocab_size
    return _masked(length) * masked + 2 * h * item


def working_bytes(config: ModelConfig, length: int, setup: ComputeSetup = GPU) -> int:
    """Bytes a sequence that the backward pass needs at its peak beside all that was kept.

    The peak is at the very beginning, where the gradients of softmax's output and of its input lie side by side in
    fp32; or in the block before the last, when the heads' and the last block's activations are gone already.
    """
    h, item, norm_item = config.hidden_size, setup.item, setup.norm_item
    # The second LayerNorm holds the gradients of its output and input. After it the latter stands in for the input that
    # was kept; the gradient before the activation comes beside it, and a copy of it for the product.
    cast = h * item if item != norm_item else 0
    block = length * max(2 * h * norm_item, config.intermediate_size * item + cast)
    gone = _heads(config, length, setup) + _block(config, length, _rows(length), setup)
    logits = _masked(length) * config.vocab_size * (item if setup.fused else 8)  # compiled, one gradient is written
    return max(logits, block - gone)


# ---------------------------------------------------------------- what fits


def largest_batch(
    config: ModelConfig, length: int, memory: int, setup: ComputeSetup = GPU, *, checkpointed: bool = False
) -> int:
    """How many sequences of `length` tokens fit at once into 90 % of `memory` bytes beside the state; 0 for none."""
    state = state_bytes(config, setup)
    usable = int(USABLE_FRACTION * memory)
    if state.total + state.update > usable:
        return 0
    a_sequence = activation_bytes(config, length, setup, checkpointed=checkpointed)
    return (usable - state.total) // (a_sequence + working_bytes(config, length, setup))


def format_three_digits(value: float) -> str:
    """A number with three significant digits: `0.190`, `14.8`, `1230`."""
    return f"{value:#.3g}".rstrip(".") if value < 999.5 else f"{value:.0f}"


def format_bytes(size: float) -> str:
    """Bytes in powers of ten: `47.3 MB`."""
    power = next((n for n in range(4) if size < 999.5 * 1000**n), 4)
    return f"{format_three_digits(size / 1000**power)} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"
