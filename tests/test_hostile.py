"""Hostile files must not run code, exhaust memory, access other folders, or send control characters to a terminal."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import pickle
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from albert_cli import console, store
from albert_cli.errors import CheckpointError, InputError
from albert_cli.model import hub
from albert_cli.model.weight_files import WEIGHTS_FILE
from albert_cli.report.build import ReportPage
from albert_cli.report.render import Table, render_html, render_markdown
from albert_cli.report.scores import Fact
from albert_cli.text.corpus import read_documents
from albert_cli.text.read_settings import ReadSettings
from albert_cli.training.checkpoint import TrainState
from albert_cli.training.log import RunLog
from albert_cli.training.trackers import open_trackers
from tests.helpers.command import albert
from tests.helpers.memory import memory_below

# Control characters: set the title, clear the screen, an 8-bit control code, and the right-to-left override.
HOSTILE = "a\x1b]0;mine\x07b\x1b[2Jc\x9b31md\u202egnp.exe\x00\x7f\u2028"
CONTROL_CHARACTERS = set("\x1b\x07\x9b\u202e\x00\x7f\u2028\r")


class Exploit:
    """An object that creates a file when it is unpickled."""

    def __init__(self, evidence: Path) -> None:
        self.evidence = evidence

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.evidence,)


@pytest.fixture
def foreign(finished: Path, tmp_path: Path) -> Path:
    """A checkpoint without a manifest, like one from the Hub."""
    directory = tmp_path / "foreign"
    shutil.copytree(store.saved_steps(finished)[-1], directory)
    (directory / store.MANIFEST).unlink()
    return directory


def change_config(directory: Path, **values: object) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | values))


# ---------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("name", ["model.safetensors", "spiece.model", "tokenizer.json", "config.json"])
def test_pickle_instead_of_any_file_is_not_unpickled(foreign: Path, tmp_path: Path, name: str) -> None:
    evidence = tmp_path / "unpickled"
    (foreign / name).write_bytes(pickle.dumps(Exploit(evidence)))
    (foreign / "pytorch_model.bin").write_bytes(pickle.dumps(Exploit(evidence)))
    result = albert("fill-mask", foreign, "a [MASK]", expect=None)
    # `albert` rebuilds tokenizer.json from the other files.
    assert result.code == (0 if name == "tokenizer.json" else 4), result.err
    assert not evidence.exists()


def test_code_in_a_checkpoint_directory_is_not_run(foreign: Path, tmp_path: Path) -> None:
    evidence = tmp_path / "run"
    (foreign / "modeling.py").write_text(f"open({str(evidence)!r}, 'w')")
    change_config(
        foreign, auto_map={"AutoModel": "modeling.Model"}, trust_remote_code=True, custom_pipelines={"x": "modeling.X"}
    )
    albert("fill-mask", foreign, "a [MASK]")
    assert not evidence.exists()


@pytest.mark.parametrize(
    "values",
    [
        {"hidden_size": 10**6, "num_attention_heads": 1, "intermediate_size": 10**6},  # 10^13 bytes of weights
        {"vocab_size": 10**12},
        {"max_position_embeddings": 10**15},
        {"num_hidden_layers": 9999, "num_hidden_groups": 9999, "hidden_size": 4096, "intermediate_size": 16384},
    ],
    ids=lambda values: next(iter(values)),
)
def test_shape_larger_than_its_file_uses_no_memory(foreign: Path, values: dict[str, int]) -> None:
    change_config(foreign, **values)
    expected = r"cannot hold the .* parameters that|model\.\w+ is 10{12,15}$"
    with memory_below(50e6), pytest.raises(CheckpointError, match=expected):
        hub.read_checkpoint(foreign)
    assert albert("fill-mask", foreign, "a [MASK]", expect=4).err.count("error:") == 1


def make_safetensors(tensors: dict[str, tuple[list[int], int, int]], size: int) -> bytes:
    """Return a safetensors file with `size` zero bytes; its header has any shape, start and end for each tensor."""
    header = {
        name: {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
        for name, (shape, start, end) in tensors.items()
    }
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(size)


@pytest.mark.parametrize(
    "content",
    [
        make_safetensors({"a": ([2**40], 0, 2**42)}, 1 << 20),
        make_safetensors({"a": ([2**62, 4], 0, 2**60)}, 1 << 20),
        make_safetensors({"a": ([2**17], 0, 2**19), "b": ([2**17], 2**18, 2**19 + 2**18)}, 1 << 20),
        make_safetensors({"a": ([2**17], 0, 2**19), "b": ([2**17], 0, 2**19)}, 2**19),
        make_safetensors({"a": ([2**17], -8, 2**19 - 8)}, 1 << 20),
        struct.pack("<Q", 2**63) + bytes(1 << 20),
        struct.pack("<Q", 10**8) + b"{" * (1 << 20),
    ],
    ids=["huge", "overflow", "overlapping", "the same bytes", "negative", "header of 2^63 bytes", "nested header"],
)
def test_weights_with_a_false_header_are_rejected(foreign: Path, content: bytes) -> None:
    (foreign / WEIGHTS_FILE).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        hub.read_checkpoint(foreign)


@pytest.mark.parametrize("name", ["../../outside", "/etc/hostname", "a/../../b"])
def test_manifest_and_data_must_not_leave_their_directory(tiny_data: Path, tmp_path: Path, name: str) -> None:
    directory = tmp_path / "data"
    shutil.copytree(tiny_data, directory)
    facts = store.read_json(directory / "data.json")
    shards = [{"name": name, "documents": 1, "tokens": 1}]
    store.write_json(directory / "data.json", facts | {"shards": {"train": shards, "heldout": shards}})
    store.seal(directory, "data")
    result = albert("pretrain", "mini/docs", "--data", directory, "--out", tmp_path / "run", expect=4)
    assert f"{name}: leads out of" in result.err
    manifest = json.loads((directory / store.MANIFEST).read_text())
    del manifest["sha256"]
    manifest["files"] = {name: {"size": 1, "sha256": "0"}}
    store.write_json(directory / store.MANIFEST, {**manifest, "sha256": store.hash_json(manifest)})
    with pytest.raises(CheckpointError, match="leads out of"):
        store.verify(directory)


# ---------------------------------------------------------------- text


def test_link_out_of_its_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("A secret.\n")
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.txt").write_text("Text.\n")
    (folder / "inner" / "b.txt").symlink_to(folder / "a.txt")
    assert len(list(read_documents([str(folder)]))) == 1
    (folder / "inner" / "c.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(InputError, match=r"c\.txt: is a link to .*secret"):
        list(read_documents([str(folder)]))
    assert len(list(read_documents([str(folder / "inner" / "*.txt")]))) == 2, (
        "a link that a source names may be followed"
    )


def zstd(data: bytes) -> bytes:
    import pyarrow as pa

    return bytes(pa.compress(data, "zstd", asbytes=True))


# The words are long, because bz2 needs seconds to compress a short period.
@pytest.mark.parametrize(
    ("ending", "pack", "content"),
    [
        (".gz", gzip.compress, b"a"),
        (".gz", gzip.compress, b"w" * 4999 + b" "),
        (".bz2", bz2.compress, b"w" * 4999 + b" "),
        (".xz", lzma.compress, b"w" * 4999 + b" "),
        (".zst", zstd, b"w" * 4999 + b" "),
    ],
    ids=["gz, one word", "gz", "bz2", "xz", "zst"],
)
def test_compression_bomb_takes_no_memory(
    tmp_path: Path, ending: str, pack: Callable[[bytes], bytes], content: bytes
) -> None:
    """A file that expands about a thousandfold is read in small pieces, and a long line in it is rejected."""
    path = tmp_path / f"bomb.txt{ending}"
    size = 24_000_000
    path.write_bytes(pack(content * (size // len(content))))
    assert path.stat().st_size < size / 600
    with memory_below(20e6), pytest.raises(InputError, match="longer than"):
        list(read_documents([str(path)], ReadSettings(max_line=1 << 16)))


def test_compressed_blank_lines_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.txt.gz"
    path.write_bytes(gzip.compress(b"\n" * 150_000))
    with memory_below(5.2e6):  # the buffers take 4.3 MB, and a list of the lines would take 1.2 MB
        assert list(read_documents([str(path)])) == []


# ---------------------------------------------------------------- output


def test_console_prints_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    console.info(HOSTILE)
    console.warn(HOSTILE)
    console.print_result({"label": HOSTILE}, HOSTILE)
    console.print_result({}, f"\x1b[32mgreen\x1b[0m {HOSTILE}", colored=True)
    console.print_partial_result(HOSTILE)
    console.configure(json=True)
    console.print_result({"label": HOSTILE, HOSTILE: 1}, HOSTILE)
    console.configure()
    printed = capsys.readouterr()
    *lines, written = printed.out.splitlines()
    assert json.loads(written) == {"label": HOSTILE, HOSTILE: 1}, "JSON must escape them"
    assert sum("\x1b[32mgreen\x1b[0m" in line for line in lines) == 1
    without_color = printed.out.replace("\x1b[32m", "").replace("\x1b[0m", "") + printed.err
    assert not CONTROL_CHARACTERS & set(without_color)


@pytest.fixture
def hostile_file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "out of memory \x1b[2J\u202e.txt"
    path.write_bytes(b"good\n\xff\xfe bad\n")
    yield path


def test_error_prints_no_control_characters_of_a_file_name(hostile_file: Path, tmp_path: Path) -> None:
    result = albert("vocab", hostile_file, "--out", tmp_path / "v", expect=3)
    assert "error: " in result.err
    assert "out of memory" in result.err
    assert not CONTROL_CHARACTERS & set(result.err + result.out)


def test_tensorboard_tags_have_no_control_characters(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    log = RunLog(tmp_path, 0, None, open_trackers(tmp_path, 0, (), {}))
    log.write_evaluation(TrainState(step=1), {f"{HOSTILE}/mlm_loss": 1.0})
    log.close()
    (tag,) = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload().Tags()["scalars"]
    assert tag.startswith("heldout/a")
    assert tag.endswith("/mlm_loss")
    assert not CONTROL_CHARACTERS & set(tag)
    assert not CONTROL_CHARACTERS & set((tmp_path / "metrics.jsonl").read_text())


PAGE_TEXT = f"<script>alert(1)</script> [x](javascript:y) | `z` {HOSTILE} =cmd|'/c calc'!A0"


def test_report_page_escapes_markup() -> None:
    table = Table([PAGE_TEXT], [[PAGE_TEXT]])
    page = ReportPage(
        title=PAGE_TEXT, summary=PAGE_TEXT, facts=[Fact(PAGE_TEXT, PAGE_TEXT, PAGE_TEXT)], label_curves=[],
        data_sizes=table, data_samples=[], pretraining=None, scores=None, learning_curves=[], mistakes=[],
        examples=[(PAGE_TEXT, table)], versions=PAGE_TEXT, provenance=table,
    )  # fmt: skip
    for written in (render_html("report", page), render_markdown("report", page)):
        assert "<script>" not in written.replace("\\<script\\>", "")
        assert not CONTROL_CHARACTERS & set(written)
    assert "](javascript" not in render_markdown("report", page).replace("\\](javascript", ""), (
        "Markdown must escape the link"
    )


def test_model_card_escapes_markup() -> None:
    from albert_cli.model import card
    from albert_cli.model.config import ModelConfig

    metrics = {f"<b>{HOSTILE}|\n# corpus/mlm_loss": 1.0}
    written = card.pretraining_card(ModelConfig(), 1, "sop", metrics, "") + card.finetuning_card(
        ModelConfig(), 1, PAGE_TEXT, {"accuracy": 0.5}, "", "ForSequenceClassification"
    )
    assert "<script>" not in written.replace("\\<script\\>", "")
    assert "<b>" not in written.replace("\\<b\\>", "")
    assert "\n# corpus" not in written
    assert not CONTROL_CHARACTERS & set(written)


# ---------------------------------------------------------------- working directory and environment


def run_albert(folder: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `albert ARGUMENTS` in a new process in a folder, with a minimal environment."""
    minimal = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-m", "albert_cli", *map(str, arguments)]
    result = subprocess.run(
        command, cwd=folder, env=minimal | environment, capture_output=True, encoding="utf-8", check=False
    )
    assert "Traceback" not in result.stderr
    return result


def test_modules_in_the_working_directory_are_not_imported(tmp_path: Path, documents: list[str]) -> None:
    for name in ("signal", "struct", "pickle", "numpy", "sentencex"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('owned')\nopen('owned', 'w')\n")
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(documents[:60]))
    result = run_albert(tmp_path, "vocab", "a.txt", "b.txt@2", "--size", 200, "--workers", 2, "--out", "v")
    assert result.returncode == 0, result.stderr
    assert "owned" not in result.stderr


def test_commands_run_in_the_c_locale(tmp_path: Path, finished: Path) -> None:
    """The locale cannot encode the paths, and neither the home nor a temporary folder is writable."""
    folder = tmp_path / "a päth with späces 日本"
    folder.mkdir()
    (folder / "tëxt.txt").write_text("Bade [MASK].\n")
    shutil.copytree(store.saved_steps(finished)[-1], folder / "mödel")
    environment = {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "HOME": "/proc/none",
        "TMPDIR": "/proc",
    }
    out = "vëctors.safetensors"
    result = run_albert(folder, "encode", "mödel", "--input", "tëxt.txt", "--out", out, "--json", **environment)
    assert result.returncode == 0, result.stderr
    assert (folder / out).is_file()
    assert json.loads(result.stdout)
