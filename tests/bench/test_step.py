"""Tests of `albert bench step`: albert and transformers do the same work in alternating rounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from albert_cli.bench import harness
from tests.helpers.command import albert

SMALL = "albert-base:L=2,H=32,A=2,F=64,E=16,vocab_size=500"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    arguments = ("bench", "step", SMALL, "--tokens", 256, "--rounds", 2, "--no-compiled", "--device", "cpu", "--json")
    result: dict[str, Any] = json.loads(albert(*arguments).out)
    return result


def test_albert_and_transformers_compute_the_same_loss(
    measured: dict[str, dict[str, dict[str, dict[str, dict[str, float]]]]],
) -> None:
    assert list(measured["works"]) == ["s128", "s512", "glue"]
    assert len(measured["works"]["glue"]["variants"]) == 3  # padded to the longest, and to 128
    for work in measured["works"].values():
        variants = work["variants"]
        assert len(variants) >= 2
        assert [v["loss"] for v in variants.values()] == pytest.approx(
            [variants["albert"]["loss"]] * len(variants), rel=1e-4
        )
        for variant in variants.values():
            assert variant["minimum_ms"] <= variant["median_ms"]
            assert variant["tokens_per_second"] > 0 and variant["mfu"] > 0
        assert variants["albert"]["speedup"] == 1


def test_bert_is_compared_and_a_shape_without_peer_rejected() -> None:
    few = ("--tokens", 128, "--rounds", 1, "--work", "s128", "--no-compiled", "--device", "cpu")
    bert = "bert-base:L=2,H=32,E=32,A=2,F=64,vocab_size=500"
    variants = json.loads(albert("bench", "step", bert, *few, "--json").out)["works"]["s128"]["variants"]
    assert variants["albert"]["loss"] == pytest.approx(variants["transformers"]["loss"], rel=1e-4)
    custom = f"{SMALL},sharing=attention"
    assert "--alone" in albert("bench", "step", custom, *few, expect=2).err
    assert "transformers" not in albert("bench", "step", custom, *few, "--alone").out


def test_failing_compiler_names_the_option_that_helps(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing_compile(function: Any, **options: Any) -> Any:
        def fail(*arguments: Any, **keywords: Any) -> Any:
            raise torch._dynamo.exc.InternalTorchDynamoError("fatal error: Python.h: No such file or directory")

        return fail

    monkeypatch.setattr(torch, "compile", failing_compile)
    for call in (["step", SMALL, "--work", "glue"], ["pretrain", recipe, "--against", "transformers"]):
        printed = albert("bench", *call, "--rounds", 1, "--device", "cpu", expect=1).err
        assert "Python.h" in printed
        assert "use --no-compiled" in printed


def test_variants_alternate_after_two_untimed_calls() -> None:
    calls: list[str] = []

    def call(name: str) -> float:
        calls.append(name)
        return len(calls)

    seconds, last = harness.time_alternating({"a": lambda: call("a"), "b": lambda: call("b")}, 3, CPU, "test")
    assert "".join(calls) == "aabb" + "ab" * 3
    assert [len(times) for times in seconds.values()] == [3, 3] and last["b"] == 10


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["--work", "s64"], "s128, s512, glue"),
        (["albert-base:max_position_embeddings=64", "--work", "glue"], "--work glue: the model has 64 positions"),
        (["nonsense"], "neither a preset"),
        (["--rounds", "0"], "rounds"),
        (["--tokens", "-5"], "tokens"),
    ],
)
def test_wrong_arguments(arguments: list[str], printed: str) -> None:
    assert printed in albert("bench", "step", *arguments, expect=2).err
