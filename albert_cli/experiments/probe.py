"""`albert probe`: what a pretrained checkpoint knows without any task, on text that it was not trained on.

Masked words, next sentences and sentence order as in Table 5, whichever of them the model was trained for, and the
distances between layers of Figure 1. Every model is asked the same examples.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from albert_cli import config, console, store
from albert_cli.data.batches import PairSettings, batch, original_ids
from albert_cli.data.shards import TokenCorpus, verify_data
from albert_cli.errors import ConfigError, InputError
from albert_cli.experiments.similarity import layer_steps, summary
from albert_cli.model import hub
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.packing import PackedTokens, pack
from albert_cli.ranks import Group
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.device import choose_device
from albert_cli.training.objectives import EVALUATION_SEED, PretrainingJob, PretrainingText
from albert_cli.training.pretrain_recipe import PretrainRecipe
from albert_cli.training.settings import TrainSettings

_MICRO_BATCH = 64


@dataclasses.dataclass(frozen=True)
class ProbeRecipe:
    """What may be set: how examples are drawn."""

    data: PairSettings = dataclasses.field(default_factory=PairSettings)


def _as_trained(found: hub.Checkpoint) -> dict[str, Any]:
    """How the checkpoint's own run drew its examples; as the paper's where it says nothing of it."""
    path, positions = found.directory / "recipe.toml", found.config.max_position_embeddings
    own = config.read_recipe(str(path)).get("data", {}) if path.is_file() else {}
    known = {field.name for field in dataclasses.fields(PairSettings)}
    return {"max_seq_length": min(512, positions)} | {key: value for key, value in own.items() if key in known}


def probe(
    checkpoint: str, data: Path, sequences: int, overrides: Sequence[str] = (), device: str = "auto"
) -> dict[str, Any]:
    """Score a checkpoint on the held-out text of a data directory; return what `--json` prints.

    Examples are drawn as the checkpoint's own run drew them (`data` in the result), below `overrides`.
    `mlm_…` on sentences in their order, `sop_accuracy` and `nsp_accuracy` on pairs by either rule (§4.6). A head that
    was never trained answers at random. Raises `ConfigError` when the data have another vocabulary.
    """
    found = hub.read(hub.find(checkpoint))
    vocabulary = hub.vocabulary_of(found)
    verify_data(data)
    heldout = TokenCorpus.open(data, "heldout")
    corpus = heldout if heldout.tokens else TokenCorpus.open(data, "train")
    if corpus.tokens == 0:
        raise InputError(f"{data}: holds no text to score on")
    if Vocabulary.load(corpus.vocabulary_dir).fingerprint != vocabulary.fingerprint:
        raise ConfigError(f"{data}: has another vocabulary than {checkpoint}", "make the data with the checkpoint's")
    positions = found.config.max_position_embeddings
    pairs = config.load(ProbeRecipe, {"data": _as_trained(found)}, overrides).data
    if pairs.max_seq_length > positions:
        raise ConfigError(
            f"data.max_seq_length is {pairs.max_seq_length}, but the model has only {positions} positions",
            f"-s data.max_seq_length={positions}",
        )
    target = choose_device(device)
    torch.manual_seed(0)  # a head that the checkpoint lacks is drawn the same way every time
    model = PretrainingModel(found.config)
    hub.load_into(model, found)
    model.to(target).eval()
    settings = TrainSettings(eval_sequences=sequences, micro_batch_size=_MICRO_BATCH)
    entropy = store.read_json(data / "data.json")["unigram_entropy_nats"] if heldout.tokens else None
    recipe = PretrainRecipe(model=found.config, data=pairs, train=settings)
    job = PretrainingJob(model, recipe, PretrainingText(corpus, corpus, vocabulary, entropy or 0.0))
    result: dict[str, Any] = {"checkpoint": str(found.directory), "fingerprint": store.fingerprint(found.directory)}
    result |= {"sequences": sequences, "data": config.as_dict(pairs)}
    return {**result, **_counts(model), **_scores(job), **_layers(job)}


def _counts(model: PretrainingModel) -> dict[str, int]:
    """Parameters as the instantiated model has them; those of all blocks, LayerNorms included."""
    numbers = {name: parameter.numel() for name, parameter in model.named_parameters()}
    of_blocks = ("encoder.attention.", "encoder.feed_forward.")
    return {
        "parameters": sum(numbers.values()),
        "block_parameters": sum(n for name, n in numbers.items() if name.startswith(of_blocks)),
        "layers": len(model.config.blocks()),
    }


@torch.inference_mode()
def _scores(job: PretrainingJob) -> dict[str, float]:
    def scored(sentence_loss: Literal["none", "sop"]) -> dict[str, float]:
        pairs = dataclasses.replace(job.settings.data, sentence_loss=sentence_loss)
        return dataclasses.replace(job, settings=dataclasses.replace(job.settings, data=pairs)).evaluate(Group())

    plain, order = scored("none"), scored("sop")
    found = {"mlm_loss": plain["mlm_loss"], "mlm_accuracy": plain["mlm_accuracy"]}
    if job.text.unigram_entropy:
        found["below_unigram_entropy"] = job.text.unigram_entropy - plain["mlm_loss"]
    if "order_accuracy" in order:
        found["sop_accuracy"] = order["order_accuracy"]
    if "nsp_accuracy" in order:
        found["nsp_accuracy"] = order["nsp_accuracy"]
    return {name: round(value, 6) for name, value in found.items()}


def _layers(job: PretrainingJob) -> dict[str, Any]:
    """Figure 1's distances, over text without masks: the encoder as a task would use it."""
    pairs = dataclasses.replace(job.settings.data, sentence_loss="none")
    count, counted = job.settings.train.eval_sequences, list[int]()

    def batches() -> Iterator[PackedTokens]:
        for start in range(0, count, _MICRO_BATCH):
            index = np.arange(start, min(start + _MICRO_BATCH, count))
            drawn = batch(job.text.train, job.text.vocabulary, pairs, EVALUATION_SEED, index)
            counted.append(len(drawn.masked_index))
            yield pack(dataclasses.replace(drawn, ids=original_ids(drawn)), job.device)

    steps, masked = layer_steps(job.model.encoder, batches()), sum(counted)
    rounded = {name: [round(value, 6) for value in values] for name, values in steps.items()}
    numbers = {name: round(value, 6) for name, value in summary(steps).items() if math.isfinite(value)}
    return {"masked_words": masked, "layer_steps": rounded, **numbers}


