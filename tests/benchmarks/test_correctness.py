"""Tests of `benchmarks.correctness`."""

from __future__ import annotations

import json

from benchmarks import correctness
from tests.helpers.benchmarks import run_benchmark

SMALL = ("hidden_size=32", "embedding_size=16", "intermediate_size=64", "num_hidden_layers=2", "num_attention_heads=2")
OVERRIDES = [word for value in (*SMALL, "vocab_size=200") for word in ("-s", f"model.{value}")]


def test_command_finds_the_cpu_correct() -> None:
    call = ("pretrain/albert-base", *OVERRIDES, "-s", "train.precision=fp32", "--device", "cpu", "--json")
    result = json.loads(run_benchmark(correctness.app, *call).out)
    assert result["is_correct"] and result["form"].startswith("fp32")
