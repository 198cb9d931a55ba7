"""Tests of `benchmarks.inference`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import inference
from tests.helpers.benchmarks import run_benchmark
from tests.helpers.task_fixtures import encoder, glue, tuned

__all__ = ["encoder", "glue", "tuned"]
TOOLS = [f"{tool} {precision}" for tool in ("albert", "transformers") for precision in ("fp32", "bf16")]
TOOLS += ["onnxruntime fp32", "onnxruntime int8"]


def test_command_labels_the_same_texts_with_every_tool(tuned: Callable[[str], Path], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "in.txt").write_text("bade figo\nbade bade figo\nfigo\n")
    printed = run_benchmark(inference.app, tuned("cola"), "--input", tmp_path / "in.txt", "--rounds", 1, "--json").out
    result = json.loads(printed)
    assert result["texts"] == 3 and list(result["tools"]) == TOOLS
    assert result["tools"][result["best"]]["model_speedup"] == 1
    for tool in ("transformers fp32", "onnxruntime fp32"):
        assert result["tools"][tool]["equal_labels"] == 1


def test_command_without_texts_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("")
    rejected = run_benchmark(inference.app, "any", "--input", tmp_path / "in.txt", expect=2)
    assert "error: --input: has no lines" in rejected.err
