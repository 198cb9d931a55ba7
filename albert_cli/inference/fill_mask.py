"""`albert fill-mask`: predict the most probable tokens for each `[MASK]` in texts with a pretrained model.

Shapes: M masked positions, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from albert_cli.data.batches import PackedBatch
from albert_cli.errors import InputError
from albert_cli.inference.model import InferenceCheckpoint, Precision, open_for_inference
from albert_cli.model import hub, loading
from albert_cli.model.encoder import MIN_PREPACKED_ROWS
from albert_cli.model.heads import MaskedLanguageModel
from albert_cli.model.packing import pack
from albert_cli.tasks.base import check_finite
from albert_cli.tasks.features import Int32
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.device import autocast

MASK: Final = "[MASK]"


@dataclass(frozen=True)
class TokenPrediction:
    """A predicted token: its text, its probability, and its piece, which is its entry in the vocabulary (`▁file`)."""

    text: str
    probability: float
    piece: str


@dataclass(frozen=True)
class FilledText:
    """A text, and for each of its masks the predictions, the most probable one first."""

    text: str
    masks: list[list[TokenPrediction]]


@dataclass(frozen=True)
class FilledTexts:
    """The result of `albert fill-mask`."""

    texts: list[FilledText]
    precision: str  # of matmuls: "fp32" or "bf16"
    matmul: str  # the library of matmuls


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
    loading.load_weights(model, opened.checkpoint, loading.LoadPolicy.HEADS)
    max_length = opened.checkpoint.config.max_position_embeddings
    encoded = [encode_masked(text, vocabulary) for text in texts]
    for text, ids in zip(texts, encoded, strict=True):
        if len(ids) > max_length:
            message = f"{text[:40]!r}…: {len(ids)} tokens, the model has {max_length} positions"
            raise InputError(message, "shorten the text")
    # Each text is a batch. With fewer tokens, the measurement takes longer than the faster library saves.
    if any(len(ids) >= MIN_PREPACKED_ROWS for ids in encoded):
        opened = opened.with_faster_matmul()
    model = opened.prepare(model)
    filled = []
    for text, ids in zip(texts, encoded, strict=True):
        filled.append(FilledText(text, _predict_masks(model, ids, vocabulary, top, opened)))
    return FilledTexts(filled, opened.settings.precision, opened.settings.matmul)


def encode_masked(text: str, vocabulary: Vocabulary) -> Int32:
    """Return the ids of `[CLS] text [SEP]`, int32 [T]; raise `InputError` without a mask."""
    *texts_before_masks, last_text = text.split(MASK)
    if not texts_before_masks:
        raise InputError(f"no {MASK} in {text!r}", f"write {MASK} in place of a word")
    # A mask replaces a word and the space before it, as in pretraining, so this space does not become a token.
    parts = [*(part.rstrip() for part in texts_before_masks), last_text]
    ids = [vocabulary.cls_id, *vocabulary.encode(parts[0])]
    for part in parts[1:]:
        ids.append(vocabulary.mask_id)
        # A part without a space after the mask, such as a full stop, continues the masked word.
        if part[:1].isspace():
            ids += vocabulary.encode(part)
        else:
            ids += vocabulary.encode_continuation(part)
    ids.append(vocabulary.sep_id)
    return np.array(ids, np.int32)


@torch.inference_mode()
def _predict_masks(
    model: MaskedLanguageModel, ids: Int32, vocabulary: Vocabulary, top: int, opened: InferenceCheckpoint
) -> list[list[TokenPrediction]]:
    """Return the `top` most probable tokens for every mask of a text; ids: int32 [T]."""
    masked_index = np.flatnonzero(ids == vocabulary.mask_id).astype(np.int32)
    no_labels = np.zeros(0, np.int32)
    batch = PackedBatch(
        ids=ids,
        segment_ids=np.zeros_like(ids),
        position_ids=np.arange(len(ids), dtype=np.int32),
        offsets=np.array([0, len(ids)], np.int32),
        masked_index=masked_index,
        masked_labels=no_labels,
        order_labels=no_labels,
    )
    with autocast(opened.settings.precision, opened.device):
        logits_MV = model(pack(batch, opened.device, masked_index))
    probabilities = logits_MV.float().softmax(-1)
    check_finite(probabilities.cpu().numpy())
    best = probabilities.topk(min(top, probabilities.shape[-1]))
    predictions_by_mask = []
    for token_ids, values in zip(best.indices.tolist(), best.values.tolist(), strict=True):
        predictions = []
        for token_id, probability in zip(token_ids, values, strict=True):
            piece = vocabulary.pieces[token_id]
            text = vocabulary.decode([token_id]) or piece  # padding decodes to an empty text
            predictions.append(TokenPrediction(text, probability, piece))
        predictions_by_mask.append(predictions)
    return predictions_by_mask


def format_filled_texts(result: FilledTexts) -> str:
    """Return each text, followed by the predictions for its masks."""
    lines = []
    for filled in result.texts:
        lines.append(filled.text)
        for number, predictions in enumerate(filled.masks, start=1):
            if len(filled.masks) > 1:
                lines.append(f"  {MASK} {number}")
            lines += [f"  {prediction.probability:6.1%}  {prediction.text}" for prediction in predictions]
    return "\n".join(lines)
