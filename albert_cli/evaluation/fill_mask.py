"""What a pretrained model puts in the place of a masked word: the quickest way to see what it has learnt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch

from albert_cli.errors import InputError
from albert_cli.model import hub
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.packing import pack
from albert_cli.text.vocabulary import Vocabulary

MASK = "[MASK]"


@dataclass
class MaskFiller:
    """A pretrained model with its vocabulary."""

    model: PretrainingModel
    vocabulary: Vocabulary

    @classmethod
    def load(cls, checkpoint: str) -> MaskFiller:
        """Read a pretraining checkpoint; raises `CheckpointError` when it does not fit."""
        found = hub.read(hub.find(checkpoint))
        model = PretrainingModel(found.config)
        hub.load_into(model, found, ["masked"])
        return cls(model.eval(), Vocabulary.load(found.directory))

    @torch.inference_mode()
    def fill(self, text: str, top: int = 5) -> list[list[tuple[str, float]]]:
        """For each `[MASK]` in the text, the likeliest pieces and their probabilities, best first.

        Raises `InputError` without a mask, or where the text is longer than the model's positions.
        """
        ids = self._encode(text)
        masked = np.flatnonzero(ids == self.vocabulary.mask_id).astype(np.int32)
        if not len(masked):
            raise InputError(f"no {MASK} in {text!r}", f"write {MASK} where a word is to be guessed")
        positions = np.arange(len(ids), dtype=np.int32)
        batch = SimpleNamespace(
            ids=ids, segment_ids=np.zeros_like(ids), position_ids=positions, offsets=np.array([0, len(ids)], np.int32)
        )
        probabilities = self.model(pack(batch, torch.device("cpu"), masked)).masked.softmax(-1)
        best = probabilities.topk(top)
        return [
            [(self.vocabulary.decode([i]).strip() or "▁", p) for i, p in zip(row, values, strict=True)]
            for row, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def _encode(self, text: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        v = self.vocabulary
        parts: Sequence[list[int]] = v.encode_batch(text.split(MASK))
        ids = [v.cls_id]
        for number, part in enumerate(parts):
            ids += [v.mask_id] * (number > 0) + list(part)
        ids.append(v.sep_id)
        if len(ids) > self.model.config.max_position_embeddings:
            raise InputError(
                f"{len(ids)} pieces are more than the model's {self.model.config.max_position_embeddings} positions",
                "shorten the text",
            )
        return np.array(ids, np.int32)
