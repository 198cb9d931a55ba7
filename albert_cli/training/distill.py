"""Learning from a larger model beside the text: its distribution over the vocabulary at every masked position."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Gt, Lt
from torch import Tensor

from albert_cli.errors import ConfigError
from albert_cli.model import hub
from albert_cli.model.heads import MaskedLanguageModel
from albert_cli.model.packing import PackedTokens
from albert_cli.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class DistillSettings:
    """`[distill]`: a `teacher` (a checkpoint directory, a run, a Hub id) of the same vocabulary to learn from.

    Its loss is added to the others', `weight` times: the divergence of the student's distribution over the vocabulary
    from the teacher's, both softened by `temperature`, whose square it is multiplied with (Hinton et al., 2015). The
    first start fills in `fingerprint`, and a run goes on with no other teacher.
    """

    teacher: str
    weight: Annotated[float, Gt(0), Lt(math.inf)] = 1.0
    temperature: Annotated[float, Gt(0), Lt(math.inf)] = 2.0
    fingerprint: str | None = None

    def resolved(self) -> DistillSettings:
        """The same with the teacher's fingerprint; raises `ConfigError` where it names another."""
        found = hub.verify_fingerprint(
            hub.find_checkpoint(self.teacher), "teacher", "distill.fingerprint", self.fingerprint
        )
        return replace(self, fingerprint=found)


@dataclass(frozen=True)
class Teacher:
    """A frozen model to learn from, and how its distribution counts."""

    model: MaskedLanguageModel
    settings: DistillSettings

    @classmethod
    def read(cls, settings: DistillSettings, vocabulary: Vocabulary, length: int, device: torch.device) -> Teacher:
        """Raises `ConfigError` where it has another vocabulary, or too few positions for sequences of `length`."""
        found = hub.read_checkpoint(hub.find_checkpoint(settings.teacher))
        if hub.load_vocabulary(found).fingerprint != vocabulary.fingerprint:
            raise ConfigError(
                f"{found.directory}: was trained with another vocabulary than that of the data",
                f"make the data with the teacher's: albert data … --vocab {found.directory}",
            )
        if (positions := found.config.max_position_embeddings) < length:
            raise ConfigError(
                f"{found.directory}: has {positions} positions, and sequences have up to {length} tokens",
                f"-s data.max_seq_length={positions}",
            )
        model = MaskedLanguageModel(found.config)
        hub.load_weights(model, found, hub.LoadPolicy.HEADS)
        return cls(model.to(device).eval().requires_grad_(False), settings)

    def loss(self, student_MV: Tensor, tokens: PackedTokens) -> Tensor:
        """The student's divergence from the teacher's distribution, summed over the masked positions."""
        with torch.no_grad():
            teacher_MV = self.model(tokens)
        t = self.settings.temperature
        ours, theirs = (F.log_softmax(x.float() / t, -1) for x in (student_MV, teacher_MV))
        return self.settings.weight * t * t * F.kl_div(ours, theirs, reduction="sum", log_target=True)
