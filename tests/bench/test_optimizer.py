"""`albert bench optimizer`: what it measures, and over which parameters."""

from __future__ import annotations

import json

import pytest

from albert_cli.bench import optimizer
from albert_cli.counting import shapes
from albert_cli.counting.costs import count
from tests.command import albert

SMALL = "albert-base:L=2,H=32,A=2,F=64,E=16,vocab_size=500"


def test_each_optimizer_is_measured_against_torchs_and_a_copy() -> None:
    found = json.loads(albert("bench", "optimizer", SMALL, "--rounds", 3, "--device", "cpu", "--json").out)
    measured = found["models"][SMALL]
    total, variants = measured["parameters"], measured["variants"]
    assert total == count(shapes.find(SMALL).config).total
    assert set(variants) == {"LAMB", "AdamW", optimizer.PEER}
    assert variants[optimizer.PEER]["times_fused_adamw"] == 1.0
    assert variants["AdamW"]["bytes_moved"] == 28 * total
    assert 50 * total < variants["LAMB"]["bytes_moved"] < 56 * total  # LayerNorms and biases are not adapted
    for v in variants.values():
        assert 0 < v["minimum_ms"] <= v["median_ms"]
        gained = v["bytes_moved"] / v["median_ms"] * 1e3 / measured["copy_bytes_per_second"]
        assert v["share_of_copy"] == pytest.approx(gained, rel=0.1, abs=1e-3)


def test_an_unknown_shape_is_refused() -> None:
    assert "neither a preset" in albert("bench", "optimizer", "nonsense", expect=2).err
