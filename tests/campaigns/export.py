"""Compare an exported classifier in three runtimes on a whole dev set: `albert`, onnxruntime and transformers.js.

python -m tests.campaigns.export OUT --checkpoint CHECKPOINT --data GLUE

The command exports the checkpoint. Then `albert predict`, onnxruntime with `AutoTokenizer`, and transformers.js in Node
label every text of the task's dev set, the last two with the fp32 and the int8 file. All ids must be equal, and so must
the labels of runtimes that use the same file. Node and npm must be on PATH; npm downloads transformers.js.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import transformers

from albert_cli.console import format_table
from tests.helpers.command import albert

SCRIPT = Path(__file__).with_name("classify.mjs")
PACKAGE = "@huggingface/transformers@4"
FILES = {"fp32": "onnx/model.onnx", "int8": "onnx/model_quantized.onnx"}
Texts = Sequence[tuple[str, ...]]  # one text or two


@dataclass(frozen=True)
class Classified:
    """The labels and input ids of all texts from one runtime; `albert predict` does not print ids."""

    labels: Sequence[str]
    ids: Sequence[Sequence[int]] = ()


def install_transformers_js(folder: Path) -> None:
    """Install transformers.js unless it is installed; without install scripts, which would download GPU libraries."""
    if not (folder / "node_modules" / "@huggingface").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        command = ("npm", "install", "--silent", "--no-fund", "--no-audit", "--ignore-scripts", PACKAGE)
        subprocess.run(command, cwd=folder, check=True)
    (folder / SCRIPT.name).write_bytes(SCRIPT.read_bytes())


def classify_in_node(exported: Path, precision: str, texts: Texts, folder: Path) -> Classified:
    """Classify texts one by one with transformers.js, which is installed in `folder`."""
    dtype = {"fp32": "fp32", "int8": "q8"}[precision]
    command = ("node", SCRIPT.name, str(exported.resolve()), dtype)
    result = subprocess.run(command, cwd=folder, input=json.dumps(list(texts)), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    return Classified([row["label"] for row in rows], [row["ids"] for row in rows])


def classify_in_onnxruntime(exported: Path, precision: str, texts: Texts) -> Classified:
    """Classify texts one by one with onnxruntime, using only the files of the export."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(exported)
    session = onnxruntime.InferenceSession(str(exported / FILES[precision]), providers=["CPUExecutionProvider"])
    names = json.loads((exported / "config.json").read_text(encoding="utf-8"))["id2label"]
    labels = []
    ids = []
    for text in texts:
        batch = tokenizer(*text, truncation=True, return_tensors="np")
        feeds = {name: batch[name].astype(np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
        (logits,) = session.run(None, feeds)
        labels.append(names[str(int(logits[0].argmax()))])
        ids.append(batch["input_ids"][0].tolist())
    return Classified(labels, ids)


def classify_in_albert(checkpoint: Path, texts: Texts, folder: Path) -> Classified:
    """Classify texts with `albert predict`."""
    lines = [json.dumps(dict(zip(("text", "text_pair"), text, strict=False))) for text in texts]
    (folder / "dev.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    albert(
        "predict", checkpoint, "--input", folder / "dev.jsonl", "--out", folder / "labels.jsonl", "--precision", "fp32"
    )
    rows = (folder / "labels.jsonl").read_text(encoding="utf-8").splitlines()
    return Classified([json.loads(row)["prediction"] for row in rows])


def compare(checkpoint: Path, exported: Path, texts: Texts, folder: Path, node: Path) -> dict[str, Classified]:
    """Return the results of each runtime and precision."""
    install_transformers_js(node)
    results = {"albert predict": classify_in_albert(checkpoint, texts, folder)}
    for precision in FILES:
        results[f"onnxruntime, {precision}"] = classify_in_onnxruntime(exported, precision, texts)
        results[f"transformers.js, {precision}"] = classify_in_node(exported, precision, texts, node)
    return results


def differences(results: Mapping[str, Classified]) -> Iterator[tuple[str, int, int]]:
    """Yield each runtime, the number of its labels that differ from the reference, and of its texts with other ids.

    The reference of the fp32 labels is `albert predict`, that of the int8 labels is onnxruntime with the same file, and
    that of the ids is onnxruntime.
    """
    ids = results["onnxruntime, fp32"].ids
    for name, result in results.items():
        reference = results["onnxruntime, int8" if name.endswith("int8") else "albert predict"]
        other_labels = sum(label != expected for label, expected in zip(result.labels, reference.labels, strict=True))
        other_ids = sum(text_ids != expected for text_ids, expected in zip(result.ids, ids, strict=False))
        yield name, other_labels, other_ids


def dev_texts(checkpoint: Path) -> list[tuple[str, ...]]:
    """Return the dev texts of a task checkpoint, from its file of predictions."""
    lines = (checkpoint / "predictions.dev.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [tuple(row[name] for name in ("text", "text_pair") if name in row) for row in rows]


def main() -> None:
    """Export, classify and print the table; fail if labels or ids differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--checkpoint", type=Path, required=True, help="a classifier from `albert finetune`")
    parser.add_argument("--data", required=True, help="the files of its task")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    exported = arguments.out / "exported"
    print(albert("export", arguments.checkpoint, "--data", arguments.data, "--out", exported).out)
    texts = dev_texts(arguments.checkpoint)
    results = compare(arguments.checkpoint, exported, texts, arguments.out, arguments.out / "node")
    rows = list(differences(results))
    print(format_table((f"{len(texts):,} texts", "other labels", "other ids"), rows))
    assert not any(labels or ids for _, labels, ids in rows), "runtimes differ"


if __name__ == "__main__":
    main()
