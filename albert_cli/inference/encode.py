"""`albert encode`: turn texts into vectors with a checkpoint's encoder.

A second thread tokenizes the next chunk of texts while the model computes the vectors of the current chunk.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save

from albert_cli import console, store
from albert_cli.data.run_ahead import run_ahead
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.inference.inputs import InputRow
from albert_cli.inference.model import Precision, open_for_inference
from albert_cli.inference.outputs import write_to_stdout
from albert_cli.inference.predict import InferenceSummary, InputTotals, read_rows, tokenize_rows
from albert_cli.inference.sentence_modules import SentenceSettings, read_sentence_settings
from albert_cli.model import hub, loading
from albert_cli.model.heads import BareEncoder
from albert_cli.tasks.base import AnyTask, as_any_task, check_finite, iter_evaluation_batches
from albert_cli.tasks.classification import Classification, TextExample
from albert_cli.tasks.features import Features, PairFeatures
from albert_cli.text.read_settings import OnBadBytes
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.device import autocast

Pooling = Literal["mean", "cls", "pooler"]
Vectors = NDArray[np.float32]
_SUFFIXES = (".jsonl", ".safetensors")
WriteVectors = Callable[[Sequence[InputRow], Vectors], None]  # writes the vectors [N, H] of N rows
_ONE_OR_TWO_TEXTS = 0  # value of `Classification.inputs`: an input line is one text or a pair of texts


@dataclass(frozen=True, kw_only=True)
class _TextReader(Classification):
    """A task without labels and metrics, which only reads texts and pairs as a classifier does.

    sentence_settings: of the model, if it is one of sentence-transformers, which changes the texts that it tokenizes.
    """

    sentence_settings: SentenceSettings

    def encode(self, examples: Sequence[TextExample], vocabulary: Vocabulary, max_seq_length: int) -> PairFeatures:
        """Put the model's prompt before each text or pair, lower-case the texts if the model requires it, and encode.

        As in sentence-transformers, the second text of a pair has no prompt.
        """
        prepared = []
        for example in examples:
            text_a = self.sentence_settings.prompt + example.text_a
            text_b = example.text_b
            if self.sentence_settings.lowercase:
                text_a = text_a.lower()
                text_b = None if text_b is None else text_b.lower()
            prepared.append(replace(example, text_a=text_a, text_b=text_b))
        return super().encode(prepared, vocabulary, max_seq_length)


def _text_reader(settings: SentenceSettings) -> AnyTask:
    """Return the task that reads texts for a model with these settings."""
    return as_any_task(_TextReader(name="", title="", metrics=(), inputs=_ONE_OR_TWO_TEXTS, sentence_settings=settings))


TEXT_READER = _text_reader(SentenceSettings())


@dataclass(frozen=True)
class EncodingSummary(InferenceSummary):
    """The result of encoding a file; `dimensions` is the length of a vector, `pooling` is as in `encode_features`."""

    dimensions: int
    pooling: str


def load_encoder(checkpoint: hub.Checkpoint, pooling: Pooling) -> BareEncoder:
    """Load the encoder of any checkpoint, with its pooler if `pooling` needs it.

    Raises `CheckpointError` if a weight or the pooler is missing.
    """
    if pooling == "pooler" and "encoder.pooler.weight" not in checkpoint.tensors:
        raise CheckpointError(f"{checkpoint.directory}: has no pooler", "use --pooling mean or cls")
    model = BareEncoder(checkpoint.config, pooler=pooling == "pooler")
    loading.load_weights(model, checkpoint, loading.LoadPolicy.ENCODER)
    return model.eval()


@torch.inference_mode()
def encode_features(model: BareEncoder, features: Features, pooling: Pooling, device: torch.device) -> Vectors:
    """Return the vectors [N, H] float32 of N texts or pairs, in the order of the features.

    pooling: "mean" averages the last layer's states over all tokens of an input, [CLS] and [SEP] included, as
    sentence-transformers does; "cls" is the state at [CLS]; "pooler" is the pooler's output for this state,
    tanh(xW + b). Raises `DivergedError` for a vector that is not finite.
    """
    result = np.empty((len(features), model.config.hidden_size), np.float32)
    for index, tokens in iter_evaluation_batches(features, device):
        states = model(tokens)  # `states.tokens` [T, H]: the last layer's states for the tokens of all inputs
        if pooling == "mean":
            lengths = torch.from_numpy(features.lengths[index]).to(device)
            input_of_token = torch.repeat_interleave(lengths)  # the index of each token's input in the batch, [T]
            token_states = states.tokens.float()
            sums = token_states.new_zeros(states.first.shape).index_add(0, input_of_token, token_states)
            vectors = sums / lengths[:, None]
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
    pooling: Pooling | None,
    device: str,
    on_bad_bytes: OnBadBytes = "refuse",
    precision: Precision = "auto",
) -> EncodingSummary:
    """Encode every row of a file, or of standard input (`-`), as a vector.

    Inputs are read as by `albert predict`, and truncated to the model's positions, or to the smaller limit of a
    sentence-transformers model. The texts get the default prompt of such a model, and are lower-cased if it requires
    this. Without `pooling`, it is that of such a model, or else "mean". `out` ends in .jsonl (one object with `id` and
    `vector` per line) or in .safetensors (`vectors` [N, H] float32, in memory until the last row); without `out`, JSON
    lines go to stdout.
    """
    if out is not None and out.suffix not in _SUFFIXES:
        raise ConfigError(f"--out {out}: unknown format", f"use a name that ends in {' or '.join(_SUFFIXES)}")
    opened = open_for_inference(checkpoint, device, precision).with_faster_matmul()
    settings = read_sentence_settings(opened.checkpoint.directory)
    pooling = _choose_pooling(pooling, settings, opened.checkpoint.directory)
    model = opened.prepare(load_encoder(opened.checkpoint, pooling))
    vocabulary = hub.load_vocabulary(opened.checkpoint)
    positions = opened.checkpoint.config.max_position_embeddings
    limit = min(positions, settings.max_length or positions)
    width = opened.checkpoint.config.hidden_size
    totals = InputTotals()
    reader = _text_reader(settings)
    if settings.prompt:
        console.info(f"{opened.checkpoint.directory}: its default prompt {settings.prompt!r} is put before each text")
    chunks = read_rows(reader, opened.checkpoint.finetuned_task, input_file, on_bad_bytes)
    with _open_vector_writer(out, pooling, width) as write:
        for tokenized in run_ahead(tokenize_rows(chunks, reader, vocabulary, limit), join_seconds=0):
            with autocast(opened.settings.precision, opened.device):
                vectors = encode_features(model, tokenized.features, pooling, opened.device)
            write(tokenized.rows, vectors)
            totals.add(tokenized)
    truncation = f"lines are longer than {limit} tokens"
    summary = totals.summarize(out, opened, limit, truncation)
    return EncodingSummary(**asdict(summary), dimensions=width, pooling=pooling)


def _choose_pooling(requested: Pooling | None, settings: SentenceSettings, directory: Path) -> Pooling:
    """Return the requested pooling, or else the model's if it is "mean" or "cls", or else "mean".

    Prints a warning if the vectors differ from those of sentence-transformers. directory: of the model.
    """
    supported: dict[str | None, Pooling] = {"mean": "mean", "cls": "cls"}
    pooling = requested or supported.get(settings.pooling, "mean")
    if settings.further_modules:
        console.warn(
            f"{directory}: its modules {', '.join(settings.further_modules)} are left out, so the vectors differ from "
            "those of sentence-transformers"
        )
    if settings.pooling not in (None, pooling):
        remedy = f"; use --pooling {settings.pooling}" if settings.pooling in supported else ""
        console.warn(
            f"{directory}: is a sentence-transformers model with pooling {settings.pooling}, not {pooling}{remedy}"
        )
    return pooling


@contextmanager
def _open_vector_writer(out: Path | None, pooling: Pooling, width: int) -> Iterator[WriteVectors]:
    """Open a function that writes the vectors of rows; a file appears only when the context ends without an error."""
    if out is None:
        yield lambda rows, vectors: write_to_stdout(_format_vectors(rows, vectors))
    elif out.suffix == ".safetensors":
        all_vectors = [np.empty((0, width), np.float32)]  # so that an input without rows has a result, too
        yield lambda rows, vectors: all_vectors.append(vectors)
        store.write_bytes(out, save({"vectors": np.concatenate(all_vectors)}, metadata={"pooling": pooling}))
    else:
        with store.open_text_writer(out) as stream:
            yield lambda rows, vectors: stream.writelines(_format_vectors(rows, vectors))


def _format_vectors(rows: Sequence[InputRow], vectors: Vectors) -> Iterator[str]:
    """Yield a JSON line per row; a float32 becomes the shortest decimal number that is read as the same float32."""
    for row, vector in zip(rows, vectors, strict=True):
        numbers = ", ".join(map(str, vector))
        yield f'{{"id": {json.dumps(row.example.id, ensure_ascii=False)}, "vector": [{numbers}]}}\n'
