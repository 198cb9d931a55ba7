"""GLUE as published: every task's columns, the awkward lines, and the errors for files that are not GLUE."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from albert_cli.errors import ConfigError, InputError, MissingDataError
from albert_cli.tasks.base import fingerprint_examples
from albert_cli.tasks.classification import TextExample
from albert_cli.tasks.glue import GLUE, require_task_folders
from albert_cli.tasks.registry import TASKS, find_task

BOM = "\ufeff"
SINGLE_TEST = "index\tsentence\n"
PAIR_TEST = "index\tsentence1\tsentence2\n"
PAIR = "index\tsentence1\tsentence2\tlabel\n"
MRPC = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
MRPC_TEST = "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
STSB = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
QQP_TEST = "id\tquestion1\tquestion2\n"
MNLI_TEST = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
    "sentence2_parse\tsentence1\tsentence2\n"
)
MNLI = MNLI_TEST.replace("\n", "\tlabel1\tgold_label\n")
MNLI_DEV = MNLI_TEST.replace("\n", "\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label\n")
AX = "Lexical Semantics\tPredicate-Argument Structure\tLogic\tKnowledge\tDomain\tPremise\tHypothesis\tLabel\n"
AX_ROW = "\t\tNegation\t\tArtificial\tThe cat sat.\tThe cat did not sit.\tcontradiction"
PARSED = "5\t31193\t31193n\tgovernment\t( A . )\t( B . )\t(ROOT A)\t(ROOT B)\tA.\tB."


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


STSB_ROW = "3\tg\tf\ty\t1\tn\tn\tA .\tB .\t2.400"
MNLI_ROW = PARSED + "\tneutral\tx\tx\tx\tx\tcontradiction"

# A row in each published format: task, split, file, header, row, and the example in it.
FORMATS: list[tuple[str, str, str, str, str, TextExample]] = [
    ("cola", "train", "CoLA/train.tsv", "", "gj04\t0\t*\tBook the.", TextExample("Book the.", None, 0, "0")),
    ("cola", "test", "CoLA/test.tsv", SINGLE_TEST, "7\tHe left.", TextExample("He left.", None, None, "7")),
    ("sst2", "dev", "SST-2/dev.tsv", "sentence\tlabel\n", "fine \t1", TextExample("fine ", None, 1, "0")),
    ("sst2", "test", "SST-2/test.tsv", SINGLE_TEST, "0\tfine", TextExample("fine", None, None, "0")),
    ("mrpc", "train", "MRPC/train.tsv", BOM + MRPC, "1\t12\t13\tA .\tB .", TextExample("A .", "B .", 1, "0")),
    ("mrpc", "test", "MRPC/test.tsv", MRPC_TEST, "4\t12\t13\tA .\tB .", TextExample("A .", "B .", None, "4")),
    ("stsb", "dev", "STS-B/dev.tsv", STSB, STSB_ROW, TextExample("A .", "B .", 2.4, "3")),
    ("qqp", "dev", "QQP/dev.tsv", QQP, "9\t1\t2\tA?\tB?\t0", TextExample("A?", "B?", 0, "9")),
    ("qqp", "test", "QQP/test.tsv", QQP_TEST, "0\tA?\tB?", TextExample("A?", "B?", None, "0")),
    ("mnli", "train", "MNLI/train.tsv", MNLI, PARSED + "\tneutral\tneutral", TextExample("A.", "B.", 2, "5")),
    ("mnli", "dev_mismatched", "MNLI/dev_mismatched.tsv", MNLI_DEV, MNLI_ROW,
     TextExample("A.", "B.", 0, "5")),
    ("mnli", "test", "MNLI/test_matched.tsv", MNLI_TEST, PARSED, TextExample("A.", "B.", None, "5")),
    ("qnli", "dev", "QNLI/dev.tsv", "index\tquestion\tsentence\tlabel\n", "2\tA?\tB.\tnot_entailment",
     TextExample("A?", "B.", 1, "2")),
    ("rte", "train", "RTE/train.tsv", PAIR, "0\tA.\tB.\tentailment", TextExample("A.", "B.", 0, "0")),
    ("wnli", "dev", "WNLI/dev.tsv", PAIR, "0\tA.\tB.\t1", TextExample("A.", "B.", 1, "0")),
    ("wnli", "test", "WNLI/test.tsv", PAIR_TEST, "0\tA.\tB.", TextExample("A.", "B.", None, "0")),
    ("ax", "test", "diagnostic/diagnostic.tsv", PAIR_TEST, "4\tA.\tB.", TextExample("A.", "B.", None, "4")),
    ("ax", "dev", "diagnostic/diagnostic-full.tsv", AX, AX_ROW,
     TextExample("The cat sat.", "The cat did not sit.", 0, "0")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "split", "file", "header", "row", "expected"), FORMATS)
def test_read_glue_published_formats(
    tmp_path: Path, name: str, split: str, file: str, header: str, row: str, expected: TextExample
) -> None:
    path = write(tmp_path / file, f"{header}{row}\n")
    task = find_task(name)
    assert task.read(split, str(tmp_path)) == [expected]
    assert task.read(split, str(path.parent)) == [expected]  # the task's own folder is as good


QNLI = "index\tquestion\tsentence\tlabel\n"
# For each format of pairs: the file, its header, and a row around two texts with its label last.
PAIRS = [
    ("mnli", "train", MNLI, "{i}\t3\t3n\tslate\t( A )\t( B )\t(ROOT A)\t(ROOT B)\t{a}\t{b}\tneutral\tneutral"),
    ("qnli", "dev", QNLI, "{i}\t{a}\t{b}\tentailment"),
    ("qqp", "train", QQP, "{i}\t1\t2\t{a}\t{b}\t1"),
    ("wnli", "train", PAIR, "{i}\t{a}\t{b}\t0"),
    ("rte", "dev", PAIR, "{i}\t{a}\t{b}\tentailment"),
    ("ax", "dev", AX, "Quantifiers\t\t\t\tNews\t{a}\t{b}\tneutral"),
]
AWKWARD = (
    '" he said', 'the 5" disc', '"quoted whole"', 'a ""doubled"" one', "'", "", " ", "x\u2028y\u2029z\x85\x0b\x0cend",
    "a\rb", "trailing ", "\ufeffmark", "word " * 20_000, "\\N", "# 1", "=1+1",
)  # fmt: skip


@pytest.mark.parametrize(("name", "split", "header", "row"), PAIRS)
def test_read_glue_awkward_texts_are_unchanged(tmp_path: Path, name: str, split: str, header: str, row: str) -> None:
    stem = "diagnostic-full" if name == "ax" else split
    rows = [row.format(i=i, a=text, b=text[::-1]) + "\n" for i, text in enumerate(AWKWARD)]
    write(tmp_path / f"{stem}.tsv", header + "".join(rows))
    examples = GLUE[name].read(split, str(tmp_path))
    assert [e.text_a for e in examples] == list(AWKWARD)
    assert [e.text_b for e in examples] == [text[::-1] for text in AWKWARD]
    assert len({e.label for e in examples}) == 1


@pytest.mark.parametrize(("name", "split", "header", "row"), PAIRS)
def test_read_glue_tab_in_quotes_names_the_line(tmp_path: Path, name: str, split: str, header: str, row: str) -> None:
    """Quotes mean nothing in GLUE, so that such a row has a field too many; QQP's is told by its label."""
    stem = "diagnostic-full" if name == "ax" else split
    rows = [row.format(i=i, a="A.", b=text) for i, text in enumerate(["B.", '"B\tC"'])]
    write(tmp_path / f"{stem}.tsv", header + "\n".join(rows) + "\n")
    with pytest.raises(InputError, match=rf"{stem}\.tsv:3: (\d+ fields? instead of \d+|label 'C\"')"):
        GLUE[name].read(split, str(tmp_path))


