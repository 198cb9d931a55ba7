"""Time the labeling of texts by albert, transformers and onnxruntime, in every precision, on the same texts.

    python -m benchmarks.inference sst2-model --input sentences.txt --rounds 5

All tools truncate the texts to the checkpoint's maximum length, sort them by length and label them in batches. The
times "model" are those of the model alone, on token ids. The times "all" include the tokenizer. Loading the model is
not timed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from albert_cli import console, store
from albert_cli.bench.harness import Conditions, current_conditions, time_alternating
from albert_cli.cli.app import command
from albert_cli.cli.options import AsJson, Debug, Quiet
from albert_cli.counting.costs import PRECISIONS, Precision
from albert_cli.errors import ConfigError
from albert_cli.inference.export import export
from albert_cli.inference.export_source import ExportRequest
from albert_cli.inference.predict import Predictor, load_predictor
from albert_cli.model import hub
from albert_cli.tasks.classification import TextExample
from albert_cli.training.device import autocast

Labels = NDArray[np.int64]  # [texts]: class indices
TokenIds = Sequence[Sequence[int]]  # of each text
_PEER_BATCH: Final = 32  # texts; they are padded to the longest one
app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@dataclass(frozen=True)
class Tool:
    """A tool to time: `encode` tokenizes all texts, and `label` computes each text's class index from the tokens."""

    encode: Callable[[], Any]
    label: Callable[[Any], Labels]


@dataclass(frozen=True)
class ToolSpeed:
    """Median times of one tool. A speedup is the tool's time divided by that of albert in its faster precision."""

    model_seconds: float
    all_seconds: float
    texts_per_second: float  # of the model
    tokens_per_second: float  # of the model
    model_speedup: float
    all_speedup: float
    equal_labels: float  # fraction of the texts with the same label as from albert in fp32


@dataclass(frozen=True)
class InferenceSpeeds:
    """Speeds by tool, and the conditions of the measurement."""

    model: str
    texts: int
    tokens: int
    best: str  # the tool "albert fp32" or "albert bf16", whichever is faster
    conditions: Conditions
    tools: dict[str, ToolSpeed]


def compare_tools(name: str, texts: Sequence[str], rounds: int) -> InferenceSpeeds:
    """Time every tool on the texts, in alternating rounds; raise `ConfigError` if there are no texts."""
    if not texts:
        raise ConfigError("--input: has no lines", "name a file with one text per line")
    device = torch.device("cpu")
    checkpoint = hub.read_checkpoint(hub.find_checkpoint(name))
    limit = checkpoint.max_length
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / "model"
        export(ExportRequest(name), exported)
        tools: dict[str, Tool] = {}
        for precision in PRECISIONS:
            tools[f"albert {precision}"] = _make_albert(load_predictor(name, "cpu", precision), texts)
        for precision in PRECISIONS:
            tools[f"transformers {precision}"] = _make_transformers(checkpoint.directory, texts, limit, precision)
        tools["onnxruntime fp32"] = _make_onnxruntime(exported, "model.onnx", texts, limit)
        tools["onnxruntime int8"] = _make_onnxruntime(exported, "model_quantized.onnx", texts, limit)
        inputs = {name: tool.encode() for name, tool in tools.items()}
        labels: dict[str, Labels] = {}

        # These are timed calls, which return a loss; here there is none.
        def run_model(tool: str) -> float:
            labels[tool] = tools[tool].label(inputs[tool])
            return 0.0

        def run_all(tool: str) -> float:
            tools[tool].label(tools[tool].encode())
            return 0.0

        model_calls = {tool: partial(run_model, tool) for tool in tools}
        model_seconds, _ = time_alternating(model_calls, rounds, device, "model")
        all_calls = {tool: partial(run_all, tool) for tool in tools}
        all_seconds, _ = time_alternating(all_calls, rounds, device, "all")
    best = min(("albert fp32", "albert bf16"), key=lambda tool: median(model_seconds[tool]))
    tokens = int(inputs["albert fp32"].lengths.sum())
    speeds = {}
    for tool in tools:
        seconds = median(model_seconds[tool])
        speeds[tool] = ToolSpeed(
            model_seconds=round(seconds, 3),
            all_seconds=round(median(all_seconds[tool]), 3),
            texts_per_second=round(len(texts) / seconds, 1),
            tokens_per_second=round(tokens / seconds),
            model_speedup=_median_ratio(model_seconds[tool], model_seconds[best]),
            all_speedup=_median_ratio(all_seconds[tool], all_seconds[best]),
            equal_labels=round(float(np.mean(labels[tool] == labels["albert fp32"])), 5),
        )
    return InferenceSpeeds(name, len(texts), tokens, best, current_conditions(device, "fp32 and bf16"), speeds)


