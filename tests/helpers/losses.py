"""The losses of every head on a small model, and a recorder of torch's operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import MultipleChoice, PretrainingModel, QuestionAnswering, SequenceClassifier
from albert_cli.model.packing import pack
from albert_cli.tasks.squad.head import BeamQuestionAnswering, span_loss
from tests.helpers.shapes import TINY, random_batch

CPU = torch.device("cpu")
SHAPE = replace(TINY, hidden_size=32, num_attention_heads=2, intermediate_size=96, num_hidden_layers=3)


class Operations(TorchDispatchMode):
    """A recorder of the operations that torch dispatches and of the types of their results."""

    def __init__(self) -> None:
        super().__init__()
        self.names = set[str]()
        self.types = set[torch.dtype]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(function).removeprefix("aten.").partition(".")[0])
        result = function(*args, **(kwargs or {}))
        results = result if isinstance(result, tuple) else (result,)
        self.types |= {x.dtype for x in results if isinstance(x, Tensor)}
        return result


def losses(shape: ModelConfig = SHAPE, device: torch.device = CPU) -> dict[str, Callable[[], Tensor]]:
    """Return a function for each head, by its name, that computes the loss; all use the same batch."""
    batch = random_batch((12, 7, 9, 12))
    answers = np.array([[3, 4], [0, 0], [2, 2], [5, 7]])
    labels = torch.tensor([0, 1, 1, 0], device=device)
    classifier, choice = SequenceClassifier(shape, 2).to(device), MultipleChoice(shape, 2).to(device)
    spans: list[torch.nn.Module] = [QuestionAnswering(shape).to(device), BeamQuestionAnswering(shape).to(device)]
    model = PretrainingModel(shape).to(device)

    def pretraining() -> Tensor:
        logits = model(pack(batch, device, batch.masked_index))
        masked = F.cross_entropy(logits.masked, torch.from_numpy(batch.masked_labels).long().to(device))
        return masked + F.cross_entropy(logits.sentence_order, labels, ignore_index=-1)

    return {
        "pretraining": pretraining,
        "classifier": lambda: F.cross_entropy(classifier(pack(batch, device)), labels),
        # The 4 sequences are 2 questions of 2 choices.
        "choice": lambda: F.cross_entropy(choice(pack(batch, device)), labels[:2]),
        "squad, linear": lambda: span_loss(spans[0], batch, answers, device),
        "squad, beam": lambda: span_loss(spans[1], batch, answers, device),
    }
