"""`albert probe`: what a pretrained checkpoint knows without any task, on text that it was not trained on.

Masked words, next sentences and sentence order as in Table 5, whichever of them the model was trained for, and the
distances between layers of Figure 1: how far each layer moves its input. The paper reads from them that sharing weights
makes the steps from layer to layer smooth, and that they do not fall to zero, so that the layers do not run into a
fixed point (§4.5). Every model is asked the same examples.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from albert_cli import config, console, store
from albert_cli.data.batches import PairSettings, batch, original_ids
from albert_cli.data.shards import TokenCorpus, verify_data
from albert_cli.errors import ConfigError, InputError
from albert_cli.model import hub
from albert_cli.model.encoder import Encoder
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


def probe(
    checkpoint: str, data: Path, sequences: int, overrides: Sequence[str] = (), device: str = "auto"
) -> dict[str, Any]:
    """Score a checkpoint on the held-out text of a data directory; return what `--json` prints.

    Examples are drawn as the checkpoint's own run drew them (`data` in the result), as the paper's where it does not
    say, below `overrides`. `mlm_…` on sentences in their order, `sop_accuracy` and `nsp_accuracy` on pairs by either
    rule (§4.6). A head that was never trained answers at random. Raises `ConfigError` when the data have another
    vocabulary.
    """
    found = hub.read(hub.find(checkpoint))
    vocabulary, positions = hub.vocabulary_of(found), found.config.max_position_embeddings
    verify_data(data)
    heldout = TokenCorpus.open(data, "heldout")
    corpus = heldout if heldout.tokens else TokenCorpus.open(data, "train")
    if corpus.tokens == 0:
        raise InputError(f"{data}: holds no text to score on")
    if Vocabulary.load(corpus.vocabulary_dir).fingerprint != vocabulary.fingerprint:
        raise ConfigError(f"{data}: has another vocabulary than {checkpoint}", "make the data with the checkpoint's")
    recipe, known = found.directory / "recipe.toml", {field.name for field in dataclasses.fields(PairSettings)}
    own = config.read_recipe(str(recipe)).get("data", {}) if recipe.is_file() else {}
    trained = {"max_seq_length": min(512, positions)} | {key: value for key, value in own.items() if key in known}
    pairs = config.load(ProbeRecipe, {"data": trained}, overrides).data
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
    measured = PretrainRecipe(model=found.config, data=pairs, train=settings)
    job = PretrainingJob(model, measured, PretrainingText(corpus, corpus, vocabulary, entropy or 0.0))
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    of_blocks = ("encoder.attention.", "encoder.feed_forward.")  # LayerNorms included
    return {
        "checkpoint": str(found.directory),
        "fingerprint": store.fingerprint(found.directory),
        "sequences": sequences,
        "data": config.as_dict(pairs),
        "parameters": sum(sizes.values()),
        "block_parameters": sum(n for name, n in sizes.items() if name.startswith(of_blocks)),
        "layers": len(model.config.blocks()),
        **_scores(job),
        **_layers(job),
    }


@torch.inference_mode()
def _scores(job: PretrainingJob) -> dict[str, float]:
    def evaluated(loss: Literal["none", "sop"]) -> dict[str, float]:
        pairs = dataclasses.replace(job.settings.data, sentence_loss=loss)
        return dataclasses.replace(job, settings=dataclasses.replace(job.settings, data=pairs)).evaluate(Group())

    plain, order = evaluated("none"), evaluated("sop")
    found = {"mlm_loss": plain["mlm_loss"], "mlm_accuracy": plain["mlm_accuracy"]}
    if job.text.unigram_entropy:
        found["below_unigram_entropy"] = job.text.unigram_entropy - plain["mlm_loss"]
    for key, name in (("order_accuracy", "sop_accuracy"), ("nsp_accuracy", "nsp_accuracy")):
        found |= {name: order[key]} if key in order else {}
    return {name: round(value, 6) for name, value in found.items()}


# ---------------------------------------------------------------- Figure 1


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

    steps = layer_steps(job.model.encoder, batches())
    rounded = {name: [round(value, 6) for value in values] for name, values in steps.items()}
    numbers = {name: round(value, 6) for name, value in summary(steps).items() if math.isfinite(value)}
    return {"masked_words": sum(counted), "layer_steps": rounded, **numbers}


@torch.inference_mode()
def layer_steps(encoder: Encoder, batches: Iterable[PackedTokens]) -> dict[str, list[float]]:
    """For every block application the mean over all tokens of the distance between its input and its output.

    `l2` is Euclidean, `cosine` their cosine similarity, `degrees` the angle that belongs to each token's cosine,
    averaged. The encoder's own forward pass runs, all rows of it, with its block listened to.
    """
    sums: list[Tensor] = []
    tokens, own = 0, encoder.block

    def listen(x_TH: Tensor, *rest: Any) -> Tensor:
        y_TH: Tensor = own(x_TH, *rest)
        steps.append(_step(x_TH.float(), y_TH.float()))
        return y_TH

    encoder.block = listen  # type: ignore[assignment]
    try:
        for batch_ in batches:
            steps: list[Tensor] = []
            encoder(batch_, all_rows=True)
            tokens += len(batch_.ids)
            sums = [a + b for a, b in zip(sums, steps, strict=True)] if sums else steps
    finally:
        encoder.block = own
    means = (torch.stack(sums).cpu() / max(tokens, 1)).T.tolist() if sums else [[], [], []]
    return dict(zip(("l2", "cosine", "degrees"), means, strict=True))


def _step(x_TH: Tensor, y_TH: Tensor) -> Tensor:
    """The sums over T tokens of distance, cosine and angle between rows: [3]."""
    cosine_T = torch.nn.functional.cosine_similarity(x_TH, y_TH, dim=-1).clamp(-1, 1)
    return torch.stack([(y_TH - x_TH).norm(dim=-1).sum(), cosine_T.sum(), torch.rad2deg(cosine_T.acos()).sum()])


def summary(steps: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Numbers for claims: mean, last, and the mean difference between neighbouring layers, of distance and of angle.

    With one layer there are no neighbours, and the difference is not a number.
    """
    found: dict[str, float] = {}
    for name in ("l2", "degrees"):
        values = steps[name]
        differences = [abs(b - a) for a, b in itertools.pairwise(values)]
        found |= {f"{name}_mean": statistics.fmean(values), f"{name}_last": values[-1]}
        found[f"{name}_variation"] = statistics.fmean(differences) if differences else math.nan
    return found