def test_read_glue_windows_line_ends(tmp_path: Path) -> None:
    write(tmp_path / "dev.tsv", "sentence\tlabel\r\ngood\t1\r\nbad\t0")
    assert [(e.text_a, e.label) for e in GLUE["sst2"].read("dev", str(tmp_path))] == [
        ("good", 1),
        ("bad", 0),
    ]


def test_read_qqp_short_rows_are_skipped_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "1\t1\t2\tA?\tB?\t1\n2\t1\t2\tcut\n\tby a line break?\t0\n3\t1\t2\tC?\tD?\t0\n"
    write(tmp_path / "train.tsv", QQP + rows)
    assert [e.id for e in GLUE["qqp"].read("train", str(tmp_path))] == ["1", "3"]
    assert "2 rows" in capsys.readouterr().err


RTE = PAIR + "0\tA.\tB.\tentailment\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (RTE + "1\tA.\tB.\n", "dev.tsv:3: 3 fields instead of 4"),
        (RTE + "1\tA.\tB\t.\tentailment\n", "dev.tsv:3: 5 fields instead of 4"),
        (RTE + "\n", "dev.tsv:3: 1 field "),
        (RTE + "1\tA.\tB.\tneutral\n", "dev.tsv:3: label 'neutral' is not one of entailment, not_entailment"),
        (RTE + "1\tA.\tB.\t-1\n", "dev.tsv:3: label '-1'"),
        (RTE + "1\tA.\tB.\t1.0\n", "dev.tsv:3: label '1.0' is not one of entailment, not_entailment"),
        (RTE + "0\tC.\tD.\tentailment\n", "dev.tsv:3: the id '0' is already used at"),
        ("0\tA.\tB.\tentailment\n" * 2, "dev.tsv: no column 'sentence1' (columns: 0, A., B., entailment)"),
        ("index\tsentence1\tsentence2\n0\tA.\tB.\n", "no column 'label'"),
        ("index\n0\n", "no column 'sentence1'"),
        (PAIR, "holds no examples"),
        ("", "empty"),
    ],
)
def test_read_glue_unpublished_format_is_rejected(tmp_path: Path, content: str, message: str) -> None:
    write(tmp_path / "RTE" / "dev.tsv", content)
    with pytest.raises(InputError) as caught:
        GLUE["rte"].read("dev", str(tmp_path))
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_read_cola_header_is_rejected(tmp_path: Path) -> None:
    write(tmp_path / "CoLA" / "train.tsv", "source\tlabel\tstar\tsentence\ngj\t1\t\tBook the.\n")
    with pytest.raises(InputError, match=r"CoLA/train\.tsv:1: CoLA is published without a header") as caught:
        GLUE["cola"].read("train", str(tmp_path))
    assert caught.value.hint == "remove the first line"


