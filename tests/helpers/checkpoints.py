"""Checkpoints with random weights, for tests that need no pretrained model."""

from __future__ import annotations

from pathlib import Path

import torch

from albert_cli import store
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import PretrainingModel
from albert_cli.text.vocabulary import Vocabulary


def untrained(directory: Path, shape: ModelConfig, vocabulary: Path) -> Path:
    """Write a pretraining checkpoint with random weights, always the same ones, and return its directory."""
    torch.manual_seed(0)
    with store.commit_directory(directory, "checkpoint") as staging:
        hub.write_checkpoint(PretrainingModel(shape), staging, "ForPreTraining")
        Vocabulary.load(vocabulary).copy_to(staging, shape.max_position_embeddings)
    return directory
