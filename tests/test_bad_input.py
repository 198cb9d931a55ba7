"""Bad input: one line that names the place, a hint, the documented exit code, and nothing half-written."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from albert_cli import store
from tests.helpers.command import QUICK, TINY, albert, pretrained, snapshot, write_table
from tests.helpers.rejection import BUSY, CHECKPOINT, INPUT, USAGE, refused, work

__all__ = ["work"]  # a fixture for every test of this module


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_data: Path) -> Path:
    return pretrained(tiny_data, tmp_path_factory.mktemp("bad") / "run")


@pytest.fixture
def table(work: Path) -> Path:
    return write_table(work / "table")


# ---------------------------------------------------------------- text


@pytest.mark.parametrize("verb", ["vocab", "data"])
def test_a_missing_file(verb: str, tiny_vocabulary: Path) -> None:
    extra = ["--vocab", tiny_vocabulary] if verb == "data" else []
    printed = refused(INPUT, verb, "nowhere.txt", *extra, "--out", "out")
    assert "error: nowhere.txt: no such file or folder" in printed.err


@pytest.mark.parametrize("text", ["", "\n \n\n"])
@pytest.mark.parametrize("verb", ["vocab", "data"])
def test_an_empty_corpus(verb: str, text: str, work: Path, tiny_vocabulary: Path) -> None:
    (work / "empty.txt").write_text(text)
    extra = ["--vocab", tiny_vocabulary] if verb == "data" else []
    assert "error: no text in " in refused(INPUT, verb, "empty.txt", *extra, "--out", "out").err


def test_a_vocabulary_larger_than_the_text_allows(work: Path) -> None:
    (work / "short.txt").write_text("Only a few words are here.\nThey allow a few pieces.\n")
    printed = refused(INPUT, "vocab", "short.txt", "--size", 30_000, "--out", "out")
    wanted = re.search(r"--size (\d+)", printed.err.splitlines()[-1])
    assert wanted is not None, "the hint names a size that is possible"
    albert("vocab", "short.txt", "--size", wanted[1], "--out", "out")


BAD_LINE = b"The third line has a bad \xff byte.\n"


def bad_text() -> Path:
    path = Path("bad.txt")
    path.write_bytes(b"A first line of text.\nA second line of text.\n" + BAD_LINE + b"And a fourth.\n" * 40)
    return path


@pytest.mark.parametrize("verb", ["vocab", "data"])
def test_invalid_utf8_is_located_and_may_be_replaced(verb: str, tiny_vocabulary: Path) -> None:
    path = bad_text()
    extra = ["--vocab", tiny_vocabulary] if verb == "data" else ["--size", 36]
    printed = refused(INPUT, verb, path, *extra, "--out", "out")
    byte = path.read_bytes().index(b"\xff")
    error, hint = printed.err.splitlines()[-2:]
    assert "bad.txt:3" in error
    assert re.search(rf"\b{byte}\b", error), f"the byte's place in the file ({byte}) is not named: {error}"
    assert "--on-bad-bytes replace" in hint
    albert(verb, path, *extra, "--out", "out", "--on-bad-bytes", "replace")
    assert store.read_manifest(Path("out")) is not None


def test_a_record_that_is_not_json(work: Path) -> None:
    (work / "a.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    printed = albert("vocab", "a.jsonl", "--out", "out", expect=INPUT)
    assert printed.err.splitlines()[0].startswith("error: a.jsonl:2: not valid JSON")
    assert not Path("out").exists()


def test_a_record_without_the_field(work: Path) -> None:
    (work / "a.jsonl").write_text('{"body": "words"}\n')
    printed = refused(INPUT, "vocab", "a.jsonl", "--out", "out")
    assert "error: a.jsonl:1" in printed.err
    assert "--text-field" in printed.err


def test_a_table_that_is_cut_at_another_sign(work: Path, run: Path) -> None:
    (work / "a.csv").write_text("id;text;label\n1;Yes, it is.;good\n2;No.;bad\n")
    printed = refused(INPUT, "vocab", "a.csv", "--out", "out")
    assert "error: a.csv:1: a single column, 'id;text;label'\nhint: separate the columns of a .csv by" in printed.err
    (work / "b.csv").write_text("text|label\nYes, it is.|good\nNo.|bad\n")
    printed = refused(INPUT, "finetune", "table", "--checkpoint", run, "--data", "b.csv", "--out", "out")
    assert "error: b.csv:2: 2 fields instead of 1\nhint: use -s table.d" in printed.err


def test_text_of_a_spreadsheet(work: Path, run: Path) -> None:
    """A spreadsheet saves UTF-16 as `Unicode text`, and tables, whose lines are no texts."""
    (work / "a.tsv").write_text("text\tlabel\nwords\tgood\n", encoding="utf-16")
    for call in (("vocab", "a.tsv"), ("finetune", "table", "--checkpoint", run, "--data", "a.tsv")):
        assert "error: a.tsv: is UTF-16, not UTF-8" in refused(INPUT, *call, "--out", "out").err
    assert "error: a.tsv: is UTF-16, not UTF-8" in refused(INPUT, "encode", run, "--input", "a.tsv").err
    (work / "a.csv").write_text("text,label\nwords,good\n")
    assert albert("encode", run, "--input", "a.csv").out.count("vector") == 1  # the header is no text


def test_a_directory_that_is_no_vocabulary(work: Path, documents_file: Path) -> None:
    (work / "v").mkdir()
    assert "error: v: " in refused(CHECKPOINT, "data", documents_file, "--vocab", "v", "--out", "out").err


# ---------------------------------------------------------------- tables


def test_a_table_without_the_columns(table: Path, run: Path) -> None:
    for split in ("train", "dev"):
        path = table / f"{split}.tsv"
        path.write_text(path.read_text().replace("text\tlabel", "review\tstars", 1))
    call = ["finetune", "table", "--checkpoint", run, "--data", "table", "--out", "out"]
    printed = refused(INPUT, *call)
    assert "error: table/train.tsv: no column 'label' or " in printed.err
    assert "'review', 'stars'" in printed.err
    assert "-s table.label=" in printed.err
    albert(*call, *QUICK, "-s", "table.text=review", "-s", "table.label=stars")


def test_a_table_with_a_row_that_is_too_short(table: Path, run: Path) -> None:
    with (table / "train.tsv").open("a") as stream:
        stream.write("no label here\n")
    printed = refused(INPUT, "finetune", "table", "--checkpoint", run, "--data", "table", "--out", "out")
    assert "table/train.tsv:26" in printed.err


def test_a_dev_label_that_training_does_not_know(table: Path, run: Path) -> None:
    with (table / "dev.tsv").open("a") as stream:
        stream.write("words\tugly\n")
    printed = albert("finetune", "table", "--checkpoint", run, "--data", "table", "--out", "out", expect=INPUT)
    assert "error: table/dev.tsv:26: label 'ugly' is not one of bad, good" in printed.err


def test_a_task_without_its_files(work: Path, run: Path) -> None:
    (work / "glue").mkdir()
    printed = refused(INPUT, "finetune", "mrpc", "--checkpoint", run, "--data", "glue", "--out", "out")
    assert "MRPC/train.tsv" in printed.err


# ---------------------------------------------------------------- recipes


@pytest.mark.parametrize("verb", ["pretrain", "validate"])
def test_an_unknown_recipe_key(verb: str, work: Path, tiny_data: Path) -> None:
    (work / "mine.toml").write_text('extends = "mini/docs"\n[optimizer]\nlearning_rate = 0.1\nbeta3 = 0.9\n')
    call = ["pretrain", "mine.toml", "--data", tiny_data, "--out", "out"]
    printed = refused(USAGE, *(call if verb == "pretrain" else ["recipes", "validate", "mine.toml"]))
    assert "error: mine.toml: unknown key 'optimizer.learning_rate'" in printed.err


def test_an_unknown_override_is_answered_with_the_nearest_key(tiny_data: Path) -> None:
    printed = refused(USAGE, "pretrain", "mini/docs", "--data", tiny_data, "--out", "out", "-s", "train.batchsize=8")
    assert "unknown key 'train.batchsize'" in printed.err
    assert "hint: did you mean 'batch_size'?" in printed.err
    printed = refused(USAGE, "pretrain", "mini/docs", "--data", tiny_data, "--out", "out", "-s", "hidden_size=8")
    assert "hint: did you mean model.hidden_size?" in printed.err


def test_an_experiment_is_no_recipe_of_a_run(tiny_data: Path) -> None:
    printed = refused(USAGE, "pretrain", "experiments/init", "--data", tiny_data, "--out", "out")
    assert "error: experiments/init is an experiment\nhint: use it with `albert reproduce`" in printed.err


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("train.batch_size=many", "train.batch_size"),
        ("train.batch_size=0", "train.batch_size"),
        ("optimizer.lr=-1", "optimizer.lr"),
        ("model.num_attention_heads=7", "7 attention heads"),
        ("data.max_seq_length=4096", "data.max_seq_length"),
        ("batch_size", "batch_size"),
    ],
)
def test_a_value_that_cannot_be(override: str, named: str, tiny_data: Path) -> None:
    call = ["pretrain", "mini/docs", "--data", tiny_data, "--out", "out", "-s", override]
    before = snapshot(Path())
    printed = albert(*call, expect=USAGE)
    assert snapshot(Path()) == before
    assert printed.err.startswith("error: ")
    assert named in printed.err.splitlines()[0]


# ---------------------------------------------------------------- checkpoints


def without_manifest(run: Path, to: Path) -> Path:
    """A copy of a run's newest step as if another program had written it."""
    shutil.copytree(sorted(run.glob("step-*"))[-1], to)
    (to / "manifest.json").unlink()
    return to


