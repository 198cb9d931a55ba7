"""Tests of `training.settings`: the learning rate of each step, durations, and the interval of checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_cli import config
from albert_cli.errors import ConfigError
from albert_cli.training.pretrain_recipe import PretrainRecipe
from albert_cli.training.settings import ScheduleSettings, TrainSettings, parse_duration
from tests.helpers.programs import ROOT


def test_rate_equals_paper_schedule() -> None:
    paper = ScheduleSettings(total_steps=125_000, warmup_steps=3125)
    rates = {step: paper.rate(step, 0.00176) for step in (0, 1, 3124, 3125, 62_500, 124_999)}
    assert rates[0] == 0.0
    assert rates[1] == pytest.approx(0.00176 / 3125)
    assert rates[3124] == pytest.approx(0.00176 * 3124 / 3125)
    assert rates[3125] == pytest.approx(0.975 * 0.00176)  # the decay starts at step 0, not after warmup
    assert rates[62_500] == pytest.approx(0.00088)
    assert rates[124_999] == pytest.approx(0.00176 / 125_000)
    assert paper.rate(125_000, 0.00176) == 0.0


@given(st.integers(1, 10_000), st.integers(0, 10_000), st.floats(1e-6, 1.0))
def test_rate_rises_then_falls_below_peak(total: int, warmup: int, peak: float) -> None:
    schedule = ScheduleSettings(total_steps=total, warmup_steps=warmup)
    rates = [schedule.rate(step, peak) for step in range(0, total, max(1, total // 97))]
    assert all(0 <= rate <= peak for rate in rates)
    highest = rates.index(max(rates))
    assert rates[:highest] == sorted(rates[:highest]) and rates[highest:] == sorted(rates[highest:], reverse=True)


def test_rate_without_warmup_starts_at_peak() -> None:
    schedule = ScheduleSettings(total_steps=4, warmup_steps=0)
    assert [schedule.rate(step, 1.0) for step in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_warmup_is_a_number_or_fraction_of_steps() -> None:
    assert ScheduleSettings(total_steps=1000).resolved_warmup_steps == 100
    assert ScheduleSettings(total_steps=1000, warmup_ratio=0.025).resolved_warmup_steps == 25
    assert ScheduleSettings(total_steps=1000, warmup_steps=3).resolved_warmup_steps == 3
    assert ScheduleSettings(total_steps=1000, warmup_steps=0).resolved_warmup_steps == 0


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("25m", 1500), ("1.5h", 5400), ("2d", 172_800), ("7", 7), (" 3 m ", 180)]
)
def test_parse_duration_returns_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text, "--max-time") == seconds


@pytest.mark.parametrize("text", ["", "m", "0s", "-3m", "3 weeks", "1h30m", "nan"])
def test_parse_duration_invalid_text_raises(text: str) -> None:
    with pytest.raises(ConfigError, match="--max-time"):
        parse_duration(text, "--max-time")


@pytest.mark.parametrize("path", sorted((ROOT / "recipes" / "pretrain").glob("*.toml")), ids=lambda path: path.stem)
def test_pretraining_recipe_saves_by_time(path: Path) -> None:
    """With a number of steps, a slow machine or a large model would lose days of work."""
    train = config.load_recipe(PretrainRecipe, f"pretrain/{path.stem}", []).train
    assert 0 < train.save_seconds <= 3600


def test_save_every_is_in_steps_or_seconds() -> None:
    for save_every, steps, seconds in ((500, 500, 0.0), ("10m", 0, 600.0), (0, 0, 0.0)):
        settings = TrainSettings(save_every=save_every)
        assert (settings.save_steps, settings.save_seconds) == (steps, seconds)
