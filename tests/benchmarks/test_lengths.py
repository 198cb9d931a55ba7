"""Tests of `benchmarks.lengths`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from albert_cli.bench.harness import Conditions
from albert_cli.counting import shapes
from benchmarks import lengths
from benchmarks.lengths import LengthMeasurement
from tests.helpers.benchmarks import run_benchmark


def test_command_measures_the_named_forms() -> None:
    """Every measurement has a process; those of the peers would need seconds to import `transformers`."""
    call = ["mini/docs", "--layers", "1", "--length", "1024", "--device", "cpu"]
    forms = ["block", "window"]
    options = [word for form in forms for word in ("--form", form)]
    result = json.loads(run_benchmark(lengths.app, *call, *options, "--json").out)
    assert list(result["forms"]) == forms and result["layers"] == 1
    for form, by_length in result["forms"].items():
        assert list(by_length) == ["1024"], form
        assert by_length["1024"]["seconds"] > 0 and by_length["1024"]["bytes"] > 0, by_length


def test_format_result_with_failure_shows_the_others() -> None:
    forms = {
        "full": {512: LengthMeasurement(1.0, 10**8), 1024: LengthMeasurement(error="out of memory")},
        "window": {512: LengthMeasurement(2.0, 10**8), 1024: LengthMeasurement(4.0, 2 * 10**8)},
        "block": {512: LengthMeasurement(0.5, 10**8), 1024: LengthMeasurement(1.0, 2 * 10**8)},
    }
    conditions = Conditions("cpu", threads=1, precision="fp32")
    text = lengths.format_result(lengths.LengthsResult("m", 1, 8, 8, conditions, forms))
    assert "–" in text and "window: never faster than full (0.5x at 512)" in text
    assert "block: faster than full attention from 512 tokens on (2.0x at 512)" in text


@pytest.mark.parametrize(
    ("speedups", "verdict"),
    [
        ({128: 1.2, 256: 0.5}, "faster than full attention only at 128 tokens"),
        ({128: 1.2, 256: 0.5, 512: 1.5, 1024: 2.0}, "faster than full attention from 512 tokens on"),
    ],
)
def test_format_result_names_the_length_of_lasting_speedup(speedups: dict[int, float], verdict: str) -> None:
    forms = {
        "full": {length: LengthMeasurement(1.0, 1) for length in speedups},
        "window": {length: LengthMeasurement(1 / speedup, 1) for length, speedup in speedups.items()},
    }
    conditions = Conditions("cpu", threads=1, precision="fp32")
    text = lengths.format_result(lengths.LengthsResult("m", 1, 8, 8, conditions, forms))
    assert f"window: {verdict} (" in text


def test_big_bird_keeps_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass on few tokens would switch Big Bird to full attention for good."""
    from transformers import BigBirdModel  # importing it takes seconds in every process of pytest-xdist

    switches = []
    monkeypatch.setattr(BigBirdModel, "set_attention_type", lambda self, kind: switches.append(kind))
    measure_peer("big bird")
    assert not switches


def test_longformer_is_measured() -> None:
    measured = measure_peer("longformer")
    assert measured.seconds is not None and measured.seconds > 0
    assert measured.bytes is not None and measured.bytes > 0


def measure_peer(form: str) -> LengthMeasurement:
    config = replace(shapes.find_shape("mini/docs").config, max_position_embeddings=1024, num_hidden_layers=1)
    return lengths._measure(config, form, 1024, 1, "fp32", "cpu", 1)


@pytest.mark.parametrize("form", ["sparse", ""])
def test_unknown_form_is_rejected(form: str) -> None:
    assert "choose from full" in run_benchmark(lengths.app, "mini/docs", "--form", form, expect=2).err
