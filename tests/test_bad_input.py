"""Commands reject bad input with one error line, a hint and the documented exit code, and leave no files."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from albert_cli import store
from tests.helpers.command import QUICK, TINY, albert, pretrained, snapshot, write_table
from tests.helpers.rejection import BUSY, CHECKPOINT, INPUT, USAGE, refused, work

__all__ = ["work"]  # a fixture that every test of this module uses


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_data: Path) -> Path:
    return pretrained(tiny_data, tmp_path_factory.mktemp("bad") / "run")


@pytest.fixture
def table(work: Path) -> Path:
    return write_table(work / "table")


# ---------------------------------------------------------------- text


@pytest.mark.parametrize("verb", ["vocab", "data"])
def test_missing_text_file_is_reported(verb: str, tiny_vocabulary: Path) -> None:
    extra = ["--vocab", tiny_vocabulary] if verb == "data" else []
    result = refused(INPUT, verb, "nowhere.txt", *extra, "--out", "out")
    assert "error: nowhere.txt: no such file or folder" in result.err
    assert "-," not in result.err, "not all commands read stdin"


@pytest.mark.parametrize("text", ["", "\n \n\n"])
@pytest.mark.parametrize("verb", ["vocab", "data"])
def test_corpus_without_text_is_rejected(verb: str, text: str, work: Path, tiny_vocabulary: Path) -> None:
    (work / "empty.txt").write_text(text)
    extra = ["--vocab", tiny_vocabulary] if verb == "data" else []
    assert "error: no text in " in refused(INPUT, verb, "empty.txt", *extra, "--out", "out").err


def test_too_large_vocabulary_hint_has_a_possible_size(work: Path) -> None:
    (work / "short.txt").write_text("Only a few words are here.\nThey allow a few pieces.\n")
    result = refused(INPUT, "vocab", "short.txt", "--size", 30_000, "--out", "out")
    size = re.search(r"--size (\d+)", result.err.splitlines()[-1])
    assert size is not None, "the hint must have a possible size"
    albert("vocab", "short.txt", "--size", size[1], "--out", "out")


INVALID_LINE = b"The third line has a bad \xff byte.\n"


def write_invalid_utf8() -> Path:
    path = Path("bad.txt")
    path.write_bytes(b"A first line of text.\nA second line of text.\n" + INVALID_LINE + b"And a fourth.\n" * 40)
    return path


@pytest.mark.parametrize("verb", ["vocab", "data"])
def test_invalid_utf8_is_located_and_can_be_replaced(verb: str, tiny_vocabulary: Path) -> None:
    path = write_invalid_utf8()
    extra = ["--vocab", tiny_vocabulary] if verb == "data" else ["--size", 36]
    result = refused(INPUT, verb, path, *extra, "--out", "out")
    byte = path.read_bytes().index(b"\xff")
    error, hint = result.err.splitlines()[-2:]
    assert "bad.txt:3" in error
    assert re.search(rf"\b{byte}\b", error), f"the error must have the position of the byte, {byte}: {error}"
    assert "--on-bad-bytes replace" in hint
    albert(verb, path, *extra, "--out", "out", "--on-bad-bytes", "replace")
    assert store.read_manifest(Path("out")) is not None


def test_invalid_json_record_is_located(work: Path) -> None:
    (work / "a.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    result = albert("vocab", "a.jsonl", "--out", "out", expect=INPUT)
    assert result.err.splitlines()[0].startswith("error: a.jsonl:2: not valid JSON")
    assert not Path("out").exists()


def test_record_without_the_text_field_is_located(work: Path) -> None:
    (work / "a.jsonl").write_text('{"body": "words"}\n')
    result = refused(INPUT, "vocab", "a.jsonl", "--out", "out")
    assert "error: a.jsonl:1" in result.err
    assert "--text-field" in result.err


def test_table_with_another_delimiter_is_rejected(work: Path, run: Path) -> None:
    (work / "a.csv").write_text("id;text;label\n1;Yes, it is.;good\n2;No.;bad\n")
    result = refused(INPUT, "vocab", "a.csv", "--out", "out")
    assert "error: a.csv:1: a single column, 'id;text;label'\nhint: separate the columns of a .csv by" in result.err
    (work / "b.csv").write_text("text|label\nYes, it is.|good\nNo.|bad\n")
    result = refused(INPUT, "finetune", "table", "--checkpoint", run, "--data", "b.csv", "--out", "out")
    assert "error: b.csv:2: 2 fields instead of 1\nhint: use -s table.d" in result.err


def test_utf16_of_a_spreadsheet_is_rejected(work: Path, run: Path) -> None:
    """Spreadsheets save "Unicode text" as UTF-16. In their tables, the header line is no text."""
    (work / "a.tsv").write_text("text\tlabel\nwords\tgood\n", encoding="utf-16")
    for call in (("vocab", "a.tsv"), ("finetune", "table", "--checkpoint", run, "--data", "a.tsv")):
        assert "error: a.tsv: is UTF-16, not UTF-8" in refused(INPUT, *call, "--out", "out").err
    assert "error: a.tsv: is UTF-16, not UTF-8" in refused(INPUT, "encode", run, "--input", "a.tsv").err
    (work / "a.csv").write_text("text,label\nwords,good\n")
    assert albert("encode", run, "--input", "a.csv").out.count("vector") == 1


def test_directory_without_a_vocabulary_is_rejected(work: Path, documents_file: Path) -> None:
    (work / "v").mkdir()
    assert "error: v: " in refused(CHECKPOINT, "data", documents_file, "--vocab", "v", "--out", "out").err


# ---------------------------------------------------------------- tables


def test_missing_table_columns_are_reported(table: Path, run: Path) -> None:
    for split in ("train", "dev"):
        path = table / f"{split}.tsv"
        path.write_text(path.read_text().replace("text\tlabel", "review\tstars", 1))
    call = ["finetune", "table", "--checkpoint", run, "--data", "table", "--out", "out"]
    result = refused(INPUT, *call)
    assert "error: table/train.tsv: no column 'label' or " in result.err
    assert "'review', 'stars'" in result.err
    assert "-s table.label=" in result.err
    albert(*call, *QUICK, "-s", "table.text=review", "-s", "table.label=stars")


def test_table_row_with_too_few_cells_is_located(table: Path, run: Path) -> None:
    with (table / "train.tsv").open("a") as stream:
        stream.write("no label here\n")
    result = refused(INPUT, "finetune", "table", "--checkpoint", run, "--data", "table", "--out", "out")
    assert "table/train.tsv:26" in result.err


def test_dev_label_missing_in_training_is_rejected(table: Path, run: Path) -> None:
    with (table / "dev.tsv").open("a") as stream:
        stream.write("words\tugly\n")
    result = albert("finetune", "table", "--checkpoint", run, "--data", "table", "--out", "out", expect=INPUT)
    assert "error: table/dev.tsv:26: label 'ugly' is not one of bad, good" in result.err


def test_missing_task_files_are_reported(work: Path, run: Path) -> None:
    (work / "glue").mkdir()
    result = refused(INPUT, "finetune", "mrpc", "--checkpoint", run, "--data", "glue", "--out", "out")
    assert "MRPC/train.tsv" in result.err


# ---------------------------------------------------------------- recipes


@pytest.mark.parametrize("verb", ["pretrain", "validate"])
def test_unknown_recipe_key_is_reported(verb: str, work: Path, tiny_data: Path) -> None:
    (work / "mine.toml").write_text('extends = "mini/docs"\n[optimizer]\nlearning_rate = 0.1\nbeta3 = 0.9\n')
    call = ["pretrain", "mine.toml", "--data", tiny_data, "--out", "out"]
    result = refused(USAGE, *(call if verb == "pretrain" else ["recipes", "validate", "mine.toml"]))
    assert "error: mine.toml: unknown key 'optimizer.learning_rate'" in result.err


def test_unknown_override_gets_the_nearest_key_as_hint(tiny_data: Path) -> None:
    result = refused(USAGE, "pretrain", "mini/docs", "--data", tiny_data, "--out", "out", "-s", "train.batchsize=8")
    assert "unknown key 'train.batchsize'" in result.err
    assert "hint: did you mean 'batch_size'?" in result.err
    result = refused(USAGE, "pretrain", "mini/docs", "--data", tiny_data, "--out", "out", "-s", "hidden_size=8")
    assert "hint: did you mean model.hidden_size?" in result.err


def test_pretrain_rejects_the_recipe_of_an_experiment(tiny_data: Path) -> None:
    result = refused(USAGE, "pretrain", "experiments/init", "--data", tiny_data, "--out", "out")
    assert "error: experiments/init is an experiment\nhint: use it with `albert reproduce`" in result.err


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.batch_size=many", "train.batch_size"),
        ("train.batch_size=0", "train.batch_size"),
        ("optimizer.lr=-1", "optimizer.lr"),
        ("model.num_attention_heads=7", "7 attention heads"),
        ("data.max_seq_length=4096", "data.max_seq_length"),
        ("batch_size", "batch_size"),
        ("model=albert-base", "model is 'albert-base'"),
        ("train=fast", "train is 'fast'"),
        ("schedule=3", "schedule is 3"),
    ],
)
def test_impossible_override_is_reported(override: str, message: str, tiny_data: Path) -> None:
    call = ["pretrain", "mini/docs", "--data", tiny_data, "--out", "out", "-s", override]
    before = snapshot(Path())
    result = albert(*call, expect=USAGE)
    assert snapshot(Path()) == before
    assert result.err.startswith("error: ")
    assert message in result.err.splitlines()[0]


# ---------------------------------------------------------------- checkpoints


def copy_without_manifest(run: Path, copy: Path) -> Path:
    """Copy a run's last step without its manifest, as if another program had written it; return the copy."""
    shutil.copytree(sorted(run.glob("step-*"))[-1], copy)
    (copy / "manifest.json").unlink()
    return copy