@pytest.mark.parametrize("name", ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli"])
def test_read_glue_bare_file_of_another_task_is_missing(tmp_path: Path, name: str) -> None:
    write(tmp_path / "train.tsv", "index\tsentence1\tsentence2\tlabel\n0\tA .\tB .\tentailment\n")
    assert GLUE["rte"].read("train", str(tmp_path))
    with pytest.raises(MissingDataError, match=f"train.tsv: is not {GLUE[name].title}'s file"):
        GLUE[name].read("train", str(tmp_path))


@pytest.mark.parametrize("header", ["sentence\tlabel", "index\tquestion\tsentence\tlabel"])
def test_read_cola_bare_file_of_another_task_is_missing(tmp_path: Path, header: str) -> None:
    write(tmp_path / "train.tsv", f"{header}\n1\t1\n")
    with pytest.raises(MissingDataError, match=r"is not CoLA's file") as caught:
        GLUE["cola"].read("train", str(tmp_path))
    assert caught.value.hint is not None and "remove" not in caught.value.hint


def test_read_glue_folder_in_lower_case_is_found(tmp_path: Path) -> None:
    write(tmp_path / "rte" / "train.tsv", "index\tsentence1\tsentence2\tlabel\n0\tA .\tB .\tentailment\n")
    assert len(GLUE["rte"].read("train", str(tmp_path))) == 1


def test_require_task_folders_bare_file_is_rejected(tmp_path: Path) -> None:
    write(tmp_path / "RTE" / "train.tsv", "index\tsentence1\tsentence2\tlabel\n")
    require_task_folders(str(tmp_path))
    with pytest.raises(InputError, match="is the folder of a single task") as caught:
        require_task_folders(str(tmp_path / "RTE"))
    assert caught.value.hint is not None and str(tmp_path) in caught.value.hint


def test_read_glue_wrong_header_lists_the_columns(tmp_path: Path) -> None:
    write(tmp_path / "dev.tsv", "a\tb\n1\t2\n")
    with pytest.raises(InputError) as caught:
        GLUE["sst2"].read("dev", str(tmp_path))
    assert caught.value.hint is not None
    assert "provide the columns sentence, label" in caught.value.hint


def test_read_glue_invalid_utf8_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_bytes(b"sentence\tlabel\ngood\t1\nb\xffd\t0\n")
    with pytest.raises(InputError, match=r"dev\.tsv:3: not valid UTF-8"):
        GLUE["sst2"].read("dev", str(tmp_path))


@pytest.mark.parametrize("score", ["5.001", "-0.1", "nan", "inf", "high", ""])
def test_read_stsb_score_out_of_range_is_rejected(tmp_path: Path, score: str) -> None:
    write(tmp_path / "dev.tsv", STSB + f"3\tg\tf\t2012\t1\tn\tn\tA .\tB .\t{score}\n")
    with pytest.raises(InputError, match=r"dev\.tsv:2: label"):
        GLUE["stsb"].read("dev", str(tmp_path))


def test_read_glue_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such directory"):
        GLUE["rte"].read("dev", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"holds none of RTE/dev\.tsv, dev\.tsv"):
        GLUE["rte"].read("dev", str(tmp_path))


def test_find_task_names_metrics_and_labels() -> None:
    assert GLUE["mrpc"].metrics[0] == "accuracy"
    assert GLUE["mnli"].labels == ("contradiction", "entailment", "neutral")
    assert [len(find_task(name).output_names) for name in ("stsb", "cola", "mnli")] == [1, 2, 3]
    with pytest.raises(ConfigError) as caught:
        find_task("mprc")
    assert caught.value.hint == "did you mean 'mrpc'?"
    assert caught.value.exit_code == 2


def test_read_unknown_split_is_rejected() -> None:
    assert TASKS["mnli"].splits == (
        "train",
        "dev_matched",
        "dev_mismatched",
        "test_matched",
        "test_mismatched",
    )
    with pytest.raises(ConfigError, match="has no split"):
        TASKS["rte"].read("validation", "anywhere")


def test_fingerprint_examples_differs_for_other_data() -> None:
    one, other = TextExample("a", "b", 1, "0"), TextExample("ab", "", 1, "0")
    inputs: list[tuple[list[str], dict[str, list[TextExample]]]] = [
        (["no", "yes"], {"train": [one], "dev": [other]}),
        (["bad", "good"], {"train": [one], "dev": [other]}),  # other names of the same classes
        (["no", "yes"], {"train": [other], "dev": [one]}),
        (["no", "yes"], {"train": [one, other], "dev": []}),  # an example moved to another split
        (["no", "yes"], {"train": [], "dev": [one, other]}),
        (["no", "yes"], {"train": [one], "test": [other]}),
        (["no", "yes"], {"train": [one, one], "dev": [other]}),
        (["no", "yes"], {}),
    ]
    fingerprints = [fingerprint_examples(names, examples) for names, examples in inputs]
    assert fingerprints == [fingerprint_examples(names, examples) for names, examples in inputs]
    assert len(set(fingerprints)) == len(inputs)


# ---------------------------------------------------------------- the Hub's form, from a local folder


def hub_folder(folder: Path, names: list[str], rows: list[dict[str, object]]) -> str:
    """A data set as `datasets` finds it in a repository: rows, and class names in the card."""
    classes = "".join(f"\n            '{i}': {name}" for i, name in enumerate(names))
    texts = [key for key in rows[0] if key not in ("label", "idx")]
    features = "".join(f"\n  - name: {text}\n    dtype: string" for text in texts)
    card = f"""---
dataset_info:
  features:{features}
  - name: label
    dtype:
      class_label:
        names:{classes}
  - name: idx
    dtype: int32
configs:
- config_name: default
  data_files:
  - split: train
    path: train.jsonl
  - split: test
    path: test.jsonl
---
"""
    write(folder / "README.md", card)
    write(folder / "train.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    write(folder / "test.jsonl", "".join(json.dumps({**row, "label": -1}) + "\n" for row in rows))
    return f"hf:{folder}"


@pytest.mark.usefixtures("datasets_cache")
def test_read_hub_class_names_follow_task_labels(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"premise": f"p{i}", "hypothesis": "h", "label": i, "idx": 10 + i} for i in range(3)
    ]
    source = hub_folder(tmp_path / "mnli", ["entailment", "neutral", "contradiction"], rows)
    mnli = GLUE["mnli"]
    assert [e.label for e in mnli.read("train", source)] == [1, 2, 0]
    with pytest.raises(InputError, match="validation_matched"):
        mnli.read("dev", source)


@pytest.mark.usefixtures("datasets_cache")
def test_read_hub_diagnostics_have_no_labels(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"premise": "p", "hypothesis": "h", "label": i, "idx": i} for i in range(3)]
    source = hub_folder(tmp_path / "ax", ["entailment", "neutral", "contradiction"], rows)
    assert GLUE["ax"].read("test", source)[2] == TextExample("p", "h", None, "2")


