"""Label texts with `albert predict`, transformers and onnxruntime, in every precision, on the same texts.

    python -m benchmarks.inference sst2-model --input sentences.txt --rounds 5

All tools read the texts in batches sorted by length. "model" is the model alone, on tokens; "all" includes the
tokenizer. Start-up is not included.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final, Literal

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from albert_cli import console, store
from albert_cli.bench.harness import Conditions, current_conditions, time_alternating
from albert_cli.cli.app import verb
from albert_cli.cli.options import AsJson, Debug, Quiet
from albert_cli.errors import ConfigError
from albert_cli.inference.export import export
from albert_cli.inference.export_source import ExportRequest
from albert_cli.inference.predict import Predictor, load_predictor
from albert_cli.model import hub
from albert_cli.tasks.classification import TextExample
from albert_cli.training.device import autocast

Precision = Literal["fp32", "bf16"]
Labels = NDArray[np.int64]
TokenIds = Sequence[Sequence[int]]
_PEER_BATCH: Final = 32  # sequences; padded to the longest one
app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@dataclass(frozen=True)
class Tool:
    """A tokenizer, and a model that labels its output: the index of the class of each text."""

    encode: Callable[[], Any]
    label: Callable[[Any], Labels]


@dataclass(frozen=True)
class ToolSpeed:
    """Median seconds, texts and tokens per second of the model, and albert's speed relative to the tool.

    `equal_labels`: the fraction of texts with the label of albert in fp32.
    """

    model_seconds: float
    all_seconds: float
    texts_per_second: float
    tokens_per_second: float
    model_speedup: float
    all_speedup: float
    equal_labels: float


@dataclass(frozen=True)
class InferenceSpeeds:
    """Speeds by tool; `speedup` compares with the faster precision of albert."""

    model: str
    texts: int
    tokens: int
    best: str
    conditions: Conditions
    tools: dict[str, ToolSpeed]


def compare_tools(name: str, texts: Sequence[str], rounds: int) -> InferenceSpeeds:
    """Time every tool on the texts, in alternating rounds; raises `ConfigError` without texts."""
    if not texts:
        raise ConfigError("--input: has no lines", "name a file with one text per line")
    checkpoint = hub.read_checkpoint(hub.find_checkpoint(name))
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / "model"
        export(ExportRequest(name), exported)
        precisions: tuple[Precision, ...] = ("fp32", "bf16")
        tools = {f"albert {p}": _make_albert(load_predictor(name, "cpu", p), texts) for p in precisions}
        tools |= {f"transformers {p}": _make_transformers(checkpoint.directory, texts, p) for p in precisions}
        for label, file in (("fp32", "model.onnx"), ("int8", "model_quantized.onnx")):
            tools[f"onnxruntime {label}"] = _make_onnxruntime(exported, file, texts)
        inputs = {tool: made.encode() for tool, made in tools.items()}
        labels: dict[str, Labels] = {}

        def time_model(tool: str) -> float:
            labels[tool] = tools[tool].label(inputs[tool])
            return 0.0

        def time_all(tool: str) -> float:
            tools[tool].label(tools[tool].encode())
            return 0.0

        device = torch.device("cpu")
        calls = {tool: (lambda tool=tool: time_model(tool)) for tool in tools}
        model_seconds, _ = time_alternating(calls, rounds, device, "model")
        calls = {tool: (lambda tool=tool: time_all(tool)) for tool in tools}
        all_seconds, _ = time_alternating(calls, rounds, device, "all")
    best = min(("albert fp32", "albert bf16"), key=lambda tool: median(model_seconds[tool]))
    tokens = int(inputs["albert fp32"].lengths.sum())
    speeds = {}
    for tool in tools:
        model = median(model_seconds[tool])
        speeds[tool] = ToolSpeed(
            model_seconds=round(model, 3),
            all_seconds=round(median(all_seconds[tool]), 3),
            texts_per_second=round(len(texts) / model, 1),
            tokens_per_second=round(tokens / model),
            model_speedup=_median_ratio(model_seconds[tool], model_seconds[best]),
            all_speedup=_median_ratio(all_seconds[tool], all_seconds[best]),
            equal_labels=round(float(np.mean(labels[tool] == labels["albert fp32"])), 5),
        )
    return InferenceSpeeds(name, len(texts), tokens, best, current_conditions(device, "fp32 and bf16"), speeds)


def _median_ratio(seconds: Sequence[float], reference: Sequence[float]) -> float:
    return round(median(one / other for one, other in zip(seconds, reference, strict=True)), 3)


def _make_albert(predictor: Predictor, texts: Sequence[str]) -> Tool:
    examples = [TextExample(text, None, None, str(number)) for number, text in enumerate(texts)]

    def label(features: Any) -> Labels:
        with autocast(predictor.opened.precision, predictor.opened.device):
            outputs = predictor.task.predict(predictor.model, features, predictor.opened.device)
        labels: Labels = np.asarray(outputs).argmax(-1)
        return labels

    return Tool(
        lambda: predictor.task.encode(examples, predictor.vocabulary, predictor.opened.checkpoint.max_length), label
    )


def _make_transformers(directory: Path, texts: Sequence[str], precision: Precision) -> Tool:
    import transformers

    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(directory).eval()
    limit = model.config.max_position_embeddings

    @torch.inference_mode()
    def label(ids: TokenIds) -> Labels:
        labels = np.empty(len(ids), np.int64)
        for rows in _batches_by_length(ids):
            padded = tokenizer.pad({"input_ids": [ids[row] for row in rows]}, return_tensors="pt")
            with autocast(precision, torch.device("cpu")):
                labels[rows] = model(**padded).logits.argmax(-1).numpy()
        return labels

    return Tool(lambda: tokenizer(list(texts), truncation=True, max_length=limit)["input_ids"], label)


def _make_onnxruntime(directory: Path, file: str, texts: Sequence[str]) -> Tool:
    import onnxruntime
    from tokenizers import Tokenizer

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(directory / "onnx" / file), options, ["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    names = {value.name for value in session.get_inputs()}

    def label(ids: TokenIds) -> Labels:
        labels = np.empty(len(ids), np.int64)
        for rows in _batches_by_length(ids):
            length = max(len(ids[row]) for row in rows)
            input_ids = np.zeros((len(rows), length), np.int64)
            mask = np.zeros_like(input_ids)
            for position, row in enumerate(rows):
                input_ids[position, : len(ids[row])] = ids[row]
                mask[position, : len(ids[row])] = 1
            arrays = {"input_ids": input_ids, "attention_mask": mask, "token_type_ids": np.zeros_like(input_ids)}
            labels[rows] = session.run(None, {key: arrays[key] for key in names})[0].argmax(-1)
        return labels

    return Tool(lambda: [encoding.ids for encoding in tokenizer.encode_batch(list(texts))], label)


def _batches_by_length(ids: TokenIds) -> list[NDArray[np.int64]]:
    order = np.argsort([len(row) for row in ids], kind="stable")
    return [order[start : start + _PEER_BATCH] for start in range(0, len(order), _PEER_BATCH)]


def format_speeds(result: InferenceSpeeds) -> str:
    """Format the speeds as a table."""
    rows = [
        (
            tool,
            f"{speed.model_seconds:.2f}",
            f"{speed.tokens_per_second:,.0f}",
            f"{speed.model_speedup:.2f}x",
            f"{speed.all_seconds:.2f}",
            f"{speed.all_speedup:.2f}x",
            f"{speed.equal_labels:.2%}",
        )
        for tool, speed in result.tools.items()
    ]
    title = f"{result.model}: {result.texts:,} texts, {result.tokens:,} tokens, {result.conditions.threads} threads"
    headers = ("", "model s", "tokens/s", f"{result.best} is", "all s", f"{result.best} is", "equal labels")
    return f"{title}\n{console.format_table(headers, rows)}"


@verb(app)
def inference(
    model: Annotated[str, typer.Argument(help="A classifier: a directory, a run, or a Hub id.")],
    input_file: Annotated[Path, typer.Option("--input", help="File with one text per line.")],
    rounds: Annotated[int, typer.Option(min=1, help="Alternating rounds; the medians are printed.")] = 5,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Compare the speed of labeling texts with transformers and onnxruntime."""
    texts = store.read_bytes(input_file).decode().splitlines()
    result = compare_tools(model, texts, rounds)
    console.print_result(asdict(result), format_speeds(result))


if __name__ == "__main__":
    app()
