"""`albert encode`: text in, one vector out for each, from a checkpoint's encoder as it is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save

from albert_cli import store
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.inference.predict import open_for_inference, read_chunks, write_answers
from albert_cli.model import hub
from albert_cli.model.heads import BareEncoder
from albert_cli.tasks.base import check_finite, iter_evaluation_batches
from albert_cli.tasks.classification import Classification, TextExample
from albert_cli.tasks.features import PairFeatures
from albert_cli.text.read_settings import OnBadBytes

Pooling = Literal["mean", "cls", "pooler"]
Vectors = NDArray[np.float32]


def load_encoder(found: hub.Checkpoint, pooling: Pooling) -> BareEncoder:
    """The encoder of any checkpoint; raises `CheckpointError` when it is not whole, or has no pooler to use."""
    if pooling == "pooler" and "encoder.pooler.weight" not in found.tensors:
        raise CheckpointError(f"{found.directory}: has no pooler", "--pooling mean or cls")
    model = BareEncoder(found.config, pooler=pooling == "pooler")
    hub.load_weights(model, found)
    return model.eval()


@torch.inference_mode()
def encode_features(model: BareEncoder, features: PairFeatures, pooling: Pooling, device: torch.device) -> Vectors:
    """The vectors [N, H] float32 of N texts or pairs, in their order.

    `mean` averages the last layer over all of a text's tokens, [CLS] and [SEP] among them, as sentence-transformers
    does; `cls` takes the last layer at [CLS]; `pooler` takes that through the pooler, tanh(xW + b).
    """
    found = np.empty((len(features), model.config.hidden_size), np.float32)
    for index, tokens in iter_evaluation_batches(features, device):
        states = model(tokens)
        if pooling == "mean":
            lengths = torch.from_numpy(features.lengths[index]).to(device)
            sums = states.first.new_zeros(states.first.shape)
            vectors = sums.index_add(0, torch.repeat_interleave(lengths), states.tokens) / lengths[:, None]
        else:
            vectors = states.first if pooling == "cls" else states.pooled
        found[index] = vectors.float().cpu().numpy()
    check_finite(found)
    return found


def encode_file(
    checkpoint: str,
    input_file: str,
    out: Path | None,
    pooling: Pooling,
    device: str,
    on_bad_bytes: OnBadBytes = "refuse",
) -> dict[str, Any]:
    """The vector of each line of a file (or stdin, `-`): JSON lines to stdout or to `out`, or one tensor; a summary.

    Lines are those of `Classification.example`; what is too long is cut. `out` ends in .jsonl (an object with `id` and
    `vector` a line) or in .safetensors (`vectors` [N, H] float32, in memory until the last line; row i is line i). Both
    hold the same numbers.
    """
    if out is not None and out.suffix not in (".jsonl", ".safetensors"):
        raise ConfigError(f"--out {out}: unknown kind of file", "let its name end in .jsonl or .safetensors")
    found, target = open_for_inference(checkpoint, device)
    model, vocabulary = load_encoder(found, pooling).to(target), hub.load_vocabulary(found)
    length, width = found.config.max_position_embeddings, found.config.hidden_size
    texts = Classification(name="", title="", metrics=(), inputs=0)  # one or two, as a classifier reads them
    as_tensor = out is not None and out.suffix == ".safetensors"
    rows: list[Vectors] = [np.empty((0, width), np.float32)]

    def answer(examples: Sequence[TextExample]) -> tuple[Iterable[str], int, int]:
        features = texts.encode(examples, vocabulary, length)
        vectors = encode_features(model, features, pooling, target)
        if as_tensor:
            rows.append(vectors)
        lines = () if as_tensor else _format_vectors(examples, vectors)
        return lines, features.truncated, int(features.lengths.max(initial=0))

    groups = read_chunks(input_file, on_bad_bytes, texts.example)
    too_long = f"lines are longer than {length} tokens"
    summary = write_answers(groups, answer, None if as_tensor else out, length, too_long)
    if out is not None and as_tensor:
        store.write_bytes(out, save({"vectors": np.concatenate(rows)}, metadata={"pooling": pooling}))
    return {**summary, "out": str(out), "dimensions": width, "pooling": pooling}


def _format_vectors(examples: Sequence[TextExample], vectors: Vectors) -> Iterator[str]:
    """One JSON line per text; a float32 is written as the shortest decimal that is read as the same one."""
    for example, vector in zip(examples, vectors, strict=True):
        numbers = ", ".join(map(str, vector))
        yield f'{{"id": {json.dumps(example.id, ensure_ascii=False)}, "vector": [{numbers}]}}\n'
