"""Files from strangers: what would run code, fill the memory, leave its folder or speak to a terminal does not."""

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
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from albert_cli import console, store
from albert_cli.errors import CheckpointError, InputError
from albert_cli.model import hub
from albert_cli.report.build import ReportPage
from albert_cli.report.render import Table, render_html, render_markdown
from albert_cli.report.scores import Fact
from albert_cli.text.corpus import read_documents
from albert_cli.text.read_settings import ReadSettings
from albert_cli.training.checkpoint import TrainState
from albert_cli.training.log import RunLog
from albert_cli.training.trackers import open_trackers
from tests.helpers.command import albert

# What a terminal would obey: a title, a deletion, an eight-bit control code, a text turned around.
NASTY = "a\x1b]0;mine\x07b\x1b[2Jc\x9b31md\u202egnp.exe\x00\x7f\u2028"
OBEYED = set("\x1b\x07\x9b\u202e\x00\x7f\u2028\r")


class Exploit:
    """Unpickled, it writes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.fixture
def stranger(finished: Path, tmp_path: Path) -> Path:
    """A checkpoint without a manifest, as from the Hub."""
    directory = tmp_path / "stranger"
    shutil.copytree(store.saved_steps(finished)[-1], directory)
    (directory / store.MANIFEST).unlink()
    return directory


def change_config(directory: Path, **values: object) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | values))


# ---------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("name", ["model.safetensors", "spiece.model", "tokenizer.json", "config.json"])
def test_a_pickle_in_the_place_of_any_file_is_never_unpickled(stranger: Path, tmp_path: Path, name: str) -> None:
    mark = tmp_path / "owned"
    (stranger / name).write_bytes(pickle.dumps(Exploit(mark)))
    (stranger / "pytorch_model.bin").write_bytes(pickle.dumps(Exploit(mark)))
    printed = albert("fill-mask", stranger, "a [MASK]", expect=None)
    assert printed.code == (0 if name == "tokenizer.json" else 4), printed.err  # it is made anew of the others
    assert not mark.exists()


def test_code_beside_a_checkpoint_is_never_run(stranger: Path, tmp_path: Path) -> None:
    mark = tmp_path / "owned"
    (stranger / "modeling.py").write_text(f"open({str(mark)!r}, 'w')")
    change_config(
        stranger, auto_map={"AutoModel": "modeling.Model"}, trust_remote_code=True, custom_pipelines={"x": "modeling.X"}
    )
    albert("fill-mask", stranger, "a [MASK]")
    assert not mark.exists()


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
def test_shape_larger_than_its_file_is_rejected_early(stranger: Path, values: dict[str, int]) -> None:
    change_config(stranger, **values)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=r"cannot hold the .* parameters that|model\.\w+ is 10{12,15}$"):
        hub.read_checkpoint(stranger)
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()
    assert albert("fill-mask", stranger, "a [MASK]", expect=4).err.count("error:") == 1


def declared(tensors: dict[str, tuple[list[int], int, int]], size: int) -> bytes:
    """A safetensors file of so many bytes of data, whose header says anything."""
    header = {n: {"dtype": "F32", "shape": s, "data_offsets": [a, b]} for n, (s, a, b) in tensors.items()}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(size)


@pytest.mark.parametrize(
    "content",
    [
        declared({"a": ([2**40], 0, 2**42)}, 1 << 20),
        declared({"a": ([2**62, 4], 0, 2**60)}, 1 << 20),
        declared({"a": ([2**17], 0, 2**19), "b": ([2**17], 2**18, 2**19 + 2**18)}, 1 << 20),
        declared({"a": ([2**17], 0, 2**19), "b": ([2**17], 0, 2**19)}, 2**19),
        declared({"a": ([2**17], -8, 2**19 - 8)}, 1 << 20),
        struct.pack("<Q", 2**63) + bytes(1 << 20),
        struct.pack("<Q", 10**8) + b"{" * (1 << 20),
    ],
    ids=["huge", "overflow", "overlapping", "the same bytes", "negative", "header of 2^63 bytes", "nested header"],
)
def test_weights_whose_header_lies_are_refused(stranger: Path, content: bytes) -> None:
    (stranger / hub.WEIGHTS_FILE).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        hub.read_checkpoint(stranger)


@pytest.mark.parametrize("name", ["../../outside", "/etc/hostname", "a/../../b"])
def test_no_manifest_and_no_data_lead_out_of_their_directory(tiny_data: Path, tmp_path: Path, name: str) -> None:
    directory = tmp_path / "data"
    shutil.copytree(tiny_data, directory)
    facts = store.read_json(directory / "data.json")
    shards = [{"name": name, "documents": 1, "tokens": 1}]
    store.write_json(directory / "data.json", facts | {"shards": {"train": shards, "heldout": shards}})
    store.seal(directory, "data")
    assert (
        f"{name}: leads out of"
        in albert("pretrain", "mini/docs", "--data", directory, "--out", tmp_path / "r", expect=4).err
    )
    manifest = json.loads((directory / store.MANIFEST).read_text())
    del manifest["sha256"]
    manifest["files"] = {name: {"size": 1, "sha256": "0"}}
    store.write_json(directory / store.MANIFEST, {**manifest, "sha256": store.hash_json(manifest)})
    with pytest.raises(CheckpointError, match="leads out of"):
        store.verify(directory)


# ---------------------------------------------------------------- text


def test_a_link_in_a_folder_does_not_read_what_lies_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("A secret.\n")
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.txt").write_text("Text.\n")
    (folder / "inner" / "b.txt").symlink_to(folder / "a.txt")
    assert len(list(read_documents([str(folder)]))) == 2
    (folder / "inner" / "c.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(InputError, match=r"c\.txt: is a link to .*secret"):
        list(read_documents([str(folder)]))
    assert len(list(read_documents([str(folder / "inner" / "*.txt")]))) == 2, "named, it is meant"


def zstd(data: bytes) -> bytes:
    import pyarrow as pa

    return bytes(pa.compress(data, "zstd", asbytes=True))


@pytest.mark.parametrize(
    ("ending", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), (".zst", zstd)]
)
@pytest.mark.parametrize("content", [b"a", b"\n", b"word "], ids=["a line", "blank lines", "words"])
def test_a_bomb_takes_no_memory(tmp_path: Path, ending: str, pack: Callable[[bytes], bytes], content: bytes) -> None:
    """At a ratio of some 1,000 a long line is refused, and whatever is read is held in small pieces."""
    path = tmp_path / f"bomb.txt{ending}"
    size, most = 24_000_000, 20e6
    if content == b"\n":  # not as much as a pointer for each line; xz has 8 MB of its own
        size, most = 300_000, 15e6 if ending == ".xz" else 6.5e6
    path.write_bytes(pack(content * (size // len(content))))
    assert path.stat().st_size < size / 600
    tracemalloc.start()
    try:
        if content == b"\n":
            assert list(read_documents([str(path)])) == []
        else:
            with pytest.raises(InputError, match="longer than"):
                list(read_documents([str(path)], ReadSettings(max_line=1 << 16)))
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


# ---------------------------------------------------------------- what is shown


def test_nothing_that_a_terminal_would_obey_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    console.info(NASTY)
    console.warn(NASTY)
    console.print_result({"label": NASTY}, NASTY)
    console.print_result({}, f"\x1b[32mgreen\x1b[0m {NASTY}", colored=True)
    console.print_partial_result(NASTY)
    console.configure(json=True)
    console.print_result({"label": NASTY, NASTY: 1}, NASTY)
    console.configure()
    printed = capsys.readouterr()
    *lines, written = printed.out.splitlines()
    assert json.loads(written) == {"label": NASTY, NASTY: 1}, "as JSON it is the same, in escapes"
    assert sum("\x1b[32mgreen\x1b[0m" in line for line in lines) == 1
    shown = printed.out.replace("\x1b[32m", "").replace("\x1b[0m", "") + printed.err
    assert not OBEYED & set(shown)


@pytest.fixture
def nasty_file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "out of memory \x1b[2J\u202e.txt"
    path.write_bytes(b"good\n\xff\xfe bad\n")
    yield path


def test_file_with_control_characters_in_its_name(nasty_file: Path, tmp_path: Path) -> None:
    printed = albert("vocab", nasty_file, "--out", tmp_path / "v", expect=3)
    assert "error: " in printed.err and "out of memory" in printed.err
    assert not OBEYED & set(printed.err + printed.out)


def test_names_in_curves_hold_nothing_that_is_obeyed(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    log = RunLog(tmp_path, 0, None, open_trackers(tmp_path, 0, (), {}))
    log.write_evaluation(TrainState(step=1), {f"{NASTY}/mlm_loss": 1.0})
    log.close()
    (tag,) = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload().Tags()["scalars"]
    assert tag.startswith("heldout/a") and tag.endswith("/mlm_loss") and not OBEYED & set(tag)
    assert not OBEYED & set((tmp_path / "metrics.jsonl").read_text())


PAGE_TEXT = f"<script>alert(1)</script> [x](javascript:y) | `z` {NASTY} =cmd|'/c calc'!A0"


def test_a_page_holds_no_markup_of_others() -> None:
    table = Table([PAGE_TEXT], [[PAGE_TEXT]])
    page = ReportPage(
        title=PAGE_TEXT, summary=PAGE_TEXT, facts=[Fact(PAGE_TEXT, PAGE_TEXT, PAGE_TEXT)], label_curves=[],
        data_sizes=table, data_samples=[], pretraining=None, scores=None, learning_curves=[], mistakes=[],
        examples=[(PAGE_TEXT, table)], versions=PAGE_TEXT, provenance=table,
    )  # fmt: skip
    for written in (render_html("report", page), render_markdown("report", page)):
        assert "<script>" not in written.replace("\\<script\\>", "")
        assert not OBEYED & set(written)
    assert "](javascript" not in render_markdown("report", page).replace("\\](javascript", ""), "as HTML it is text"


def test_a_model_card_holds_no_markup_of_others() -> None:
    from albert_cli.model import card
    from albert_cli.model.config import ModelConfig

    metrics = {f"<b>{NASTY}|\n# corpus/mlm_loss": 1.0}
    written = card.pretraining_card(ModelConfig(), 1, "sop", metrics, "") + card.finetuning_card(
        ModelConfig(), 1, PAGE_TEXT, {"accuracy": 0.5}, "", "ForSequenceClassification"
    )
    assert "<script>" not in written.replace("\\<script\\>", "")
    assert "<b>" not in written.replace("\\<b\\>", "")
    assert "\n# corpus" not in written
    assert not OBEYED & set(written)


# ---------------------------------------------------------------- where a command is called


def started(folder: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """`albert ARGUMENTS` as a process of its own in a folder, with no more of the environment than it needs."""
    minimal = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    call = [sys.executable, "-P", "-m", "albert_cli", *map(str, arguments)]
    done = subprocess.run(
        call, cwd=folder, env=minimal | environment, capture_output=True, encoding="utf-8", check=False
    )
    assert "Traceback" not in done.stderr
    return done


def test_modules_in_the_folder_of_a_command_are_not_imported(tmp_path: Path, documents: list[str]) -> None:
    for name in ("signal", "struct", "pickle", "numpy", "sentencex"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('owned')\nopen('owned', 'w')\n")
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(documents))
    done = started(tmp_path, "vocab", "a.txt", "b.txt@2", "--size", 300, "--workers", 2, "--out", "v")
    assert done.returncode == 0, done.stderr
    assert "owned" not in done.stderr


def test_a_locale_without_the_characters_of_a_path(tmp_path: Path, finished: Path) -> None:
    """Nor is there a home or a folder for temporary files, and few files may be open."""
    folder = tmp_path / "a päth with späces 日本"
    folder.mkdir()
    (folder / "tëxt.txt").write_text("Bade [MASK].\n")
    shutil.copytree(store.saved_steps(finished)[-1], folder / "mödel")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "HOME": "/proc/none", "TMPDIR": "/proc"}
    done = started(folder, "encode", "mödel", "--input", "tëxt.txt", "--out", "vëctors.safetensors", **plain)
    assert done.returncode == 0, done.stderr
    assert (folder / "vëctors.safetensors").is_file()
    done = started(folder, "fill-mask", "mödel", "bade [MASK]", "--json", **plain)
    assert done.returncode == 0 and json.loads(done.stdout)
