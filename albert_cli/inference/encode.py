"""`albert encode`: turn texts into vectors with a checkpoint's encoder."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save

from albert_cli import console, store
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.inference.inputs import InputReader, InputRow
from albert_cli.inference.model import Precision, open_for_inference
from albert_cli.inference.predict import InferenceSummary, print_lengths
from albert_cli.inference.run_ahead import run_ahead
from albert_cli.model import hub
from albert_cli.model.heads import BareEncoder
from albert_cli.tasks.base import as_any_tasks, check_finite, iter_evaluation_batches
from albert_cli.tasks.classification import Classification, TextExample
from albert_cli.tasks.features import PairFeatures
from albert_cli.text.read_settings import OnBadBytes
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.device import autocast

Pooling = Literal["mean", "cls", "pooler"]
Vectors = NDArray[np.float32]
_SUFFIXES = (".jsonl", ".safetensors")
TEXTS = Classification(name="", title="", metrics=(), inputs=0)  # reads one text or two, as a classifier does


@dataclass(frozen=True)
class EncodingSummary(InferenceSummary):
    """The result of encoding a file; `dimensions` is the width of a vector."""

    dimensions: int
    pooling: str


def load_encoder(checkpoint: hub.Checkpoint, pooling: Pooling) -> BareEncoder:
    """Load the encoder of any checkpoint; raises `CheckpointError` if weights, or the needed pooler, are missing."""
    if pooling == "pooler" and "encoder.pooler.weight" not in checkpoint.tensors:
        raise CheckpointError(f"{checkpoint.directory}: has no pooler", "use --pooling mean or cls")
    model = BareEncoder(checkpoint.config, pooler=pooling == "pooler")
    hub.load_weights(model, checkpoint, hub.LoadPolicy.ENCODER)
    return model.eval()


@torch.inference_mode()
def encode_features(model: BareEncoder, features: PairFeatures, pooling: Pooling, device: torch.device) -> Vectors:
    """Return the vectors [N, H] float32 of N texts or pairs, in their order.

    `mean` averages the last layer over all tokens of a text, [CLS] and [SEP] included, as sentence-transformers does;
    `cls` is the last layer at [CLS]; `pooler` is that through the pooler, tanh(xW + b).
    """
    result = np.empty((len(features), model.config.hidden_size), np.float32)
    for index, tokens in iter_evaluation_batches(features, device):
        states = model(tokens)
        if pooling == "mean":
            lengths = torch.from_numpy(features.lengths[index]).to(device)
            token_states = states.tokens.float()
            sums = token_states.new_zeros(states.first.shape)
            vectors = sums.index_add(0, torch.repeat_interleave(lengths), token_states) / lengths[:, None]
        elif pooling == "cls":
            vectors = states.first
        else:
            vectors = states.pooled
        result[index] = vectors.float().cpu().numpy()
    check_finite(result)
    return result


def encode_file(
    checkpoint: str,
    input_file: str,
    out: Path | None,
    pooling: Pooling,
    device: str,
    on_bad_bytes: OnBadBytes = "refuse",
    precision: Precision = "auto",
) -> EncodingSummary:
    """Encode every row of a file, or of standard input (`-`), as a vector.

    Inputs are read as by `albert predict`; longer ones are truncated. `out` ends in .jsonl (one object with `id` and
    `vector` per line; None: stdout) or in .safetensors (`vectors` [N, H] float32, in memory until the last row).
    """
    if out is not None and out.suffix not in _SUFFIXES:
        raise ConfigError(f"--out {out}: unknown format", f"use a name that ends in {' or '.join(_SUFFIXES)}")
    opened = open_for_inference(checkpoint, device, precision)
    model = opened.prepare(load_encoder(opened.checkpoint, pooling))
    vocabulary = hub.load_vocabulary(opened.checkpoint)
    length = opened.checkpoint.config.max_position_embeddings
    width = opened.checkpoint.config.hidden_size
    is_tensor = out is not None and out.suffix == ".safetensors"
    started = time.monotonic()
    all_vectors: list[Vectors] = [np.empty((0, width), np.float32)]
    count = 0
    truncated = 0
    longest = 0
    reader = InputReader(as_any_tasks({"": TEXTS})[""], TEXTS.example, on_bad_bytes=on_bad_bytes)
    with ExitStack() as stack:
        stream = None
        if out is not None and not is_tensor:
            stream = stack.enter_context(store.open_text_writer(out))
        for rows, features in run_ahead(_encode_rows(reader.read_chunks(input_file), vocabulary, length)):
            with autocast(opened.precision, opened.device):
                vectors = encode_features(model, features, pooling, opened.device)
            if is_tensor:
                all_vectors.append(vectors)
            elif stream is not None:
                stream.writelines(_format_vectors(rows, vectors))
            else:
                sys.stdout.writelines(map(console.escape_control_chars, _format_vectors(rows, vectors)))
                sys.stdout.flush()
            count += len(rows)
            truncated += features.truncated
            longest = max(longest, int(features.lengths.max(initial=0)))
    if out is not None and is_tensor:
        store.write_bytes(out, save({"vectors": np.concatenate(all_vectors)}, metadata={"pooling": pooling}))
    seconds = time.monotonic() - started
    print_lengths(count, truncated, longest, length, f"lines are longer than {length} tokens")
    return EncodingSummary(
        out=None if out is None else str(out),
        lines=count,
        seconds=round(seconds, 3),
        lines_per_second=round(count / seconds, 1),
        truncated=truncated,
        longest=longest,
        precision=opened.precision,
        dimensions=width,
        pooling=pooling,
    )


def _encode_rows(
    chunks: Iterator[list[InputRow[TextExample]]], vocabulary: Vocabulary, length: int
) -> Iterator[tuple[list[InputRow[TextExample]], PairFeatures]]:
    for rows in chunks:
        yield rows, TEXTS.encode([row.example for row in rows], vocabulary, length)


def _format_vectors(rows: Sequence[InputRow[TextExample]], vectors: Vectors) -> Iterator[str]:
    """Yield a JSON line per row; a float32 is written as the shortest decimal that is read as the same number."""
    for row, vector in zip(rows, vectors, strict=True):
        numbers = ", ".join(map(str, vector))
        yield f'{{"id": {json.dumps(row.example.id, ensure_ascii=False)}, "vector": [{numbers}]}}\n'