# ---------------------------------------------------------------- in words


def text(result: Mapping[str, Any]) -> str:
    """The scores and the layers' steps as two tables."""
    labels = {
        "mlm_accuracy": ("masked words right", "{:.1%}"),
        "mlm_loss": ("masked-word loss", "{:.3f} nats"),
        "below_unigram_entropy": ("below the unigram entropy", "{:+.3f} nats"),
        "nsp_accuracy": ("next sentence right", "{:.1%}"),
        "sop_accuracy": ("sentence order right", "{:.1%}"),
        "parameters": ("parameters", "{:,}"),
    }
    scores = [(label, form.format(result[name])) for name, (label, form) in labels.items() if name in result]
    data, steps = result["data"], result["layer_steps"]
    words = "words" if data["whole_word"] else "tokens"
    asked = f"Asked with at most {data['max_seq_length']} tokens and masked n-grams of up to {data['ngram']} {words}."
    layers = enumerate(zip(steps["l2"], steps["degrees"], steps["cosine"], strict=True), start=1)
    rows = [(str(i), f"{l2:.3f}", f"{degrees:.1f}°", f"{cosine:.4f}") for i, (l2, degrees, cosine) in layers]
    head = ("layer: input to output", "L2 distance", "angle", "cosine")
    return f"{console.table((Path(result['checkpoint']).name, ''), scores)}\n{asked}\n\n{console.table(head, rows)}"
