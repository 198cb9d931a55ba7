"""`albert fill-mask`: show a pretrained model's predictions for masked words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import torch

from albert_cli.data.batches import PackedBatch
from albert_cli.errors import InputError
from albert_cli.inference.model import InferenceCheckpoint, Precision, open_for_inference
from albert_cli.model import hub
from albert_cli.model.heads import MaskedLanguageModel
from albert_cli.model.packing import pack
from albert_cli.tasks.base import check_finite
from albert_cli.tasks.features import Int32
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.device import autocast

MASK: Final = "[MASK]"


@dataclass(frozen=True)
class Guess:
    """A predicted token: its text, its probability and its piece in the vocabulary."""

    text: str
    probability: float
    piece: str


@dataclass(frozen=True)
class FilledText:
    """A text and the guesses for each of its masks, most probable first."""

    text: str
    masks: list[list[Guess]]


@dataclass(frozen=True)
class FilledTexts:
    """The result of `albert fill-mask`."""

    texts: list[FilledText]
    precision: str

    def to_json(self) -> dict[str, object]:
        """Return the record as plain JSON values."""
        return asdict(self)


def fill_masks(
    checkpoint: str, texts: Sequence[str], top: int, device: str, precision: Precision = "auto"
) -> FilledTexts:
    """Predict the `top` most probable tokens for each `[MASK]` of every text.

    Raises `CheckpointError` for a checkpoint without a masked-language head, and `InputError` for a text without a mask
    or with more tokens than the model has positions.
    """
    opened = open_for_inference(checkpoint, device, precision)
    vocabulary = hub.load_vocabulary(opened.checkpoint)
    model = MaskedLanguageModel(opened.checkpoint.config)
    hub.load_weights(model, opened.checkpoint, hub.LoadPolicy.HEADS)
    model = opened.prepare(model)
    max_length = opened.checkpoint.config.max_position_embeddings
    encoded = [_encode_masked(text, vocabulary, max_length) for text in texts]
    filled = [
        FilledText(text, _fill(model, ids, vocabulary, top, opened)) for text, ids in zip(texts, encoded, strict=True)
    ]
    return FilledTexts(filled, opened.precision)


def _encode_masked(text: str, vocabulary: Vocabulary, max_length: int) -> Int32:
    """Encode `[CLS] text [SEP]`, int32 [T]."""
    first, *rest = text.split(MASK)
    if not rest:
        raise InputError(f"no {MASK} in {text!r}", f"write {MASK} in place of a word")
    ids = [vocabulary.cls_id, *vocabulary.encode(first)]
    for part in rest:
        # A word begins only after a space; what directly follows a mask, such as a full stop, continues its word.
        is_word_start = part[:1].isspace()
        ids += [
            vocabulary.mask_id,
            *(vocabulary.encode(part) if is_word_start else vocabulary.encode_continuation(part)),
        ]
    ids.append(vocabulary.sep_id)
    if len(ids) > max_length:
        raise InputError(f"{text[:40]!r}…: {len(ids)} tokens, the model has {max_length} positions", "shorten the text")
    return np.array(ids, np.int32)


@torch.inference_mode()
def _fill(
    model: MaskedLanguageModel, ids: Int32, vocabulary: Vocabulary, top: int, opened: InferenceCheckpoint
) -> list[list[Guess]]:
    """Return the `top` guesses for every mask of a text."""
    masked = np.flatnonzero(ids == vocabulary.mask_id).astype(np.int32)
    positions = np.arange(len(ids), dtype=np.int32)
    offsets = np.array([0, len(ids)], np.int32)
    empty = np.zeros(0, np.int32)
    batch = PackedBatch(ids, np.zeros_like(ids), positions, offsets, masked, empty, empty)
    with autocast(opened.precision, opened.device):
        logits = model(pack(batch, opened.device, masked))
    probabilities = logits.float().softmax(-1)
    check_finite(probabilities.cpu().numpy())
    best = probabilities.topk(min(top, probabilities.shape[-1]))
    guesses = []
    for token_ids, values in zip(best.indices.tolist(), best.values.tolist(), strict=True):
        pairs = zip(token_ids, values, strict=True)
        guesses.append([_guess(vocabulary, token_id, probability) for token_id, probability in pairs])
    return guesses


def _guess(vocabulary: Vocabulary, token_id: int, probability: float) -> Guess:
    piece = vocabulary.pieces[token_id]
    return Guess(vocabulary.decode([token_id]) or piece, probability, piece)


def format_guesses(result: FilledTexts) -> str:
    """Return each text, followed by the guesses for its masks."""
    lines = []
    for filled in result.texts:
        lines.append(filled.text)
        for number, guesses in enumerate(filled.masks, start=1):
            if len(filled.masks) > 1:
                lines.append(f"  {MASK} {number}")
            lines += [f"  {guess.probability:6.1%}  {guess.text}" for guess in guesses]
    return "\n".join(lines)