def _median_ratio(seconds: Sequence[float], reference: Sequence[float]) -> float:
    """Return the median over rounds of the ratio of the seconds to those of the reference."""
    return round(median(tool / other for tool, other in zip(seconds, reference, strict=True)), 3)


def _make_albert(predictor: Predictor, texts: Sequence[str]) -> Tool:
    """Return albert as a tool: `albert predict` without reading and writing files."""
    examples = [TextExample(text, None, None, str(number)) for number, text in enumerate(texts)]

    def encode() -> Any:
        return predictor.task.encode(examples, predictor.vocabulary, predictor.opened.checkpoint.max_length)

    def label(features: Any) -> Labels:
        with autocast(predictor.opened.settings.precision, predictor.opened.device):
            outputs = predictor.task.predict(predictor.model, features, predictor.opened.device)
        labels: Labels = np.asarray(outputs).argmax(-1)
        return labels

    return Tool(encode, label)


def _make_transformers(directory: Path, texts: Sequence[str], limit: int, precision: Precision) -> Tool:
    """Return `transformers` as a tool, with the checkpoint in `directory`; texts are truncated to `limit` tokens."""
    import transformers

    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(directory).eval()

    @torch.inference_mode()
    def compute_logits(ids: TokenIds) -> Any:
        padded = tokenizer.pad({"input_ids": ids}, return_tensors="pt")
        with autocast(precision, torch.device("cpu")):
            return model(**padded).logits

    label = partial(_label_by_length, compute_logits)
    return Tool(lambda: tokenizer(list(texts), truncation=True, max_length=limit)["input_ids"], label)


def _make_onnxruntime(directory: Path, onnx_file: str, texts: Sequence[str], limit: int) -> Tool:
    """Return onnxruntime as a tool, with a file of the folder `onnx` of the exported checkpoint in `directory`.

    Texts are truncated to `limit` tokens.
    """
    import onnxruntime
    from tokenizers import Tokenizer

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(directory / "onnx" / onnx_file), options, ["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.enable_truncation(limit)
    input_names = {value.name for value in session.get_inputs()}

    def compute_logits(ids: TokenIds) -> Any:
        input_ids = np.zeros((len(ids), max(map(len, ids))), np.int64)
        mask = np.zeros_like(input_ids)
        for row, text_ids in enumerate(ids):
            input_ids[row, : len(text_ids)] = text_ids
            mask[row, : len(text_ids)] = 1
        arrays = {"input_ids": input_ids, "attention_mask": mask, "token_type_ids": np.zeros_like(input_ids)}
        return session.run(None, {name: arrays[name] for name in input_names})[0]

    label = partial(_label_by_length, compute_logits)
    return Tool(lambda: [encoding.ids for encoding in tokenizer.encode_batch(list(texts))], label)


def _label_by_length(compute_logits: Callable[[TokenIds], Any], ids: TokenIds) -> Labels:
    """Return the class index of each text, int64 [texts]; the batches are of similar length, the shortest first."""
    labels = np.empty(len(ids), np.int64)
    order = np.argsort([len(text_ids) for text_ids in ids], kind="stable")
    for start in range(0, len(order), _PEER_BATCH):
        batch = order[start : start + _PEER_BATCH]
        labels[batch] = compute_logits([ids[index] for index in batch]).argmax(-1)
    return labels


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


@command(app)
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
