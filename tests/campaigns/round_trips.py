"""Send models and tokenizers of every kind through other libraries and back, and compare ids and logits.

python -m tests.campaigns.round_trips OUT [--lines 10000]

Each row of the table is a path. Two paths begin with a vocabulary and a model of `albert`. The other paths begin with a
model and a tokenizer of `transformers`, which `albert data`, 50 steps of `pretrain`, `finetune` and `predict` use. The
ids of all lines are compared, which have eight scripts, and all outputs of the pretrained and the fine-tuned model.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import transformers

from albert_cli import store
from albert_cli.console import format_table
from albert_cli.inference.export_source import ExportRequest, open_source
from albert_cli.model import hub
from albert_cli.model.padded import PaddedModel
from albert_cli.text.vocabulary import Vocabulary
from tests.helpers.command import albert
from tests.helpers.language_check import count_different_ids
from tests.helpers.languages import sentences
from tests.helpers.tokenizers import KINDS, lines_of_eight_languages, mixed_lines

POSITIONS: Final = 64
STEPS: Final = 50
_BATCH: Final = 100  # lines
_CPU: Final = ("--device", "cpu")
_SHAPE: Final = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": POSITIONS, "initializer_range": 0.2,
}  # fmt: skip


@dataclass(frozen=True)
class RoundTrip:
    """The result of a path: the number of lines with other ids, and the largest difference of logits or vectors."""

    path: str
    lines: int
    other_ids: int
    difference: float


# ---------------------------------------------------------------- comparing


def count_other_ids(directories: Sequence[Path], lines: Sequence[str]) -> int:
    """Count the lines whose ids differ from those of the first directory, in `albert` or in `transformers`."""
    reference = Vocabulary.load(directories[0]).encode_batch(lines)
    different = sum(count_different_ids(directory, lines, reference) for directory in directories)
    for directory in directories[1:]:
        encoded = Vocabulary.load(directory).encode_batch(lines)
        different += sum(ids != expected for ids, expected in zip(encoded, reference, strict=True))
    return different


def read_ours(directory: Path) -> Callable[..., list[torch.Tensor]]:
    """Load a model with `albert`; return a function that computes the outputs of a batch."""
    model = PaddedModel(open_source(ExportRequest(str(directory))).model).eval()
    return lambda batch: list(model(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"]))


def read_theirs(directory: Path) -> Callable[..., list[torch.Tensor]]:
    """Load a model with `transformers`; return a function that computes the outputs of a batch."""
    (architecture,) = store.read_json(directory / "config.json")["architectures"]
    model = getattr(transformers, architecture).from_pretrained(directory).eval()
    return lambda batch: list(model(**batch).to_tuple())


def largest_difference(
    first: Callable[..., list[torch.Tensor]],
    second: Callable[..., list[torch.Tensor]],
    batches: Iterable[dict[str, torch.Tensor]],
) -> float:
    """Return the largest difference of any output, without padding; NaN if a difference is NaN."""
    differences = []
    with torch.inference_mode():
        for batch in batches:
            mask = batch["attention_mask"].bool()
            for ours, theirs in zip(first(batch), second(batch), strict=True):
                difference = (ours - theirs).abs()
                if difference.shape[:2] == mask.shape and difference.ndim == 3:
                    difference = difference[mask]
                differences.append(float(difference.max()))
    return float(np.max(differences))  # unlike Python's `max`, NaN if one value is NaN


def iter_batches(directory: Path, lines: Sequence[str]) -> Iterator[dict[str, torch.Tensor]]:
    """Yield padded batches of lines, tokenized by `transformers`."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(directory)
    for start in range(0, len(lines), _BATCH):
        batch = tokenizer(
            list(lines[start : start + _BATCH]), padding=True, truncation=True, max_length=POSITIONS,
            return_tensors="pt", return_token_type_ids=True,
        )  # fmt: skip
        yield dict(batch)


# ---------------------------------------------------------------- training


