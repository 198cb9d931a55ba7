"""`albert fill-mask`: what a model puts in the place of a masked word, the quickest way to see what it has learnt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from albert_cli.data.batches import PackedBatch
from albert_cli.errors import InputError
from albert_cli.model import hub
from albert_cli.model.heads import MaskedLanguageModel
from albert_cli.model.packing import pack
from albert_cli.tasks.base import check_finite
from albert_cli.text.clean import without_surrogates
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.device import choose_device

MASK = "[MASK]"


class Guess(NamedTuple):
    """What may stand in the place of a mask: as text, with its probability, and as the vocabulary's piece."""

    text: str
    probability: float
    piece: str


@dataclass
class MaskFiller:
    """A pretrained model with its vocabulary."""

    model: MaskedLanguageModel
    vocabulary: Vocabulary
    device: torch.device

    @classmethod
    def load(cls, checkpoint: str, device: str = "cpu") -> MaskFiller:
        """Read a checkpoint with a masked-language head; raises `CheckpointError` for one without."""
        target, found = choose_device(device), hub.read(hub.find(checkpoint))
        model = MaskedLanguageModel(found.config)
        hub.load_into(model, found, ["masked"])
        return cls(model.to(target).eval(), hub.vocabulary_of(found), target)

    @torch.inference_mode()
    def fill(self, text: str, top: int = 5) -> list[list[Guess]]:
        """For each `[MASK]` in the text, the likeliest tokens and their probabilities, best first.

        Raises `InputError` without a mask, or where the text is longer than the model's positions.
        """
        ids = self._encode(text)
        masked = np.flatnonzero(ids == self.vocabulary.mask_id).astype(np.int32)
        positions = np.arange(len(ids), dtype=np.int32)
        none, offsets = np.zeros(0, np.int32), np.array([0, len(ids)], np.int32)
        batch = PackedBatch(ids, np.zeros_like(ids), positions, offsets, masked, none, none)
        probabilities = self.model(pack(batch, self.device, masked)).float().softmax(-1)
        check_finite(probabilities.cpu().numpy())
        best = probabilities.topk(min(top, probabilities.shape[-1]))
        v = self.vocabulary
        return [
            [Guess(v.decode([i]) or v.pieces[i], p, v.pieces[i]) for i, p in zip(row, values, strict=True)]
            for row, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def _encode(self, text: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """`[CLS] text [SEP]`, int32 [T]."""
        if MASK not in text:
            raise InputError(f"no {MASK} in {text!r}", f"write {MASK} where a word is to be guessed")
        ids = self.vocabulary.tokenizer(special=True).encode(without_surrogates(text)).ids
        limit = self.model.config.max_position_embeddings
        if len(ids) > limit:
            raise InputError(f"{text[:40]!r}…: {len(ids)} tokens, the model has {limit} positions", "shorten the text")
        return np.array(ids, np.int32)


def fill_masks(checkpoint: str, texts: Sequence[str], top: int, device: str) -> dict[str, Any]:
    """The guesses for every mask of every text, as `--json` prints them."""
    filler = MaskFiller.load(checkpoint, device)
    filled = [
        {"text": text, "masks": [[g._asdict() for g in mask] for mask in filler.fill(text, top)]} for text in texts
    ]
    return {"texts": filled}


def text(result: Mapping[str, Any]) -> str:
    """The result as a person reads it: each text, and below it the guesses for its masks."""
    lines = []
    for entry in result["texts"]:
        lines.append(entry["text"])
        for number, guesses in enumerate(entry["masks"], start=1):
            lines += [f"  {MASK} {number}"] * (len(entry["masks"]) > 1)
            lines += [f"  {guess['probability']:6.1%}  {guess['text']}" for guess in guesses]
    return "\n".join(lines)
