"""Tests of `benchmarks.inference`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from albert_cli.inference.export import export
from albert_cli.inference.export_source import ExportRequest
from albert_cli.inference.predict import load_predictor
from benchmarks import inference
from tests.helpers.benchmarks import run_benchmark
from tests.helpers.task_fixtures import encoder, glue, tuned

__all__ = ["encoder", "glue", "tuned"]
TOOLS = [f"{tool} {precision}" for tool in ("albert", "transformers") for precision in ("fp32", "bf16")]
TOOLS += ["onnxruntime fp32", "onnxruntime int8"]


def test_command_labels_the_same_texts_with_every_tool(tuned: Callable[[str], Path], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "in.txt").write_text(f"bade figo\nbade bade figo\nfigo\n{'bade ' * 200}\n")
    printed = run_benchmark(inference.app, tuned("cola"), "--input", tmp_path / "in.txt", "--rounds", 1, "--json").out
    result = json.loads(printed)
    assert result["texts"] == 4 and list(result["tools"]) == TOOLS
    assert result["tools"][result["best"]]["model_speedup"] == 1
    for tool in ("transformers fp32", "onnxruntime fp32"):
        assert result["tools"][tool]["equal_labels"] == 1


def test_every_tool_truncates_texts_to_the_same_length(tuned: Callable[[str], Path], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    texts = ["bade figo " * 200, "bade"]
    predictor = load_predictor(str(tuned("cola")), "cpu")
    checkpoint = predictor.opened.checkpoint
    limit = checkpoint.max_length
    assert limit < checkpoint.config.max_position_embeddings
    export(ExportRequest(str(tuned("cola"))), tmp_path / "exported")
    peers = [
        inference._make_transformers(checkpoint.directory, texts, limit, "fp32"),
        inference._make_onnxruntime(tmp_path / "exported", "model.onnx", texts, limit),
    ]
    lengths = inference._make_albert(predictor, texts).encode().lengths.tolist()
    assert lengths[0] == limit
    for peer in peers:
        ids = peer.encode()
        assert [len(text_ids) for text_ids in ids] == lengths and len(peer.label(ids)) == 2


def test_command_without_texts_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("")
    rejected = run_benchmark(inference.app, "any", "--input", tmp_path / "in.txt", expect=2)
    assert "error: --input: has no lines" in rejected.err
