"""`albert encode`: text in, one vector out for each, from a checkpoint's encoder as it is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save
from torch import Tensor

from albert_cli import console, store
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.evaluation.predict import read_chunks, write_answers
from albert_cli.model import hub
from albert_cli.model.heads import BareEncoder, EncoderStates
from albert_cli.tasks.base import check_finite, evaluation_batches
from albert_cli.tasks.classification import Example, encode, text_example
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training import capacity
from albert_cli.training.device import choose_device

Pooling = Literal["mean", "cls", "pooler"]
Vectors = NDArray[np.float32]


@dataclass
class TextEncoder:
    """A checkpoint's encoder with its vocabulary, and how a text's states become one vector.

    `mean` averages the last layer over all of a text's tokens, [CLS] and [SEP] among them, as sentence-transformers
    does; `cls` takes the last layer at [CLS]; `pooler` takes that through the pooler, tanh(xW + b).
    """

    model: BareEncoder
    vocabulary: Vocabulary
    device: torch.device
    pooling: Pooling
    truncated: int = 0
    longest: int = 0  # input so far, in tokens

    @classmethod
    def load(cls, checkpoint: str, pooling: Pooling = "mean", device: str = "cpu") -> TextEncoder:
        """Read any checkpoint; raises `CheckpointError` when its encoder is not whole, or has no pooler to use."""
        target, found = choose_device(device), hub.read(hub.find(checkpoint))
        if pooling == "pooler" and "encoder.pooler.weight" not in found.tensors:
            raise CheckpointError(f"{found.directory}: has no pooler", "--pooling mean or cls")
        capacity.warn_of_answering(found.config, target)
        model = BareEncoder(found.config, pooler=pooling == "pooler")
        hub.load_into(model, found)
        return cls(model.to(target).eval(), hub.vocabulary_of(found), target, pooling)

    @torch.inference_mode()
    def vectors(self, examples: Sequence[Example]) -> Vectors:
        """The vectors [N, H] float32 of N texts or pairs, in their order; what is too long is cut, and counted."""
        features = encode(examples, self.vocabulary, self.model.config.max_position_embeddings)
        self.truncated += features.truncated
        self.longest = max(self.longest, int(features.lengths.max(initial=0)))
        found = np.empty((len(features), self.model.config.hidden_size), np.float32)
        for index, _, tokens in evaluation_batches(features, self.device):
            lengths = torch.from_numpy(features.lengths[index])
            found[index] = self._pool(self.model(tokens), lengths).float().cpu().numpy()
        check_finite(found)
        return found

    def _pool(self, states: EncoderStates, lengths: Tensor) -> Tensor:
        """The states of a batch to its vectors [N, H]; `lengths` [N] are in tokens."""
        if self.pooling == "cls":
            return states.first
        if self.pooling == "pooler":
            assert states.pooled is not None, "made with a pooler"
            return states.pooled
        lengths = lengths.to(self.device)
        text_of_token = torch.repeat_interleave(lengths)
        sums = states.first.new_zeros(states.first.shape).index_add(0, text_of_token, states.tokens)
        return sums / lengths[:, None]


def encode_file(
    checkpoint: str, input_file: str, out: Path | None, pooling: Pooling, device: str, on_bad_bytes: str = "refuse"
) -> dict[str, Any] | None:
    """The vector of each line of a file (or stdin, `-`): JSON lines to stdout or to `out`, or one tensor to `out`.

    Lines are those of `text_example`. `out` ends in .jsonl (an object with `id` and `vector` a line) or in
    .safetensors (`vectors` [N, H] float32, in memory until the last line; row i is line i). Both hold the same
    numbers. Returns a summary when `out` is given.
    """
    if out is not None and out.suffix not in (".jsonl", ".safetensors"):
        raise ConfigError(f"--out {out}: unknown kind of file", "let its name end in .jsonl or .safetensors")
    encoder = TextEncoder.load(checkpoint, pooling, device)
    as_tensor = out is not None and out.suffix == ".safetensors"
    rows: list[Vectors] = []

    def answer(examples: Sequence[Example]) -> Iterable[str]:
        vectors = encoder.vectors(examples)
        if not as_tensor:
            return _lines(examples, vectors)
        rows.append(vectors)
        return ()

    groups = read_chunks(input_file, on_bad_bytes, text_example)
    summary = write_answers(groups, answer, None if as_tensor else out)
    shape = encoder.model.config
    if encoder.truncated:
        console.note(
            f"{encoder.truncated:,} of {summary['lines']:,} lines are longer than {shape.max_position_embeddings} "
            "tokens and were cut"
        )
    console.note(f"read: up to {encoder.longest:,} tokens of each of {summary['lines']:,} lines")
    if out is None:
        return None
    if as_tensor:
        out.parent.mkdir(parents=True, exist_ok=True)
        vectors = np.concatenate(rows) if rows else np.empty((0, shape.hidden_size), np.float32)
        store.write_bytes(out, save({"vectors": vectors}, metadata={"pooling": pooling}))
    about = {"dimensions": shape.hidden_size, "pooling": pooling}
    return {"out": str(out), **summary, **about, "truncated": encoder.truncated, "longest": encoder.longest}


def _lines(examples: Sequence[Example], vectors: Vectors) -> Iterator[str]:
    """One JSON line per text; a float32 is written as the shortest decimal that is read as the same one."""
    for example, vector in zip(examples, vectors, strict=True):
        numbers = ", ".join(map(str, vector))
        yield f'{{"id": {json.dumps(example.id, ensure_ascii=False)}, "vector": [{numbers}]}}\n'
