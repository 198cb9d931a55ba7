"""Fixtures of small tasks and of models fine-tuned on them."""

from __future__ import annotations

from tests.helpers.task_fixtures import encoder, glue, inference, tuned

__all__ = ["encoder", "glue", "inference", "tuned"]
