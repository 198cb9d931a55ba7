"""A model's shape as data, and the presets of the paper (arXiv 1909.11942).

A shape is built from a recipe's [model] section or from a checkpoint's config.json. Its fields are named as in Hugging
Face's `AlbertConfig`. Some models of the paper need more fields, because `AlbertConfig` cannot express them: `sharing`,
for example, is for the models of Table 4 (§4.5) that share only attention or only FFN weights. This module does not
import torch, so that `albert params` starts fast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final, Literal, get_args, get_origin, get_type_hints

from albert_cli import store
from albert_cli.config import validate_recipe
from albert_cli.errors import CheckpointError, ConfigError

Sharing = Literal["all", "attention", "ffn", "none"]
Activation = Literal["gelu_new", "gelu", "relu"]
AttentionForm = Literal["full", "window", "block"]
GlobalTokens = Literal["cls", "sep", "question"]

CUSTOM_MODEL_TYPE: Final = "albert_cli"  # `model_type` of shapes that Hugging Face's ALBERT and BERT cannot express
# Hugging Face has several names for GELU's tanh approximation; `gelu_new` is the name in ALBERT's files.
_ACTIVATION_NAMES: Final = {"gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new"}
# Hugging Face omits from config.json the values that equal its defaults: xxlarge for ALBERT, base for BERT. These are
# its defaults that differ from the defaults of `ModelConfig`.
_HF_DEFAULTS: Final[dict[str, dict[str, object]]] = {
    "albert": {"hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384},
    "bert": {
        "vocab_size": 30522,
        "hidden_size": 768,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
    },
}
# Settings of old Hugging Face releases, and for each setting the only value that this model implements.
_REQUIRED_VALUES: Final = {"position_embedding_type": "absolute", "is_decoder": False}

_MAX_BLOCKS: Final = 10_000  # layers times inner blocks; a model with more would take very long to build
_MAX_SUGGESTED_HEADS: Final = 1024  # limits the search for a number of heads that an error message suggests


@dataclass(frozen=True)
class ModelConfig:
    """Shape and regularization of one encoder; the defaults are ALBERT-base v2 (Table 1; no dropout, §4.8).

    `hidden_act`: the activation function; `gelu_new` is the tanh approximation of GELU, as in the released weights.
    `sharing`: the weights that layers share: `all` (ALBERT), `attention` or `ffn` (Table 4), `none` (BERT). Layers that
    share a sub-layer share its LayerNorm too.
    `always_project`: keep the E x H projection at E = H, as Hugging Face's ALBERT does; the paper has none there.
    `group_sizes`: the number of layers in each group, for groups of different sizes. With `[1, 10, 1]` the ten layers
    in the middle share weights, and the first and the last layer have separate weights.
    `order_labels`: the number of classes of the sentence head; three-way pretraining adds "from another document" to
    the usual two.
    `initializer_range`: the standard deviation of the initial weights. With `auto` it grows as the hidden size shrinks
    (`initial_std`), because narrow models need larger weights.
    `attention`: the tokens to which a token attends. `full`: its whole sequence; `window`: `attention_window` tokens to
    either side; `block`: its block of `attention_block` tokens and the two adjacent blocks.
    `attention_global`: the tokens of sparse attention (`model/sparse_attention.py`) that attend to all tokens, and to
    which all tokens attend. `cls`: [CLS]; `sep`: also each [SEP]; `question`: also the shorter text of a pair if it is
    short, such as a question about a passage.

    Raises `ConfigError` for values from which no encoder can be built.
    """

    vocab_size: int = 30000
    embedding_size: int = 128
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: Activation = "gelu_new"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    classifier_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float | Literal["auto"] = 0.02
    layer_norm_eps: float = 1e-12
    num_hidden_groups: int = 1
    inner_group_num: int = 1
    sharing: Sharing = "all"
    always_project: bool = False
    group_sizes: tuple[int, ...] = ()
    order_labels: int = 2
    attention: AttentionForm = "full"
    attention_window: int = 128
    attention_block: int = 64
    attention_global: GlobalTokens = "cls"

    def __post_init__(self) -> None:
        for name, field_type in _FIELD_TYPES.items():
            value = getattr(self, name)
            hint = ""
            if field_type is int and not 1 <= value < 2**31:
                hint = "it must be at least 1, and below 2**31"
            elif name == "type_vocab_size" and value < 2:
                hint = "it must be at least 2: one for each text of a pair"
            elif name == "max_position_embeddings" and value < 5:
                hint = "it must be at least 5: three special tokens, and a token of each text of a pair"
            elif get_origin(field_type) is Literal and value not in get_args(field_type):
                hint = f"choose one of {', '.join(get_args(field_type))}"
            elif name == "order_labels" and value not in (2, 3):
                hint = "use 2, or 3 for three-way pretraining"
            elif name.endswith("_prob") and not 0.0 <= value < 1.0:
                hint = "choose a dropout rate in [0, 1)"
            elif name in ("initializer_range", "layer_norm_eps") and value != "auto" and not value > 0.0:
                hint = "it must be greater than 0"  # `not >` rejects NaN, too
            if hint:
                raise ConfigError(f"model.{name} is {value!r}", hint)
        self._check_heads()
        self._check_sharing()

    def _check_heads(self) -> None:
        """Raise `ConfigError` if the number of attention heads does not divide the hidden size."""
        hidden = self.hidden_size
        heads = self.num_attention_heads
        if hidden % heads:
            candidates = range(1, min(heads, hidden, _MAX_SUGGESTED_HEADS) + 1)
            divisor = max(number for number in candidates if hidden % number == 0)
            raise ConfigError(
                f"model.hidden_size {hidden} cannot be split over {heads} attention heads",
                f"num_attention_heads must divide hidden_size, for example {divisor}",
            )

    def _check_sharing(self) -> None:
        """Raise `ConfigError` if layers, groups and sharing contradict each other."""
        layers = self.num_hidden_layers
        groups = self.num_hidden_groups
        if groups > layers:
            raise ConfigError(
                f"model.num_hidden_groups is {groups} but there are only {layers} layers",
                f"set num_hidden_groups to at most {layers}",
            )
        if layers * self.inner_group_num > _MAX_BLOCKS:
            raise ConfigError(
                f"model.num_hidden_layers x inner_group_num is {layers * self.inner_group_num:,}",
                f"use at most {_MAX_BLOCKS:,} blocks in a row",
            )
        sizes = self.group_sizes
        if sizes and (sum(sizes) != layers or min(sizes) < 1 or groups != 1 or self.sharing != "all"):
            raise ConfigError(
                f"model.group_sizes {list(sizes)} must add up to {layers} layers and replaces num_hidden_groups",
                f'use for example group_sizes = [1, {max(1, layers - 1)}], num_hidden_groups = 1 and sharing = "all"',
            )
        if self.sharing != "all" and (groups != 1 or self.inner_group_num != 1):
            raise ConfigError(
                f"model.sharing = {self.sharing!r} allows only one group of one block",
                'remove num_hidden_groups and inner_group_num, or set sharing = "all"',
            )

    @classmethod
    def from_values(cls, values: Mapping[str, object], origin: str) -> ModelConfig:
        """Build a shape from a recipe's [model] section.

        Raises `ConfigError`, whose message begins with `origin`, for unknown keys and invalid values.
        """
        return validate_recipe(cls, values, origin, section="model")

    @classmethod
    def from_hf(cls, values: Mapping[str, object], origin: str) -> ModelConfig:
        """Build a shape from the content of a checkpoint's config.json: Hugging Face's ALBERT or BERT, or our own type.

        Keys that do not change the computation are ignored. Old files may lack `model_type`. A BERT becomes a shape
        with E = H that shares nothing; an ALBERT of Hugging Face has a projection even at E = H. One segment becomes
        two. Raises `CheckpointError`, whose message begins with `origin`, for every other type and for invalid values.
        """
        model_type = values.get("model_type") or _guess_model_type(values)
        if model_type not in ("albert", "bert", CUSTOM_MODEL_TYPE):
            message = f"{origin}: model_type {model_type!r} is not an ALBERT or BERT encoder"
            raise CheckpointError(message, "use an ALBERT or a BERT")
        for key, required in _REQUIRED_VALUES.items():
            if values.get(key, required) != required:
                hint = f"use a model with {key} = {required!r}; albert does not implement other values"
                raise CheckpointError(f"{origin}: {key} is {values[key]!r}", hint)
        shape = dict(_HF_DEFAULTS.get(model_type, {}))
        shape |= {f.name: values[f.name] for f in fields(cls) if values.get(f.name) is not None}
        if shape.get("type_vocab_size") == 1:  # `hub.use_pair_template` repeats the only segment
            shape["type_vocab_size"] = 2
        if model_type == "bert":
            shape["embedding_size"] = shape["hidden_size"]
            shape["sharing"] = "none"
            shape["always_project"] = False
            shape["classifier_dropout_prob"] = shape["hidden_dropout_prob"]
            if values.get("classifier_dropout") is not None:
                shape["classifier_dropout_prob"] = values["classifier_dropout"]
        if model_type == "albert":
            # At E != H this field has no effect. It is False there, so that equal shapes have equal fields.
            shape["always_project"] = shape.get("embedding_size", cls.embedding_size) == shape["hidden_size"]
        activation = str(shape.get("hidden_act", "gelu_new"))
        shape["hidden_act"] = _ACTIVATION_NAMES.get(activation, activation)
        try:
            return cls.from_values(shape, origin)
        except ConfigError as error:
            raise CheckpointError(error.message, error.hint) from None

    @classmethod
    def read(cls, path: Path) -> ModelConfig:
        """Read the shape in a checkpoint's config.json.

        Raises `CheckpointError` for invalid JSON and in the cases of `from_hf`.
        """
        return cls.from_hf(store.read_json(path), str(path))

    def with_dropout(self, encoder: float, classifier: float = 0.0) -> ModelConfig:
        """Return the shape with other dropout rates: in the encoder, and before the linear layer of a classifier."""
        return replace(
            self, hidden_dropout_prob=encoder, attention_probs_dropout_prob=encoder, classifier_dropout_prob=classifier
        )

    @property
    def initial_std(self) -> float:
        """The initial weights' standard deviation; `auto` is 0.55 / sqrt(H), which is 0.02 at H = 768."""
        if isinstance(self.initializer_range, str):
            return 0.55 / math.sqrt(self.hidden_size)
        return self.initializer_range

    def covers_sequence(self, length: int) -> bool:
        """Return True if, in a sequence of this many tokens, every token attends to every token."""
        if self.attention == "window":
            return length <= self.attention_window + 1  # the first and the last token are `length - 1` apart
        if self.attention == "block":
            return length <= 2 * self.attention_block  # the first and the third block are not adjacent
        return True

    @property
    def attention_summary(self) -> str:
        """A phrase for the tokens to which a token attends: "128 tokens to either side; [CLS] sees all tokens"."""
        if self.attention == "full":
            return "full"
        size = f"{self.attention_window} tokens to either side"
        if self.attention == "block":
            size = f"its block of {self.attention_block} tokens and the two adjacent ones"
        global_tokens = {
            "cls": "[CLS] sees all tokens",
            "sep": "[CLS] and [SEP] see all tokens",
            "question": "[CLS], [SEP] and the question see all tokens",
        }
        return f"{size}; {global_tokens[self.attention_global]}"

    @property
    def is_sparse(self) -> bool:
        """True if attention is sparse in the longest sequences; Hugging Face has no class for such a model."""
        return not self.covers_sequence(self.max_position_embeddings)

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def has_projection(self) -> bool:
        """True if a matrix maps the E-wide embeddings to H; at E = H the paper has no such matrix."""
        return self.always_project or self.embedding_size != self.hidden_size

    @property
    def num_attention_sublayers(self) -> int:
        """Number of attention sub-layers with separate weights; layers may share one."""
        return 1 + max(attention for attention, _ in self.blocks())

    @property
    def num_feed_forward_sublayers(self) -> int:
        """Number of feed-forward sub-layers with separate weights; layers may share one."""
        return 1 + max(feed_forward for _, feed_forward in self.blocks())

    def blocks(self) -> tuple[tuple[int, int], ...]:
        """Return the weights of each block in the order of computation, as (attention index, feed-forward index).

        Blocks with equal indices share weights. Layer l of L belongs to group int(l / (L / G)). A layer consists of
        `inner_group_num` blocks, and each inner block of a group has separate weights. The result has
        L * inner_group_num entries under `all` and L otherwise.
        """
        layers = self.num_hidden_layers
        blocks_per_group = self.inner_group_num
        match self.sharing:
            case "all":
                if self.group_sizes:
                    groups = [group for group, size in enumerate(self.group_sizes) for _ in range(size)]
                else:
                    # In floating point, as in Hugging Face's ALBERT. Rounding can lower an index: with 18 layers and
                    # 14 groups, layer 9 is in group 6, and exact division would give group 7.
                    groups = [int(layer / (layers / self.num_hidden_groups)) for layer in range(layers)]
                indices = [group * blocks_per_group + i for group in groups for i in range(blocks_per_group)]
                return tuple((index, index) for index in indices)
            case "attention":
                return tuple((0, layer) for layer in range(layers))
            case "ffn":
                return tuple((layer, 0) for layer in range(layers))
            case "none":
                return tuple((layer, layer) for layer in range(layers))


