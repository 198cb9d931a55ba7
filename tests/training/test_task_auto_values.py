"""Tests of `training.task_auto_values`, and of the recipes whose "auto" values it replaces."""

from __future__ import annotations

from itertools import pairwise

import pytest

from albert_cli.errors import ConfigError
from albert_cli.training.task_auto_values import DROPOUT, LEARNING_RATE, choose_epochs
from albert_cli.training.task_recipe import load_recipe

COUNTS = (1, 50, 100, 500, 2_000, 20_000, 50_000, 1_000_000)


def test_more_labels_have_fewer_epochs_but_more_updates() -> None:
    epochs = [choose_epochs(count) for count in COUNTS]
    updates = [count * value for count, value in zip(COUNTS, epochs, strict=True)]
    assert all(fewer_labels >= more_labels for fewer_labels, more_labels in pairwise(epochs))
    assert all(fewer_labels < more_labels for fewer_labels, more_labels in pairwise(updates))
    assert epochs[-1] >= 1


def test_recipe_auto_values_follow_the_label_count() -> None:
    recipe = load_recipe("table", (), "mini")
    assert (recipe.schedule.epochs, recipe.optimizer.lr, recipe.model.dropout) == ("auto", "auto", "auto")
    resolved = recipe.with_auto_values(500)
    assert resolved.schedule.epochs == choose_epochs(500)
    assert resolved.optimizer.lr == LEARNING_RATE
    assert resolved.model.encoder_dropout == DROPOUT


def test_recipe_numbers_override_auto_values() -> None:
    overrides = ("schedule.epochs=3", "optimizer.lr=1e-4", "model.dropout=0.3")
    recipe = load_recipe("table", overrides, "mini")
    assert recipe.with_auto_values(500) == recipe


def test_auto_learning_rate_with_adamw_raises() -> None:
    recipe = load_recipe("table", (), "mini")
    with pytest.raises(ConfigError, match="only with LAMB"):
        recipe.optimizer.with_lr_for(32)