@pytest.mark.usefixtures("datasets_cache")
def test_read_hub_other_class_names_become_numbers(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"sentence": f"s{i}", "label": i, "idx": i} for i in range(2)]
    source = hub_folder(tmp_path / "cola", ["unacceptable", "acceptable"], rows)
    cola = GLUE["cola"]
    assert cola.read("train", source) == [TextExample("s0", None, 0, "0"), TextExample("s1", None, 1, "1")]
    assert cola.read("test", source)[1] == TextExample("s1", None, None, "1")
    with pytest.raises(InputError, match="no column 'sentence1'"):
        GLUE["rte"].read("train", source)


# ---------------------------------------------------------------- the real files


SIZES = {
    "cola": (8551, 1043, 1063),
    "sst2": (67349, 872, 1821),
    "mrpc": (3668, 408, 1725),
    "stsb": (5749, 1500, 1379),
    "qqp": (363846, 40430, 390965),
    "mnli": (392702, 9815, 9832, 9796, 9847),
    "qnli": (104743, 5463, 5463),
    "rte": (2490, 277, 3000),
    "wnli": (635, 71, 146),
    "ax": (1104, 1104),
}


@pytest.mark.parametrize("name", SIZES)
def test_read_glue_published_sizes(shared_data: Path, name: str) -> None:
    task, folder = GLUE[name], shared_data / "glue"
    read = 0
    for split, size in zip(task.splits, SIZES[name], strict=True):
        try:
            examples = task.read(split, str(folder))
        except MissingDataError:
            continue
        assert len(examples) == size
        assert len({e.id for e in examples}) == size
        assert all((e.label is None) == (split in task.test_splits) for e in examples)
        read += 1
    if not read:
        pytest.skip(f"{task.title} is not in {folder}")
