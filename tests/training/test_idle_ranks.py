"""Tests of the warnings about ranks and GPUs without a micro-batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from albert_cli.training.idle_ranks import parallel_speedup, print_idle_gpus, warn_idle_ranks
from albert_cli.training.pretrain_recipe import BatchSettings, PretrainRecipe
from albert_cli.training.settings import TrainSettings

BY_SEQUENCES = BatchSettings()
BY_TOKENS = BatchSettings(micro_tokens=512 * 32)


def recipe_with(batch_size: int, micro_batch_size: int, batch: BatchSettings = BY_SEQUENCES) -> PretrainRecipe:
    train = TrainSettings(batch_size=batch_size, micro_batch_size=micro_batch_size)
    return PretrainRecipe(train=train, batch=batch)


def test_parallel_speedup_is_limited_by_the_first_rank() -> None:
    assert parallel_speedup(32, 32, 2) == parallel_speedup(32, 8, 1) == 1
    assert parallel_speedup(32, 16, 2) == 2
    assert parallel_speedup(32, 8, 3) == 2  # the first rank has two of four micro-batches


@pytest.mark.parametrize(
    ("recipe", "ranks", "remedy"),
    [
        (
            recipe_with(32, 32),
            2,
            "1 of 2 processes: use -s train.micro_batch_size=16, which samples other dropout masks",
        ),
        (recipe_with(32, 1, BY_TOKENS), 2, "1 of 2 processes: use -s batch.micro_tokens=8192,"),
        (recipe_with(4, 1), 8, "4 of 8 processes: use --nproc 4, which is as fast"),
        (recipe_with(9, 3), 4, "3 of 4 processes: use --nproc 3, which is as fast"),
    ],
)
def test_warn_idle_ranks_prints_the_remedy(
    recipe: PretrainRecipe, ranks: int, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    warn_idle_ranks(recipe, np.full(recipe.train.batch_size, 512), ranks)
    assert remedy in " ".join(capsys.readouterr().err.split())


def test_warn_idle_ranks_counts_tokens_of_short_sequences(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = recipe_with(32, 1, BatchSettings(micro_tokens=512 * 8))
    warn_idle_ranks(recipe, np.full(32, 512), 4)
    assert not capsys.readouterr().err
    lengths = np.full(32, 128)  # all in one micro-batch
    warn_idle_ranks(recipe, lengths, 4)
    printed = " ".join(capsys.readouterr().err.split())
    assert "for only 1 of 4 processes: use -s batch.micro_tokens=1024, which" in printed
    warn_idle_ranks(recipe_with(32, 1, BatchSettings(micro_tokens=1024)), lengths, 4)
    assert not capsys.readouterr().err


@pytest.mark.parametrize(("micro_batch_size", "ranks"), [(32, 1), (16, 2), (8, 3)])
def test_warn_idle_ranks_is_silent_if_all_compute(
    micro_batch_size: int, ranks: int, capsys: pytest.CaptureFixture[str]
) -> None:
    warn_idle_ranks(recipe_with(32, micro_batch_size), np.full(32, 512), ranks)
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("recipe", "printed"),
    [
        (recipe_with(4096, 32), "uses 1 of 8 GPUs; --nproc 8 uses 8"),
        (recipe_with(32, 32), "uses 1 of 8 GPUs; --nproc 8 -s train.micro_batch_size=4, in a new run, uses 8"),
        (recipe_with(32, 32, BatchSettings(micro_tokens="auto")), "uses 1 of 8 GPUs; --nproc 8 uses 8"),
        (recipe_with(2, 32), "uses 1 of 8 GPUs; --nproc 2 -s train.micro_batch_size=1, in a new run, uses 2"),
        (recipe_with(1, 32), ""),
    ],
)
def test_print_idle_gpus_names_options_that_use_them(
    recipe: PretrainRecipe, printed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    print_idle_gpus(recipe, torch.device("cuda", 0))
    assert " ".join(capsys.readouterr().err.split()) == printed
    print_idle_gpus(recipe, torch.device("cpu"))
    assert not capsys.readouterr().err
