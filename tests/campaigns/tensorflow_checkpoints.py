"""Write checkpoints with TensorFlow in the format of the releases, convert them, and compare all hidden states.

python -m tests.campaigns.tensorflow_checkpoints OUT

Each checkpoint has the names and shapes of a release (ALBERT base and BERT base) or of a small ALBERT with two groups.
The weights are random. The hidden states are computed twice: from the variables with TensorFlow's operations, and by
`transformers` from the converted directory. The command needs TensorFlow in addition to the packages of the tests.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from albert_cli.console import format_table
from tests.helpers.command import albert
from tests.helpers.tokenizers import train_wordpiece

Variables = dict[str, NDArray[np.float32]]
ReleaseConfig = Mapping[str, Any]
_COMMON_CONFIG: Final[ReleaseConfig] = {
    "hidden_act": "gelu", "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0, "initializer_range": 0.02,
    "max_position_embeddings": 512, "type_vocab_size": 2,
}  # fmt: skip
_ALBERT_CONFIG: Final[ReleaseConfig] = {
    **_COMMON_CONFIG, "vocab_size": 30000, "embedding_size": 128, "num_hidden_groups": 1, "net_structure_type": 0,
    "gap_size": 0, "num_memory_blocks": 0, "inner_group_num": 1, "down_scale_factor": 1,
}  # fmt: skip
RELEASES: Final[Mapping[str, ReleaseConfig]] = {
    "albert_base": {
        **_ALBERT_CONFIG, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
    "albert_groups": {
        **_ALBERT_CONFIG, "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4,
        "intermediate_size": 1024, "num_hidden_groups": 2,
    },
    "bert_base": {
        **_COMMON_CONFIG, "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Release:
    """A kind of release, "albert" or "bert", and its configuration."""

    kind: str
    config: ReleaseConfig

    def layer_scope(self, layer: int) -> str:
        """Return the scope of a layer's variables."""
        if self.kind == "bert":
            return f"bert/encoder/layer_{layer}"
        groups = int(self.config["num_hidden_groups"])
        group = layer * groups // int(self.config["num_hidden_layers"])
        return f"bert/encoder/transformer/group_{group}/inner_group_0"

    def part_scopes(self, layer: int) -> dict[str, str]:
        """Return the scopes of a layer's parts."""
        scope = self.layer_scope(layer)
        if self.kind == "bert":
            parts = {
                "self": "attention/self", "attention_output": "attention/output/dense",
                "norm": "attention/output/LayerNorm", "up": "intermediate/dense", "down": "output/dense",
                "last_norm": "output/LayerNorm",
            }  # fmt: skip
        else:
            parts = {
                "self": "attention_1/self", "attention_output": "attention_1/output/dense", "norm": "LayerNorm",
                "up": "ffn_1/intermediate/dense", "down": "ffn_1/intermediate/output/dense", "last_norm": "LayerNorm_1",
            }  # fmt: skip
        return {part: f"{scope}/{name}" for part, name in parts.items()}


def random_variables(release: Release) -> Variables:
    """Return random weights with the names and shapes of a release, and one moment of Adam.

    The conversion must leave out the moment.
    """
    rng = np.random.default_rng(0)
    config = release.config
    hidden = config["hidden_size"]
    width = config.get("embedding_size", hidden)
    inner = config["intermediate_size"]
    variables: Variables = {}

    def add_normal(name: str, *size: int) -> None:
        variables[name] = rng.normal(0, 0.05, size).astype(np.float32)

    def add_dense(name: str, inputs: int, outputs: int) -> None:
        add_normal(f"{name}/kernel", inputs, outputs)
        add_normal(f"{name}/bias", outputs)

    def add_norm(name: str, size: int) -> None:
        add_normal(f"{name}/beta", size)
        variables[f"{name}/gamma"] = 1 + rng.normal(0, 0.1, size).astype(np.float32)

    add_normal("bert/embeddings/word_embeddings", config["vocab_size"], width)
    add_normal("bert/embeddings/position_embeddings", config["max_position_embeddings"], width)
    add_normal("bert/embeddings/token_type_embeddings", config["type_vocab_size"], width)
    add_norm("bert/embeddings/LayerNorm", width)
    if release.kind == "albert":
        add_dense("bert/encoder/embedding_hidden_mapping_in", width, hidden)
    for layer in range(config["num_hidden_layers"]):
        scopes = release.part_scopes(layer)
        if f"{scopes['up']}/kernel" in variables:  # the layer shares these variables with an earlier one
            continue
        for part in ("query", "key", "value"):
            add_dense(f"{scopes['self']}/{part}", hidden, hidden)
        add_dense(scopes["attention_output"], hidden, hidden)
        add_norm(scopes["norm"], hidden)
        add_dense(scopes["up"], hidden, inner)
        add_dense(scopes["down"], inner, hidden)
        add_norm(scopes["last_norm"], hidden)
    add_dense("bert/pooler/dense", hidden, hidden)
    add_dense("cls/predictions/transform/dense", hidden, width)
    add_norm("cls/predictions/transform/LayerNorm", width)
    add_normal("cls/predictions/output_bias", config["vocab_size"])
    add_normal("cls/seq_relationship/output_weights", 2, hidden)
    add_normal("cls/seq_relationship/output_bias", 2)
    add_normal("bert/pooler/dense/kernel/adam_m", hidden, hidden)
    return variables