def write_text(folder: Path) -> Path:
    """Write documents of ten sentences, in eight scripts; return the file."""
    lines = lines_of_eight_languages(4000)
    documents = ["\n".join(lines[start : start + 10]) for start in range(0, len(lines), 10)]
    (folder / "text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    return folder / "text.txt"


def pretrain(text: Path, start: Path, folder: Path, steps: int) -> Path:
    """Tokenize the text with the vocabulary in `start`, pretrain its model further, and return the last step."""
    albert("data", text, "--vocab", start, "--out", folder / "data", "--holdout", 0.1)
    albert(
        "pretrain", "continue", "--data", folder / "data", "--out", folder / "run", *_CPU,
        "-s", f"warm_start.checkpoint={start}", "-s", f"schedule.total_steps={steps}", "-s", "schedule.warmup_steps=1",
        "-s", "train.batch_size=8", "-s", "data.max_seq_length=32", "-s", "optimizer.lr=1e-3",
        "-s", "train.precision=fp32",
    )  # fmt: skip
    return hub.find_checkpoint(str(folder / "run"))


def finetune(run: Path, folder: Path) -> Path:
    """Fine-tune the model to classify German and Russian sentences; return the task checkpoint."""
    rows = [f"{text}\t{name}" for name in ("german", "russian") for text in sentences(name)[:64]]
    for split, part in (("train", rows), ("dev", rows[::4])):
        (folder / f"{split}.tsv").write_text("text\tlabel\n" + "\n".join(part) + "\n", encoding="utf-8")
    albert(
        "finetune", "mini/table", "--checkpoint", run, "--data", folder, "--out", folder / "task", *_CPU,
        "-s", "schedule.epochs=1", "-s", f"data.max_seq_length={POSITIONS}", "-s", "train.precision=fp32",
    )  # fmt: skip
    return folder / "task"


def predicted_difference(task: Path, folder: Path, lines: Sequence[str]) -> float:
    """Return the largest difference of probabilities between `albert predict` and `transformers`.

    Half of the last digit that `albert predict` prints is subtracted.
    """
    (folder / "lines.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines), encoding="utf-8")
    answers = folder / "answers.jsonl"
    albert("predict", task, "--input", folder / "lines.jsonl", "--out", answers, "--precision", "fp32", *_CPU)
    probabilities = [
        list(json.loads(line)["probabilities"].values()) for line in answers.read_text(encoding="utf-8").splitlines()
    ]
    theirs = read_theirs(task)
    with torch.inference_mode():
        logits = torch.cat([theirs(batch)[0] for batch in iter_batches(task, lines)])
    return float(np.abs(np.array(probabilities) - logits.softmax(-1).numpy()).max()) - 0.5e-5


# ---------------------------------------------------------------- paths


def train_ours(folder: Path) -> Path:
    """Build a vocabulary of eight scripts and pretrain a model of `albert` for a few steps; return its checkpoint."""
    folder.mkdir(parents=True)
    text = write_text(folder)
    albert("vocab", text, "--size", 600, "--out", folder / "vocabulary", "--no-strip-accents", "--normal-form", "NFKC")
    albert("data", text, "--vocab", folder / "vocabulary", "--out", folder / "data", "--holdout", 0.1)
    shape = {
        "hidden_size": 32, "embedding_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 64, "max_position_embeddings": POSITIONS,
    }  # fmt: skip
    overrides = [word for key, value in shape.items() for word in ("-s", f"model.{key}={value}")]
    albert(
        "pretrain", "mini/docs", "--data", folder / "data", "--out", folder / "run", *_CPU, *overrides,
        "-s", "schedule.total_steps=20", "-s", "schedule.warmup_steps=2", "-s", "data.max_seq_length=32",
        "-s", "train.batch_size=8", "-s", "train.eval_sequences=8", "-s", "train.precision=fp32",
    )  # fmt: skip
    return hub.find_checkpoint(str(folder / "run"))


def through_trainer(ours: Path, folder: Path, lines: Sequence[str]) -> RoundTrip:
    """Load our model in `transformers`, save it with `Trainer.save_model`, and load it in `albert`."""
    model = transformers.AutoModelForPreTraining.from_pretrained(ours)
    arguments = transformers.TrainingArguments(output_dir=str(folder / "trainer"), report_to=[], use_cpu=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(ours)
    transformers.Trainer(model=model, args=arguments, processing_class=tokenizer).save_model(str(folder / "saved"))
    saved = folder / "saved"
    difference = largest_difference(read_ours(ours), read_ours(saved), iter_batches(ours, lines))
    return RoundTrip(
        "albert → Trainer.save_model → albert", len(lines), count_other_ids((ours, saved), lines), difference
    )


def through_sentence_transformers(ours: Path, folder: Path, lines: Sequence[str]) -> RoundTrip:
    """Load our encoder in `sentence-transformers`, save it, and encode the lines in both libraries."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(ours), device="cpu")  # adds mean pooling
    model.save(str(folder / "sentences"))
    theirs = model.encode(list(lines), batch_size=_BATCH)
    (folder / "lines.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines), encoding="utf-8")
    differences = []
    for directory in (ours, folder / "sentences"):
        vectors = folder / f"{directory.name}.jsonl"
        albert("encode", directory, "--input", folder / "lines.jsonl", "--out", vectors, "--precision", "fp32", *_CPU)
        rows = [json.loads(line)["vector"] for line in vectors.read_text(encoding="utf-8").splitlines()]
        differences.append(np.abs(np.array(rows) - theirs).max())
    other_ids = count_other_ids((ours, folder / "sentences"), lines)
    return RoundTrip("albert → sentence-transformers → albert", len(lines), other_ids, float(np.max(differences)))


def through_albert(kind: str, folder: Path, lines: Sequence[str], steps: int = STEPS) -> RoundTrip:
    """Train a model of `transformers` in `albert`, with a tokenizer of this kind, and load it in `transformers`."""
    start = KINDS[kind](folder / "start")
    vocabulary = Vocabulary.load(start)
    torch.manual_seed(0)
    shape = {**_SHAPE, "vocab_size": vocabulary.size, "pad_token_id": vocabulary.pad_id}
    if kind == "WordPiece":
        transformers.BertForMaskedLM(transformers.BertConfig(**shape)).save_pretrained(start)
    else:
        config = transformers.AlbertConfig(**shape, embedding_size=16, hidden_act="gelu_new")
        transformers.AlbertForMaskedLM(config).save_pretrained(start)
    run = pretrain(write_text(folder), start, folder, steps)
    task = finetune(run, folder)
    differences = [
        largest_difference(read_ours(path), read_theirs(path), iter_batches(path, lines)) for path in (start, run, task)
    ]
    differences.append(predicted_difference(task, folder, lines))
    family = "BERT" if kind == "WordPiece" else "ALBERT"
    path = f"{kind}, {family} of transformers → data, pretrain, finetune, predict → transformers"
    return RoundTrip(path, len(lines), count_other_ids((start, run, task), lines), float(np.max(differences)))


def main() -> None:
    """Compare on all paths and print the table; fail if ids differ or logits differ by more than 1e-5."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--lines", type=int, default=10_000)
    arguments = parser.parse_args()
    lines = mixed_lines(arguments.lines)
    ours = train_ours(arguments.out / "ours")
    results = [through_trainer(ours, arguments.out, lines), through_sentence_transformers(ours, arguments.out, lines)]
    for kind in KINDS:
        folder = arguments.out / kind.replace(" ", "-")
        results.append(through_albert(kind, folder, lines))
    headers = ("path", "lines", "other ids", "largest difference")
    rows = [(trip.path, f"{trip.lines:,}", trip.other_ids, f"{trip.difference:.1e}") for trip in results]
    print(format_table(headers, rows))
    assert not any(trip.other_ids for trip in results), "ids differ"
    assert all(trip.difference <= 1e-5 for trip in results), "logits differ"


if __name__ == "__main__":
    main()
