"""Parameter counts of the paper's models."""

from __future__ import annotations

from albert_cli.counting.costs import count_parameters
from albert_cli.model.config import ModelConfig

# name: without pooler, with pooler, with pooler and both heads, the paper's millions
MAIN = {
    "bert-base": (108_490_752, 109_081_344, 109_705_010, 108),
    "bert-large": (333_557_760, 334_607_360, 335_691_058, 334),
    "bert-xlarge": (1_271_095_296, 1_275_291_648, 1_279_526_194, 1270),
    "albert-base": (11_092_992, 11_683_584, 11_813_810, 12),
    "albert-large": (16_634_368, 17_683_968, 17_847_474, 18),
    "albert-xlarge": (54_528_512, 58_724_864, 59_021_490, 60),
    "albert-xxlarge": (205_814_272, 222_595_584, 223_158_450, 235),
}


def count_three_ways(config: ModelConfig) -> tuple[int, int, int]:
    """Return the counts without pooler, with pooler, and with pooler and both heads."""
    counts = count_parameters(config)
    return counts.without_pooler, counts.with_pooler, counts.total