_FIELD_TYPES: Final = get_type_hints(ModelConfig)


def _preset(hidden: int, layers: int, heads: int, dropout: float = 0.0, *, bert: bool = False) -> ModelConfig:
    """Return a shape of the paper with F = 4 H.

    An ALBERT has E = 128 and shares all weights; a BERT has E = H and shares none.
    """
    return ModelConfig(
        embedding_size=hidden if bert else 128,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        sharing="none" if bert else "all",
    )


# Sizes are from Table 1. Dropout is as in the released configurations: v2 has none, v1 has 0.1 except for xxlarge.
# albert-xlarge has 16 heads, as its released weights need; the paper's rule H / 64 (§3.1) would give 32 heads and the
# same number of parameters. The BERT models are those of the paper, with its vocabulary of 30,000 pieces.
PRESETS: Final[dict[str, ModelConfig]] = {
    "bert-base": _preset(768, 12, 12, 0.1, bert=True),
    "bert-large": _preset(1024, 24, 16, 0.1, bert=True),
    "bert-xlarge": _preset(2048, 24, 32, 0.1, bert=True),
    "albert-base": _preset(768, 12, 12),
    "albert-large": _preset(1024, 24, 16),
    "albert-xlarge": _preset(2048, 24, 16),
    "albert-xxlarge": _preset(4096, 12, 64),
    "albert-base-v1": _preset(768, 12, 12, 0.1),
    "albert-large-v1": _preset(1024, 24, 16, 0.1),
    "albert-xlarge-v1": _preset(2048, 24, 16, 0.1),
    "albert-xxlarge-v1": _preset(4096, 12, 64),
}


def _guess_model_type(values: Mapping[str, object]) -> str:
    """Return the type of an old config.json without `model_type`: only ALBERT's has an embedding size or groups."""
    has_albert_keys = "embedding_size" in values or "num_hidden_groups" in values
    if isinstance(values.get("hidden_size"), int) and not has_albert_keys:
        return "bert"
    return "albert"