@pytest.mark.parametrize("verb", ["finetune", "eval"])
def test_checkpoint_without_an_encoder_tensor_is_rejected(verb: str, run: Path, table: Path) -> None:
    from safetensors.torch import load_file, save_file

    checkpoint = copy_without_manifest(run, Path("foreign"))
    tensors = load_file(checkpoint / "model.safetensors")
    dropped = next(name for name in tensors if "attention" in name)
    del tensors[dropped]
    save_file(tensors, checkpoint / "model.safetensors")
    call = [verb, "table", "--checkpoint", "foreign", "--data", "table", "--out", "out", *QUICK]
    assert "error: foreign/model.safetensors: does not cover the encoder" in refused(CHECKPOINT, *call).err


def test_checkpoint_with_another_shape_is_rejected(run: Path, table: Path) -> None:
    checkpoint = copy_without_manifest(run, Path("foreign"))
    values = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**values, "intermediate_size": 96}))
    call = ["finetune", "table", "--checkpoint", "foreign", "--data", "table", "--out", "out", *QUICK]
    assert "has shape" in refused(CHECKPOINT, *call).err


def test_checkpoint_with_a_flipped_bit_is_rejected(run: Path, table: Path) -> None:
    step = shutil.copytree(sorted(run.glob("step-*"))[-1], Path("copy"))
    weights = bytearray((step / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (step / "model.safetensors").write_bytes(weights)
    result = albert("finetune", "table", "--checkpoint", "copy", "--data", "table", "--out", "out", expect=CHECKPOINT)
    assert "error: copy/model.safetensors: damaged" in result.err
    assert not Path("out").exists()
    assert "damaged" in albert("inspect", "copy", "--verify", expect=CHECKPOINT).err


def test_missing_checkpoint_is_reported(table: Path) -> None:
    call = ["finetune", "table", "--checkpoint", "./nowhere", "--data", "table", "--out", "out"]
    assert "error: nowhere: no such directory" in refused(CHECKPOINT, *call).err


def test_predict_with_a_pretrained_run_needs_pairs(run: Path, documents_file: Path) -> None:
    result = refused(INPUT, "predict", run, "--input", documents_file, "--out", "out.jsonl")
    assert ":1: one text, but " in result.err


def test_missing_data_is_reported() -> None:
    refused(CHECKPOINT, "pretrain", "mini/docs", "--data", "nowhere", "--out", "out")


# ---------------------------------------------------------------- output directories


def writing_commands(out: str, text: Path, vocabulary: Path, data: Path, run: Path) -> dict[str, list[object]]:
    """Return a command by name for each verb that writes a directory."""
    tuned = ["--checkpoint", run, "--data", "table", "--out", out, *QUICK]
    return {
        "vocab": ["vocab", text, "--size", 200, "--out", out],
        "data": ["data", text, "--vocab", vocabulary, "--out", out],
        "pretrain": ["pretrain", "mini/docs", "--data", data, "--out", out, *TINY],
        "finetune": ["finetune", "table", *tuned],
        "eval": ["eval", "table", "--runs", 1, *tuned],
        "quickstart": ["quickstart", "--smoke", "--out", out],
    }


WRITERS = list(writing_commands("", *[Path()] * 4))


@pytest.mark.parametrize("verb", WRITERS)
def test_output_directory_with_other_files_is_rejected(
    verb: str, work: Path, table: Path, documents_file: Path, tiny_vocabulary: Path, tiny_data: Path, run: Path
) -> None:
    (work / "out").mkdir()
    (work / "out" / "thesis.txt").write_text("do not touch")
    result = refused(BUSY, *writing_commands("out", documents_file, tiny_vocabulary, tiny_data, run)[verb])
    assert "remove" not in result.err, "the hint must not suggest to remove files of the user"


# `eval` locks the directories of its runs instead.
@pytest.mark.parametrize("verb", [verb for verb in WRITERS if verb != "eval"])
def test_output_directory_of_another_run_is_rejected(
    verb: str, table: Path, documents_file: Path, tiny_vocabulary: Path, tiny_data: Path, run: Path
) -> None:
    with store.lock(Path("out")):
        result = refused(BUSY, *writing_commands("out", documents_file, tiny_vocabulary, tiny_data, run)[verb])
    assert "error: out: another run is writing here" in result.err


@pytest.mark.parametrize("verb", WRITERS)
def test_output_directory_that_is_a_file_is_rejected(
    verb: str, work: Path, table: Path, documents_file: Path, tiny_vocabulary: Path, tiny_data: Path, run: Path
) -> None:
    (work / "out").write_text("a file")
    refused(BUSY, *writing_commands("out", documents_file, tiny_vocabulary, tiny_data, run)[verb])


def test_run_resumes_only_with_its_recipe(run: Path, tiny_data: Path) -> None:
    shutil.copytree(run, "run")
    result = refused(
        USAGE, "pretrain", "mini/docs", "--data", tiny_data, "--out", "run", *TINY, "-s", "optimizer.lr=0.5"
    )
    assert "optimizer.lr" in result.err
    Path("run/recipe.toml").write_text("train = 1\n")
    result = refused(CHECKPOINT, "pretrain", "mini/docs", "--data", tiny_data, "--out", "run", *TINY)
    assert "run/recipe.toml: has no section [train]" in result.err


def test_resume_never_and_must_are_checked(run: Path, tiny_data: Path) -> None:
    shutil.copytree(run, "run")
    refused(BUSY, "pretrain", "mini/docs", "--data", tiny_data, "--out", "run", "--resume", "never", *TINY)
    refused(USAGE, "pretrain", "mini/docs", "--data", tiny_data, "--out", "new", "--resume", "must", *TINY)


# ---------------------------------------------------------------- bugs


def test_unexpected_exception_is_reported_as_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    from albert_cli import doctor

    def fail() -> None:
        raise ZeroDivisionError("an accident")

    monkeypatch.setattr(doctor, "describe_environment", fail)
    result = albert("doctor", expect=1)
    assert result.err.splitlines()[0] == "error: ZeroDivisionError: an accident"
    assert "--debug" in result.err.splitlines()[1]
    assert "Traceback" in albert("doctor", "--debug", expect=1).err


def test_output_below_a_file_is_not_reported_as_a_bug(run: Path, work: Path) -> None:
    (work / "file").write_text("a file")
    result = refused(INPUT, "report", run, "--out", "file/report.html")
    assert "error: file" in result.err


def test_output_file_that_is_a_directory_is_rejected(run: Path, work: Path) -> None:
    (work / "folder").mkdir()
    assert "error: --out folder: is a directory" in refused(USAGE, "report", run, "--out", "folder").err


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
def test_file_name_does_not_look_like_the_cause(monkeypatch: pytest.MonkeyPatch, error: Exception, code: int) -> None:
    from albert_cli import doctor

    def fail() -> None:
        raise error

    monkeypatch.setattr(doctor, "describe_environment", fail)
    result = refused(code, "doctor")
    assert "error: out of memory" not in result.err
    assert ("ulimit -n" in result.err) == (error.args[0] == 24)


def test_lack_of_memory_is_not_reported_as_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from albert_cli import doctor

    def fail() -> None:
        raise RuntimeError("unable to mmap 8 bytes from file <(5)>: Cannot allocate memory (12)")

    for cause in (lambda: torch.empty(2**50), fail):  # 2**52 bytes are more than a process can address
        monkeypatch.setattr(doctor, "describe_environment", cause)
        result = refused(1, "doctor")
        assert "error: out of memory" in result.err
        assert "train.micro_batch_size" in result.err