def write_checkpoint(variables: Variables, directory: Path, prefix: str) -> None:
    """Write the variables and a step counter with TensorFlow's saver."""
    import tensorflow as tf

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        feeds = {}  # the value of each placeholder
        for name, array in variables.items():
            placeholder = tf.compat.v1.placeholder(tf.float32, array.shape)
            tf.compat.v1.Variable(placeholder, name=name)
            feeds[placeholder] = array
        tf.compat.v1.Variable(np.int64(125_000), name="global_step")
        session.run(tf.compat.v1.global_variables_initializer(), feeds)
        tf.compat.v1.train.Saver().save(session, str(directory / prefix), write_meta_graph=False)


def hidden_states(variables: Variables, release: Release, ids: NDArray[np.int64]) -> list[NDArray[np.float32]]:
    """Compute with TensorFlow the input of the first layer and the output of every layer, [N, S, H]."""
    import tensorflow as tf

    config = release.config
    heads = config["num_attention_heads"]

    def dense(x: Any, name: str) -> Any:
        return tf.matmul(x, variables[f"{name}/kernel"]) + variables[f"{name}/bias"]

    def norm(x: Any, name: str) -> Any:
        mean, variance = tf.nn.moments(x, -1, keepdims=True)
        return (x - mean) / tf.sqrt(variance + 1e-12) * variables[f"{name}/gamma"] + variables[f"{name}/beta"]

    def split_heads(x: Any) -> Any:
        return tf.transpose(tf.reshape(x, (*ids.shape, heads, -1)), (0, 2, 1, 3))

    tables = [variables[f"bert/embeddings/{name}_embeddings"] for name in ("word", "position", "token_type")]
    x = tf.gather(tables[0], ids) + tables[1][: ids.shape[1]] + tables[2][0]
    x = norm(x, "bert/embeddings/LayerNorm")
    if release.kind == "albert":
        x = dense(x, "bert/encoder/embedding_hidden_mapping_in")
    states = [x.numpy()]
    for layer in range(config["num_hidden_layers"]):
        scopes = release.part_scopes(layer)
        query, key, value = (split_heads(dense(x, f"{scopes['self']}/{part}")) for part in ("query", "key", "value"))
        scores = tf.matmul(query, key, transpose_b=True) / np.sqrt(query.shape[-1]).astype(np.float32)
        context = tf.transpose(tf.matmul(tf.nn.softmax(scores), value), (0, 2, 1, 3))
        x = norm(x + dense(tf.reshape(context, x.shape), scopes["attention_output"]), scopes["norm"])
        # ALBERT's code approximates GELU with tanh. BERT's released weights were trained with the exact function.
        inner = tf.nn.gelu(dense(x, scopes["up"]), approximate=release.kind == "albert")
        x = norm(x + dense(inner, scopes["down"]), scopes["last_norm"])
        states.append(x.numpy())
    return states


def check_release(name: str, folder: Path) -> float:
    """Write a checkpoint, convert it, and return the largest difference of any hidden state."""
    release = Release(name.partition("_")[0], RELEASES[name])
    source = folder / name
    vocabulary = train_wordpiece(source / "words")
    (source / "vocab.txt").write_text("\n".join(_pieces(vocabulary)) + "\n", encoding="utf-8")
    (source / f"{release.kind}_config.json").write_text(json.dumps(dict(release.config)), encoding="utf-8")
    variables = random_variables(release)
    prefix = "model.ckpt-best" if release.kind == "albert" else "bert_model.ckpt"
    write_checkpoint(variables, source, prefix)
    albert("convert", source, "--out", folder / f"{name}-converted")
    model = transformers.AutoModel.from_pretrained(folder / f"{name}-converted").eval()
    ids = np.random.default_rng(1).integers(5, 1000, (3, 40))
    with torch.inference_mode():
        converted = model(torch.from_numpy(ids), output_hidden_states=True).hidden_states
    expected = hidden_states(variables, release, ids)
    states = zip(converted, expected, strict=True)
    differences = [np.abs(state.numpy() - expected_state).max() for state, expected_state in states]
    return float(np.max(differences))  # unlike Python's `max`, NaN if one value is NaN


def _pieces(vocabulary: Path) -> list[str]:
    """Return the tokens of a directory in the order of their ids."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(vocabulary)
    return list(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))


def main() -> None:
    """Check every release and print the table; fail if hidden states differ by more than 1e-4."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    differences = {name: check_release(name, out) for name in RELEASES}
    rows = [(name, f"{difference:.1e}") for name, difference in differences.items()]
    print(format_table(("release", "largest difference of a hidden state"), rows))
    assert np.max(list(differences.values())) < 1e-4, "hidden states differ"


if __name__ == "__main__":
    main()
