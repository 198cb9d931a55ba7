"""Compute the gradients of a pretraining job, and create a training loop for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from albert_cli import config
from albert_cli.ranks import RankGroup
from albert_cli.training.loop import Loop, accumulate
from albert_cli.training.objectives import PretrainingJob
from albert_cli.training.optimizers import make_optimizer
from albert_cli.training.pretrain_recipe import PretrainRecipe

MakeJob = Callable[..., PretrainingJob]


def gradients(job: PretrainingJob, step: int = 3) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Return the losses of a step by name, and the gradients by parameter."""
    job.model.zero_grad()
    means, _ = accumulate(job, job.sample_step(step, RankGroup()), step, RankGroup())
    losses = {name: float(means[name]) for name in job.loss_names}
    return losses, {name: p.grad.clone() for name, p in job.model.named_parameters() if p.grad is not None}


def make_loop(job: PretrainingJob, out: Path, recipe: Path, *overrides: str) -> Loop[Any]:
    """Create a training loop that writes to `out`; the job gets the settings of the recipe with these overrides."""
    resolved = config.load_recipe(PretrainRecipe, str(recipe), ["model.vocab_size=300", *overrides])
    job.settings = resolved
    out.mkdir(exist_ok=True)
    return Loop(job, make_optimizer(job.model, resolved.optimizer), resolved.schedule, out, RankGroup())
