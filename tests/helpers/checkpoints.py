"""Checkpoints with random weights, for tests that need no pretrained model."""

from __future__ import annotations

import shutil
from dataclasses import replace
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


def replace_steps(run: Path, shape: ModelConfig, vocabulary: Path) -> None:
    """Save a newer step with other weights in a run and delete its older steps, as pretraining does."""
    older = store.saved_steps(run)
    newer = run / f"step-{store.step_number(older[-1]) + 10:08d}"
    untrained(newer, replace(shape, initializer_range=0.2), vocabulary)
    for step in older:
        shutil.rmtree(step)