@pytest.mark.parametrize("verb", ["finetune", "eval"])
def test_a_checkpoint_that_does_not_cover_the_encoder(verb: str, run: Path, table: Path) -> None:
    from safetensors.torch import load_file, save_file

    checkpoint = without_manifest(run, Path("foreign"))
    tensors = load_file(checkpoint / "model.safetensors")
    dropped = next(name for name in tensors if "attention" in name)
    save_file({name: t for name, t in tensors.items() if name != dropped}, checkpoint / "model.safetensors")
    call = [verb, "table", "--checkpoint", "foreign", "--data", "table", "--out", "out", *QUICK]
    assert "error: foreign/model.safetensors: does not cover the encoder" in refused(CHECKPOINT, *call).err


def test_a_checkpoint_of_another_shape(run: Path, table: Path) -> None:
    checkpoint = without_manifest(run, Path("foreign"))
    values = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**values, "intermediate_size": 96}))
    call = ["finetune", "table", "--checkpoint", "foreign", "--data", "table", "--out", "out", *QUICK]
    assert "has shape" in refused(CHECKPOINT, *call).err


def test_a_checkpoint_with_a_flipped_bit(run: Path, table: Path) -> None:
    step = shutil.copytree(sorted(run.glob("step-*"))[-1], Path("copy"))
    weights = bytearray((step / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (step / "model.safetensors").write_bytes(weights)
    printed = albert("finetune", "table", "--checkpoint", "copy", "--data", "table", "--out", "out", expect=CHECKPOINT)
    assert "error: copy/model.safetensors: damaged" in printed.err
    assert not Path("out").exists()
    assert "damaged" in albert("inspect", "copy", "--verify", expect=CHECKPOINT).err


def test_a_checkpoint_that_is_not_there(table: Path) -> None:
    call = ["finetune", "table", "--checkpoint", "./nowhere", "--data", "table", "--out", "out"]
    assert "error: nowhere: no such directory" in refused(CHECKPOINT, *call).err


def test_predict_pretrained_run_needs_pairs(run: Path, documents_file: Path) -> None:
    printed = refused(INPUT, "predict", run, "--input", documents_file, "--out", "out.jsonl")
    assert ":1: one text, but " in printed.err


def test_data_that_is_not_there() -> None:
    refused(CHECKPOINT, "pretrain", "mini/docs", "--data", "nowhere", "--out", "out")


# ---------------------------------------------------------------- output directories


def calls(out: str, text: Path, vocabulary: Path, data: Path, run: Path) -> dict[str, list[object]]:
    """Every verb that writes a directory."""
    tuned = ["--checkpoint", run, "--data", "table", "--out", out, *QUICK]
    return {
        "vocab": ["vocab", text, "--size", 200, "--out", out],
        "data": ["data", text, "--vocab", vocabulary, "--out", out],
        "pretrain": ["pretrain", "mini/docs", "--data", data, "--out", out, *TINY],
        "finetune": ["finetune", "table", *tuned],
        "eval": ["eval", "table", "--runs", 1, *tuned],
        "quickstart": ["quickstart", "--smoke", "--out", out],
    }


WRITERS = list(calls("", *[Path()] * 4))


@pytest.mark.parametrize("verb", WRITERS)
def test_an_output_directory_that_holds_something_else(
    verb: str, work: Path, table: Path, documents_file: Path, tiny_vocabulary: Path, tiny_data: Path, run: Path
) -> None:
    (work / "out").mkdir()
    (work / "out" / "thesis.txt").write_text("do not touch")
    printed = refused(BUSY, *calls("out", documents_file, tiny_vocabulary, tiny_data, run)[verb])
    assert "remove" not in printed.err, "what is there is not ours"


# eval locks each of its runs
@pytest.mark.parametrize("verb", [verb for verb in WRITERS if verb != "eval"])
def test_an_output_directory_that_another_run_writes(
    verb: str, table: Path, documents_file: Path, tiny_vocabulary: Path, tiny_data: Path, run: Path
) -> None:
    with store.lock(Path("out")):
        printed = refused(BUSY, *calls("out", documents_file, tiny_vocabulary, tiny_data, run)[verb])
    assert "error: out: another run is writing here" in printed.err


@pytest.mark.parametrize("verb", WRITERS)
def test_an_output_that_is_a_file(
    verb: str, work: Path, table: Path, documents_file: Path, tiny_vocabulary: Path, tiny_data: Path, run: Path
) -> None:
    (work / "out").write_text("a file")
    refused(BUSY, *calls("out", documents_file, tiny_vocabulary, tiny_data, run)[verb])


def test_a_run_goes_on_only_with_the_recipe_it_began_with(run: Path, tiny_data: Path) -> None:
    shutil.copytree(run, "run")
    printed = refused(
        USAGE, "pretrain", "mini/docs", "--data", tiny_data, "--out", "run", *TINY, "-s", "optimizer.lr=0.5"
    )
    assert "optimizer.lr" in printed.err
    Path("run/recipe.toml").write_text("train = 1\n")
    printed = refused(CHECKPOINT, "pretrain", "mini/docs", "--data", tiny_data, "--out", "run", *TINY)
    assert "run/recipe.toml: has no section [train]" in printed.err


def test_never_and_must_mean_what_they_say(run: Path, tiny_data: Path) -> None:
    shutil.copytree(run, "run")
    refused(BUSY, "pretrain", "mini/docs", "--data", tiny_data, "--out", "run", "--resume", "never", *TINY)
    refused(USAGE, "pretrain", "mini/docs", "--data", tiny_data, "--out", "new", "--resume", "must", *TINY)


# ---------------------------------------------------------------- bugs


def test_a_bug_is_told_from_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    from albert_cli import doctor

    def broken() -> None:
        raise ZeroDivisionError("an accident")

    monkeypatch.setattr(doctor, "describe_environment", broken)
    printed = albert("doctor", expect=1)
    assert printed.err.splitlines()[0] == "error: ZeroDivisionError: an accident"
    assert "--debug" in printed.err.splitlines()[1]
    assert "Traceback" in albert("doctor", "--debug", expect=1).err


def test_a_path_that_the_system_refuses_is_no_bug(run: Path, work: Path) -> None:
    (work / "file").write_text("a file")
    printed = refused(INPUT, "report", run, "--out", "file/report.html")
    assert "error: file" in printed.err


def test_an_output_file_that_is_a_directory(run: Path, work: Path) -> None:
    (work / "there").mkdir()
    assert "error: --out there: is a directory" in refused(USAGE, "report", run, "--out", "there").err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FileNotFoundError(2, "No such file", "CUDA out of memory/x"), INPUT),
        (OSError(19, "No such device", "can't allocate memory.txt"), CHECKPOINT),
        (ValueError("out of memory.txt has no column"), 1),
        (OSError(24, "Too many open files", "x"), CHECKPOINT),
        (RuntimeError("unable to mmap 8 bytes from file <(12)>: Input/output error (5)"), CHECKPOINT),
    ],
    ids=lambda value: str(value)[:30],
)
def test_the_name_of_a_file_is_not_taken_for_the_cause(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    from albert_cli import doctor

    def fail() -> None:
        raise error

    monkeypatch.setattr(doctor, "describe_environment", fail)
    printed = refused(code, "doctor")
    assert "error: out of memory" not in printed.err
    assert ("ulimit -n" in printed.err) == (error.args[0] == 24)


def test_too_little_memory_is_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from albert_cli import doctor

    def fail() -> None:
        raise RuntimeError("unable to mmap 8 bytes from file <(5)>: Cannot allocate memory (12)")

    for cause in (lambda: torch.empty(2**50), fail):  # more than can be addressed
        monkeypatch.setattr(doctor, "describe_environment", cause)
        printed = refused(1, "doctor")
        assert "error: out of memory" in printed.err
        assert "train.micro_batch_size" in printed.err
