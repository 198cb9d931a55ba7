"""Tests of `albert bench finetune`: albert and transformers get the same examples and compute the same loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command import albert

SMALL = "albert-base:L=2,H=32,A=2,F=64,E=16"
FEW = ("--model", SMALL, "--rounds", 2, "-s", "train.batch_size=8", "-s", "train.precision=fp32", "--device", "cpu")


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Path:
    """SST-2 and STS-B in their published layout, with the sentences of the tiny corpus."""
    folder = tmp_path_factory.mktemp("glue")
    sentences = [sentence for document in documents[:60] for sentence in document.split(". ")]
    similar = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
    rows = {
        "SST-2": ("sentence\tlabel", [f"{s}\t{i % 2}" for i, s in enumerate(sentences)]),
        "STS-B": (similar, [f"{i}" + "\tx" * 6 + f"\t{s}\t{sentences[-i]}\t{i % 6}" for i, s in enumerate(sentences)]),
    }
    for name, (header, lines) in rows.items():
        (folder / name).mkdir()
        for split in ("train", "dev"):
            (folder / name / f"{split}.tsv").write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def measured(glue: Path, tiny_vocabulary: Path) -> dict[str, Any]:
    call = ("bench", "finetune", "sst2", "--data", glue, "--vocab", tiny_vocabulary, "--against", "transformers")
    result: dict[str, Any] = json.loads(albert(*call, *FEW, "--json").out)
    return result


def test_albert_and_transformers_compute_the_same_loss(measured: dict[str, Any]) -> None:
    variants = measured["comparison"]["variants"]
    assert list(variants) == ["albert", "transformers, padded to the longest", "transformers, padded to 128"]
    ours = variants["albert"]
    assert ours["speedup"] == 1 and 0.3 < ours["loss"] < 1.2
    for variant in variants.values():
        assert variant["loss"] == pytest.approx(ours["loss"], rel=1e-4)
        assert variant["tokens_per_second"] > 0 and variant["mfu"] > 0
    assert 8 * 5 < measured["comparison"]["tokens"] < 8 * 128
    assert measured["max_length"] == 128 and 5 < measured["tokens_per_example"] < 128


def test_regression_of_pairs_prints_table_and_notes(glue: Path, tiny_vocabulary: Path) -> None:
    call = ("bench", "finetune", "stsb", "--data", glue, "--vocab", tiny_vocabulary, "--against", "transformers")
    printed = albert(*call, *FEW).out
    assert "stsb: a step of 8 examples" in printed and "without padding" in " ".join(printed.split())
    assert "only for [CLS]" in " ".join(printed.split())
    losses = [line.split()[-1] for line in printed.splitlines() if line.startswith(("albert ", "transformers,"))]
    assert len(losses) == 3 and [float(loss) for loss in losses] == pytest.approx([float(losses[0])] * 3, rel=1e-4)
    alone = albert("bench", "finetune", "stsb", "--data", glue, "--vocab", tiny_vocabulary, *FEW).out
    assert "transformers" not in alone
    shorter = albert(*call, *FEW, "-s", "data.max_seq_length=16").out
    assert "cut at 16" in shorter and "padded to 16 " in shorter


def test_bench_finetune_ner_computes_the_same_loss(tmp_path: Path, tiny_vocabulary: Path) -> None:
    text = "\n".join("Ada B-PER\nmet O\nBo B-PER\n" + "in O\nParis B-LOC\n" * (i % 5) for i in range(40))
    (tmp_path / "train.conll").write_text(text)
    call = ("bench", "finetune", "mini/ner", "--data", tmp_path, "--vocab", tiny_vocabulary, *FEW)
    measured = json.loads(albert(*call, "--against", "transformers", "--json").out)
    variants = measured["comparison"]["variants"]
    assert list(variants) == ["albert", "transformers, padded to the longest", "transformers, padded to 128"]
    for variant in variants.values():
        assert variant["loss"] == pytest.approx(variants["albert"]["loss"], rel=1e-4) and variant["loss"] > 0.5
    assert "only for [CLS]" not in albert(*call).out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["table"], 2, "GLUE"),
        (["nonsense"], 2, "nonsense"),
        (["ner"], 2, "the task 'ner' has no data"),
        (["race"], 2, "RACE is not one"),
        (["sst2", "--data", "nowhere"], 3, "nowhere"),
        (["sst2", "--against", "tensorflow"], 2, "transformers"),
    ],
)
def test_wrong_arguments(arguments: list[str], code: int, message: str, tiny_vocabulary: Path) -> None:
    assert message in albert("bench", "finetune", *arguments, "--vocab", tiny_vocabulary, *FEW, expect=code).err
