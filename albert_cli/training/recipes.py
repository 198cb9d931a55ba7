"""Checking a recipe's file without running it."""

from __future__ import annotations

from typing import Any

from albert_cli import config
from albert_cli.training.pretrain_recipe import PretrainRecipe
from albert_cli.training.task_recipe import FinetuneRecipe
from albert_cli.training.verify_recipe import VerifyRecipe, is_verify


def validate(name: str) -> tuple[dict[str, Any], str]:
    """The resolved recipe as values and as TOML; raises `ConfigError` naming the first thing that is wrong.

    A recipe that names a `task` is for fine-tuning, one with `expected` scores to verify, any other for pretraining.
    """
    values = config.read_recipe(name)
    schema: type[Any] = FinetuneRecipe if "task" in values else VerifyRecipe if is_verify(values) else PretrainRecipe
    resolved = config.load(schema, name)
    return config.as_dict(resolved), config.dump_toml(resolved).rstrip()
