"""Find the ranks and the GPUs that a pretraining run leaves idle, and print how to use them.

The micro-batches of a step do not depend on the number of ranks, so that a run can resume with another number. They are
assigned to the ranks in turn. If a step has fewer micro-batches than ranks, the other ranks only wait.
"""

from __future__ import annotations

import math

import torch

from albert_cli import console
from albert_cli.randomness import Integers
from albert_cli.ranks import RankGroup, world_size
from albert_cli.training.job import split_micro_batches
from albert_cli.training.objectives import group_by_tokens
from albert_cli.training.pretrain_recipe import PretrainRecipe
from albert_cli.training.settings import NEW_RUN_NOTE


def parallel_speedup(batch_size: int, micro_batch_size: int, ranks: int) -> float:
    """Return how many times faster than one rank this number of ranks computes a batch.

    It is the batch size divided by the number of sequences of rank 0, because no other rank has more.
    """
    first_rank = split_micro_batches(batch_size, micro_batch_size, RankGroup(0, ranks))
    return batch_size / sum(stop - start for _, start, stop in first_rank)


def warn_idle_ranks(recipe: PretrainRecipe, lengths: Integers, ranks: int) -> None:
    """Warn if a full batch of a resolved recipe has fewer micro-batches than there are ranks.

    lengths: the numbers of tokens of the sequences of a full batch, [B]. In a text of short documents most are shorter
    than `data.max_seq_length`.
    """
    micro_batches = _count_micro_batches(recipe)
    full_sequences = float(recipe.train.batch_size)
    if recipe.batch.max_micro_tokens:
        micro_batches = len(group_by_tokens(lengths, recipe.batch.max_micro_tokens))
        full_sequences = lengths.sum() / recipe.data.max_seq_length  # sequences of full length with as many tokens
    if micro_batches >= ranks:
        return
    remedy = f"use --nproc {micro_batches}, which is as fast"
    smaller = math.ceil(full_sequences / ranks)
    if smaller < recipe.sequences_per_micro_batch:
        remedy = f"use -s {_format_override(recipe, smaller)}, which samples other dropout masks; {NEW_RUN_NOTE}"
    console.warn(f"a step has micro-batches for only {micro_batches} of {ranks} processes: {remedy}")


def print_idle_gpus(recipe: PretrainRecipe, device: torch.device) -> None:
    """Print how to use the GPUs that a single process leaves idle, if there are any and the batch is large enough."""
    if device.type != "cuda" or world_size() > 1:
        return
    gpus = torch.cuda.device_count()
    override = ""
    used_gpus = gpus
    # On a GPU, micro-batches of "auto" tokens have at most the part of a rank. This count assumes sequences of full
    # length; with shorter ones `warn_idle_ranks` names a smaller limit.
    if recipe.batch.micro_tokens != "auto" and _count_micro_batches(recipe) < gpus:
        smaller = math.ceil(recipe.train.batch_size / gpus)
        used_gpus = math.ceil(recipe.train.batch_size / smaller)
        override = f" -s {_format_override(recipe, smaller)}, in a new run,"
    if used_gpus > 1:
        console.info(f"uses 1 of {gpus} GPUs; --nproc {used_gpus}{override} uses {used_gpus}")


def _count_micro_batches(recipe: PretrainRecipe) -> int:
    """Count the micro-batches of a full batch of sequences of full length."""
    return math.ceil(recipe.train.batch_size / recipe.sequences_per_micro_batch)


def _format_override(recipe: PretrainRecipe, sequences: int) -> str:
    """Return the override with which a micro-batch has at most this number of sequences of full length."""
    if recipe.batch.max_micro_tokens:
        return f"batch.micro_tokens={sequences * recipe.data.max_seq_length}"
    return f"train.micro_batch_size={sequences}"
