"""Distill a teacher into the model in training, the student.

At every masked position the student learns the teacher's distribution over the vocabulary. The teacher is usually a
larger model with the same vocabulary.

Shapes: M masked positions, V vocabulary size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Gt, Lt
from torch import Tensor

from albert_cli.errors import ConfigError
from albert_cli.model import hub, loading
from albert_cli.model.heads import MaskedLanguageModel
from albert_cli.model.packing import PackedTokens
from albert_cli.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class DistillSettings:
    """`[distill]`: the `teacher` (a checkpoint directory, a run or a Hub id), and the distillation loss.

    The distillation loss is added to the other losses. It is `weight` times KL(teacher || student), the divergence of
    the two distributions over the vocabulary. `temperature` softens both, and the loss is multiplied by its square
    (Hinton et al., 2015). The first start records the teacher's `fingerprint`, so that resuming with another teacher
    fails.
    """

    teacher: str
    weight: Annotated[float, Gt(0), Lt(math.inf)] = 1.0
    temperature: Annotated[float, Gt(0), Lt(math.inf)] = 2.0
    fingerprint: str | None = None

    def with_fingerprint(self) -> DistillSettings:
        """Return these settings with the teacher's fingerprint.

        Raises `ConfigError` if `fingerprint` is already set and differs.
        """
        directory = hub.find_checkpoint(self.teacher)
        fingerprint = hub.verify_fingerprint(directory, "teacher", "distill.fingerprint", self.fingerprint)
        return replace(self, fingerprint=fingerprint)


@dataclass(frozen=True)
class Teacher:
    """A frozen model to learn from, and the settings of the distillation loss."""

    model: MaskedLanguageModel
    settings: DistillSettings

    @classmethod
    def load(
        cls,
        settings: DistillSettings,
        vocabulary: Vocabulary,
        length: int,
        device: torch.device,
        data: Path | None = None,
    ) -> Teacher:
        """Load a teacher for sequences of up to `length` tokens.

        vocabulary: that of the data directory `data`. Raises `ConfigError` if the teacher has another fingerprint than
        the settings, another vocabulary than the data, or fewer than `length` positions.
        """
        checkpoint = hub.read_checkpoint(hub.find_checkpoint(settings.teacher))
        # The newest step of a run that still trains may have changed since its fingerprint was recorded.
        hub.verify_fingerprint(checkpoint.directory, "teacher", "distill.fingerprint", settings.fingerprint)
        hub.require_same_vocabulary(checkpoint, vocabulary, data)
        positions = checkpoint.config.max_position_embeddings
        if positions < length:
            raise ConfigError(
                f"{checkpoint.directory}: the teacher has only {positions} positions, but sequences have up to "
                f"{length} tokens",
                f"use -s data.max_seq_length={positions}",
            )
        model = MaskedLanguageModel(checkpoint.config)
        loading.load_weights(model, checkpoint, loading.LoadPolicy.HEADS)
        return cls(model.to(device).eval().requires_grad_(False), settings)

    def loss(self, student_MV: Tensor, tokens: PackedTokens) -> Tensor:
        """Return weight * temperature² * KL(teacher || student), a scalar in fp32, summed over the masked positions.

        `student_MV` are the student's logits at the masked positions of `tokens`.
        """
        with torch.no_grad():
            teacher_MV = self.model(tokens)
        temperature = self.settings.temperature
        student_log_probs_MV = F.log_softmax(student_MV.float() / temperature, -1)
        teacher_log_probs_MV = F.log_softmax(teacher_MV.float() / temperature, -1)
        divergence = F.kl_div(student_log_probs_MV, teacher_log_probs_MV, reduction="sum", log_target=True)
        return self.settings.weight * temperature * temperature * divergence
