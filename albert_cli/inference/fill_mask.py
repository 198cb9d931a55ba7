"""`albert fill-mask`: what a model puts in the place of a masked word, the quickest way to see what it has learnt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from albert_cli.data.batches import PackedBatch
from albert_cli.errors import InputError
from albert_cli.inference.predict import open_for_inference
from albert_cli.model import hub
from albert_cli.model.heads import MaskedLanguageModel
from albert_cli.model.packing import pack
from albert_cli.tasks.base import check_finite
from albert_cli.tasks.features import Int32
from albert_cli.text.vocabulary import Vocabulary

MASK = "[MASK]"


def fill_masks(checkpoint: str, texts: Sequence[str], top: int, device: str) -> dict[str, Any]:
    """For every text and each `[MASK]` in it the likeliest tokens, best first, as `--json` prints them.

    A guess is text with its probability, and the vocabulary's piece. Raises `CheckpointError` without a masked-language
    head, `InputError` for a text without a mask, or with more tokens than the model has positions.
    """
    found, target = open_for_inference(checkpoint, device)
    model, v = MaskedLanguageModel(found.config), hub.load_vocabulary(found)
    hub.load_weights(model, found, hub.LoadPolicy.HEADS)
    model.to(target).eval()
    encoded = [_encode_masked(text, v, found.config.max_position_embeddings) for text in texts]
    masks = [_fill(model, ids, v, top, target) for ids in encoded]
    return {"texts": [{"text": text, "masks": of} for text, of in zip(texts, masks, strict=True)]}


def _encode_masked(text: str, v: Vocabulary, limit: int) -> Int32:
    """`[CLS] text [SEP]`, int32 [T]."""
    first, *others = text.split(MASK)
    if not others:
        raise InputError(f"no {MASK} in {text!r}", f"write {MASK} where a word is to be guessed")
    ids = [v.cls_id, *v.encode(first)]
    for part in others:
        # Only after a space does a word begin: what follows a mask closely, such as a full stop, goes on in it.
        ids += [v.mask_id, *(v.encode(part) if part[:1].isspace() else v.encode_continuation(part))]
    ids.append(v.sep_id)
    if len(ids) > limit:
        raise InputError(f"{text[:40]!r}…: {len(ids)} tokens, the model has {limit} positions", "shorten the text")
    return np.array(ids, np.int32)


@torch.inference_mode()
def _fill(
    model: MaskedLanguageModel, ids: Int32, v: Vocabulary, top: int, device: torch.device
) -> list[list[dict[str, Any]]]:
    """The `top` guesses for every mask in some tokens."""
    masked = np.flatnonzero(ids == v.mask_id).astype(np.int32)
    positions = np.arange(len(ids), dtype=np.int32)
    none, offsets = np.zeros(0, np.int32), np.array([0, len(ids)], np.int32)
    batch = PackedBatch(ids, np.zeros_like(ids), positions, offsets, masked, none, none)
    probabilities = model(pack(batch, device, masked)).float().softmax(-1)
    check_finite(probabilities.cpu().numpy())
    best = probabilities.topk(min(top, probabilities.shape[-1]))
    return [
        [
            {"text": v.decode([i]) or v.pieces[i], "probability": p, "piece": v.pieces[i]}
            for i, p in zip(row, values, strict=True)
        ]
        for row, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def format_guesses(result: Mapping[str, Any]) -> str:
    """The result as a person reads it: each text, and below it the guesses for its masks."""
    lines = []
    for entry in result["texts"]:
        lines.append(entry["text"])
        for number, guesses in enumerate(entry["masks"], start=1):
            lines += [f"  {MASK} {number}"] * (len(entry["masks"]) > 1)
            lines += [f"  {guess['probability']:6.1%}  {guess['text']}" for guess in guesses]
    return "\n".join(lines)
