"""Tests of opening a checkpoint for inference: the library of matmuls is measured, and changes only rounding."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch

from albert_cli.inference import fill_mask, model
from albert_cli.inference.fill_mask import fill_masks
from albert_cli.inference.predict import load_predictor, predict_file
from albert_cli.matmul import has_prepacked_linear
from albert_cli.model import encoder as encoder_module
from albert_cli.model.encoder import Encoder


@pytest.mark.skipif(not has_prepacked_linear(torch.bfloat16), reason="oneDNN does not pack bf16 weights here")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_open_uses_the_library_that_measures_faster(
    precision: Literal["fp32", "bf16"], tuned: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = str(tuned("cola"))
    (tmp_path / "in.txt").write_text("bade figo\nfigo\n")
    probabilities = {}
    for speedup, library in ((1.0, "torch"), (2.0, "onednn")):
        monkeypatch.setattr(encoder_module, "MIN_PREPACKED_ROWS", 0)
        monkeypatch.setattr(model, "measure_prepacking_speedup", lambda *_, speedup=speedup: speedup)
        encoder = load_predictor(checkpoint, "cpu", precision).model.encoder
        assert isinstance(encoder, Encoder)
        assert (encoder.matmul, encoder.prepacks_weights) == (library, library == "onednn")
        out = tmp_path / f"{library}.jsonl"
        summary = predict_file(checkpoint, str(tmp_path / "in.txt"), out, "cpu", precision=precision)
        assert (summary.precision, summary.matmul) == (precision, library)
        rows = map(json.loads, out.read_text().splitlines())
        probabilities[library] = [value for row in rows for value in row["probabilities"].values()]
    assert probabilities["onednn"] == pytest.approx(probabilities["torch"], abs=1e-5 if precision == "fp32" else 5e-3)


@pytest.mark.parametrize(("min_prepacked_rows", "library"), [(100, "torch"), (1, "onednn")])
def test_fill_masks_measures_only_for_long_texts(
    min_prepacked_rows: int, library: str, encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fill_mask, "MIN_PREPACKED_ROWS", min_prepacked_rows)
    monkeypatch.setattr(model, "measure_prepacking_speedup", lambda *_: 2.0)
    assert fill_masks(str(encoder), ["bade [MASK] figo"], 5, "cpu").matmul == library
