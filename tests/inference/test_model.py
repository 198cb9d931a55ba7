"""Tests of opening a checkpoint for inference: the library of matmuls is measured, and changes only rounding."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from albert_cli.inference.predict import load_predictor, predict_file
from albert_cli.matmul import has_onednn
from albert_cli.training import device


@pytest.mark.skipif(not has_onednn(), reason="torch without oneDNN")
def test_open_uses_the_library_that_measures_faster(
    tuned: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = str(tuned("cola"))
    (tmp_path / "in.txt").write_text("bade figo\nfigo\n")
    probabilities = {}
    for speedup, library in ((1.0, "torch"), (2.0, "onednn")):
        monkeypatch.setattr(device, "measure_onednn_speedup", lambda *_, speedup=speedup: speedup)
        encoder = load_predictor(checkpoint, "cpu", "fp32").model.encoder
        assert encoder.matmul == library
        out = tmp_path / f"{library}.jsonl"
        predict_file(checkpoint, str(tmp_path / "in.txt"), out, "cpu", precision="fp32")
        rows = map(json.loads, out.read_text().splitlines())
        probabilities[library] = [value for row in rows for value in row["probabilities"].values()]
    assert probabilities["onednn"] == pytest.approx(probabilities["torch"], abs=1e-5)