def text(result: Mapping[str, Any]) -> str:
    """The scores and the layers' steps as two tables."""
    scores = [
        ("masked words right", f"{result['mlm_accuracy']:.1%}"),
        ("masked-word loss", f"{result['mlm_loss']:.3f} nats"),
    ]
    if "below_unigram_entropy" in result:
        scores.append(("below the unigram entropy", f"{result['below_unigram_entropy']:+.3f} nats"))
    for name, label in (("nsp_accuracy", "next sentence right"), ("sop_accuracy", "sentence order right")):
        if name in result:
            scores.append((label, f"{result[name]:.1%}"))
    scores.append(("parameters", f"{result['parameters']:,}"))
    data = result["data"]
    words = "words" if data["whole_word"] else "pieces"
    asked = f"Asked with at most {data['max_seq_length']} pieces and masked spans of up to {data['ngram']} {words}."
    steps = result["layer_steps"]
    rows = [
        (str(layer), f"{l2:.3f}", f"{degrees:.1f}°", f"{cosine:.4f}")
        for layer, (l2, degrees, cosine) in enumerate(
            zip(steps["l2"], steps["degrees"], steps["cosine"], strict=True), start=1
        )
    ]
    head = ("layer: input to output", "L2 distance", "angle", "cosine")
    return f"{console.table((Path(result['checkpoint']).name, ''), scores)}\n{asked}\n\n{console.table(head, rows)}"
