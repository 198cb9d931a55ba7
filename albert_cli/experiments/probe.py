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
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from albert_cli import config, console, store
from albert_cli.data.batches import PackedBatch, original_ids, sample_batch
from albert_cli.data.pairs import PairSettings
from albert_cli.data.shards import TokenCorpus, read_data_facts
from albert_cli.data.verification import verify_data
from albert_cli.errors import CheckpointError, ConfigError, InputError
from albert_cli.experiments.uncertainty import JACKKNIFE_GROUPS, JackknifeEstimate, jackknife_mean
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.encoder import Encoder
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.packing import PackedTokens, pack
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.device import choose_device
from albert_cli.training.objectives import EVALUATION_SEED, PretrainingCorpora, PretrainingJob, count_correct
from albert_cli.training.pretrain_recipe import PretrainRecipe
from albert_cli.training.settings import TrainSettings

_MICRO_BATCH = 64
_PairRule = Literal["none", "sop", "nsp"]  # by which examples are drawn


@dataclasses.dataclass(frozen=True)
class ProbeRecipe:
    """What may be set: how examples are drawn."""

    data: PairSettings = dataclasses.field(default_factory=PairSettings)


def probe(
    checkpoint: str, data: Path, sequences: int, overrides: Sequence[str] = (), device: str = "auto", layers: int = 0
) -> dict[str, Any]:
    """Score a checkpoint on the held-out text of a data directory; return what `--json` prints.

    Examples are drawn as the checkpoint's own run drew them (`data` in the result), as the paper's where it does not
    say, below `overrides`. `mlm_…` on sentences in their order, `sop_accuracy` and `nsp_accuracy` on pairs by either
    rule (§4.6), if the checkpoint has a head for it; one that no loss has trained answers at random. `layers`: what
    happens when the stack of layers is run up to so many blocks, over and over where it has fewer (`depths`). Raises
    `CheckpointError` without a masked-word head, `ConfigError` when the data have another vocabulary.
    """
    found = hub.read_checkpoint(hub.find_checkpoint(checkpoint))
    asked, pairs = _load_text(data, hub.load_vocabulary(found), checkpoint), _pair_settings(found, overrides)
    target = choose_device(device)
    model = PretrainingModel(found.config)
    hub.load_weights(model, found, hub.LoadPolicy.MASKED_LANGUAGE)
    model.to(target).eval()
    settings = TrainSettings(eval_sequences=sequences, micro_batch_size=_MICRO_BATCH)
    measured = PretrainRecipe(model=found.config, data=pairs, train=settings)
    job = PretrainingJob(model, measured, asked)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    of_blocks = ("encoder.attention.", "encoder.feed_forward.")  # LayerNorms included
    return {
        "checkpoint": str(found.directory),
        "fingerprint": store.fingerprint(found.directory),
        "sequences": sequences,
        "data": config.to_toml_values(pairs),
        "parameters": sum(sizes.values()),
        "block_parameters": sum(n for name, n in sizes.items() if name.startswith(of_blocks)),
        "layers": len(model.config.blocks()),
        **_scores(
            job, _pair_settings(found), asks_pairs={"order.weight", "encoder.pooler.weight"} <= set(found.tensors)
        ),
        **_layer_distances(job),
        **({"depths": _scores_by_depth(job, layers)} if layers else {}),
    }


def _load_text(data: Path, vocabulary: Vocabulary, checkpoint: str) -> PretrainingCorpora:
    """What is asked: the held-out text of a data directory, all of it where nothing is held out."""
    verify_data(data)
    heldout = TokenCorpus.open(data, "heldout")
    corpus = heldout if heldout.tokens else TokenCorpus.open(data, "train")
    if corpus.tokens == 0:
        raise InputError(f"{data}: holds no text to score on")
    if Vocabulary.load(corpus.vocabulary_dir).fingerprint != vocabulary.fingerprint:
        raise ConfigError(f"{data}: has another vocabulary than {checkpoint}", "make the data with the checkpoint's")
    entropy = read_data_facts(data)["unigram_entropy_nats"] if heldout.tokens else corpus.unigram_entropy()
    return PretrainingCorpora(corpus, corpus, vocabulary, entropy)


def _pair_settings(found: hub.Checkpoint, overrides: Sequence[str] = ()) -> PairSettings:
    """How examples are drawn: as for the checkpoint's own run, below the overrides."""
    recipe, known = found.directory / "recipe.toml", {field.name for field in dataclasses.fields(PairSettings)}
    own = store.read_toml(recipe).get("data", {}) if store.is_listed(recipe) else {}
    if not isinstance(own, dict):
        raise CheckpointError(f"{recipe}: no [data] in it")
    positions = found.config.max_position_embeddings
    trained = {"max_seq_length": min(512, positions)} | {key: value for key, value in own.items() if key in known}
    pairs = config.load_recipe(ProbeRecipe, {"data": trained}, overrides).data
    if pairs.max_seq_length > positions:
        raise ConfigError(
            f"data.max_seq_length is {pairs.max_seq_length}, but the model has only {positions} positions",
            f"-s data.max_seq_length={positions}",
        )
    return pairs


@torch.inference_mode()
def _scores(job: PretrainingJob, own: PairSettings, asks_pairs: bool) -> dict[str, Any]:
    """The scores and, under `without_parts`, each of them without one of `PARTS` parts of the sequences."""
    asked = job.settings.data
    plain = _mean_scores(job, asked, "none")
    found = {"mlm_loss": plain["mlm_loss"], "mlm_accuracy": plain["mlm_accuracy"]}
    own = dataclasses.replace(own, max_seq_length=asked.max_seq_length, sentence_loss=asked.sentence_loss)
    found["own_mlm_accuracy"] = (
        plain["mlm_accuracy"] if own == asked else _mean_scores(job, own, "none")["mlm_accuracy"]
    )
    if job.text.unigram_entropy:
        found["below_unigram_entropy"] = job.text.unigram_entropy - plain["mlm_loss"]
    for rule in ("sop", "nsp") if asks_pairs else ():
        if "order_accuracy" in (scored := _mean_scores(job, asked, "sop", rule)):
            found[f"{rule}_accuracy"] = scored["order_accuracy"]
    scores = {name: round(float(of_all), 6) for name, (of_all, *_) in found.items()}
    known = {name: np.round(each[1:], 8).tolist() for name, each in found.items() if np.isfinite(each).all()}
    return scores | {"without_parts": known}


def _mean_scores(
    job: PretrainingJob, drawn: PairSettings, trained: Literal["none", "sop"], rule: _PairRule = "none"
) -> dict[str, JackknifeEstimate]:
    """Every mean over the sequences, drawn by a rule: of all [0], and without each part [1:]; none of no examples."""
    pairs = dataclasses.replace(drawn, sentence_loss=trained)
    asked = dataclasses.replace(job, settings=dataclasses.replace(job.settings, data=pairs))
    count = job.settings.train.eval_sequences
    size = min(_MICRO_BATCH, math.ceil(count / JACKKNIFE_GROUPS))
    sums: dict[str, Any] = {}  # by part, and how many they are
    for number, start in enumerate(range(0, count, size)):
        index = np.arange(start, min(start + size, count))
        for name, both in asked.summed(job.text.train, dataclasses.replace(pairs, sentence_loss=rule), index).items():
            sums.setdefault(name, np.zeros((JACKKNIFE_GROUPS, 2)))[number % JACKKNIFE_GROUPS] += both
    return {name: jackknife_mean(*each.T) for name, each in sums.items() if each[:, 1].any()}


# ---------------------------------------------------------------- Figure 1


def _layer_distances(job: PretrainingJob) -> dict[str, Any]:
    """Figure 1's distances, over text without masks: the encoder as a task would use it."""
    plain = list(_held_out_batches(job, plain=True))
    steps = layer_steps(job.model.encoder, (pack(drawn, job.device) for drawn in plain))
    rounded = {name: [round(value, 6) for value in values] for name, values in steps.items()}
    found: dict[str, Any] = {"masked_words": sum(len(drawn.masked_index) for drawn in plain), "layer_steps": rounded}
    for name in ("l2", "degrees"):
        values = steps[name]
        means = {"mean": statistics.fmean(values), "last": values[-1]}
        if len(values) > 1:  # the mean difference between neighbouring layers
            means["variation"] = statistics.fmean(abs(b - a) for a, b in itertools.pairwise(values))
        found |= {f"{name}_{of}": round(value, 6) for of, value in means.items() if math.isfinite(value)}
    return found


@torch.inference_mode()
def layer_steps(encoder: Encoder, batches: Iterable[PackedTokens]) -> dict[str, list[float]]:
    """For every block application the mean over all tokens of the distance between its input and its output.

    `l2` is Euclidean, `cosine` their cosine similarity, `degrees` the angle that belongs to each token's cosine,
    averaged; `two_back` is the distance from the output to the input of the block before (the first block's own). The
    encoder's own forward pass runs, all rows of it, with its block listened to.
    """
    sums: list[Tensor] = []
    tokens, own = 0, encoder.block

    def listen(x_TH: Tensor, *rest: Any) -> Tensor:
        y_TH = own(x_TH, *rest)
        x, y, before = x_TH.float(), y_TH.float(), (inputs or [x_TH])[-1].float()
        cosine_T = torch.nn.functional.cosine_similarity(x, y, dim=-1).clamp(-1, 1)
        moved, back = ((y - other).norm(dim=-1).sum() for other in (x, before))
        steps.append(torch.stack([moved, cosine_T.sum(), torch.rad2deg(cosine_T.acos()).sum(), back]))
        inputs[:] = [x_TH]
        return y_TH

    encoder.block = listen
    try:
        for batch_ in batches:
            steps, inputs = list[Tensor](), list[Tensor]()
            encoder(batch_, all_rows=True)
            tokens += len(batch_.ids)
            sums = [a + b for a, b in zip(sums, steps, strict=True)] if sums else steps
    finally:
        encoder.block = own
    means = (torch.stack(sums).cpu() / max(tokens, 1)).T.tolist() if sums else [[], [], [], []]
    return dict(zip(("l2", "cosine", "degrees", "two_back"), means, strict=True))


# ---------------------------------------------------------------- other depths

_CONVERGED_FRACTION = 0.1  # of the mean step within the trained depth: less is hardly a move
_RETURN_FRACTION = 0.5  # of a step: what comes nearer than that to where it was two layers before goes to and fro


@dataclasses.dataclass(frozen=True)
class _AtDepth(ModelConfig):
    """A shape whose stack is run for so many blocks: from its beginning again at its end, or not to its end."""

    applications: int = 1

    def blocks(self) -> tuple[tuple[int, int], ...]:
        """The stack's own, repeated or cut."""
        return tuple(itertools.islice(itertools.cycle(super().blocks()), self.applications))


def _scores_by_depth(job: PretrainingJob, layers: int) -> dict[str, Any]:
    """The stack at every depth up to `layers`: how far each block moves, and what the heads say if it ends there.

    `mlm_accuracy` and `speed` (against the trained depth, of the forward pass) are those of an early exit: the same
    head on every layer's states.
    """
    encoder, own = job.model.encoder, job.model.config
    trained = len(own.blocks())
    at = {n: _AtDepth(**dataclasses.asdict(own), applications=n) for n in {*range(1, layers + 1), trained}}
    try:
        encoder.config = at[layers]
        steps = layer_steps(encoder, (pack(d, job.device) for d in _held_out_batches(job, plain=True)))
        right_, seconds, words = dict.fromkeys(at, 0), dict.fromkeys(at, 0.0), 0
        with torch.inference_mode():
            for drawn in _held_out_batches(job):
                labels = torch.from_numpy(drawn.masked_labels).long().to(job.device)
                tokens = pack(drawn, job.device, drawn.masked_index)
                if not words:
                    job.model(tokens)  # warms up
                words += len(labels)
                for n in sorted(at, reverse=True):
                    encoder.config = at[n]
                    began = time.perf_counter()
                    right_[n] += int(count_correct(job.model(tokens).masked, labels))  # waits for the device
                    seconds[n] += time.perf_counter() - began
    finally:
        encoder.config = own
    return {
        "layers": layers,
        "trained": trained,
        "behaviour": classify_convergence(steps["l2"], steps["two_back"], trained),
        **{name: [round(value, 6) for value in steps[name]] for name in ("l2", "two_back")},
        "mlm_accuracy": [round(right_[n] / words, 6) for n in range(1, layers + 1)],
        "speed": [round(seconds[trained] / seconds[n], 3) for n in range(1, layers + 1)],
    }


def classify_convergence(l2: Sequence[float], two_back: Sequence[float], trained: int) -> str:
    """What the states do at the end, by the distances of every step, of which `trained` are the model's own depth.

    They converge where the last step is below a tenth of the mean one at the trained depth, oscillate where it leads
    back to where they were two layers before, and keep moving otherwise.
    """
    if l2[-1] < _CONVERGED_FRACTION * statistics.fmean(l2[:trained]):
        return "converges"
    return "oscillates" if len(l2) > 1 and two_back[-1] < _RETURN_FRACTION * l2[-1] else "keeps moving"


def _held_out_batches(job: PretrainingJob, plain: bool = False) -> Iterator[PackedBatch]:
    """The text that is asked, in order; `plain`: without masks."""
    pairs = dataclasses.replace(job.settings.data, sentence_loss="none")
    count = job.settings.train.eval_sequences
    for start in range(0, count, _MICRO_BATCH):
        index = np.arange(start, min(start + _MICRO_BATCH, count))
        drawn = sample_batch(job.text.train, job.text.vocabulary, pairs, EVALUATION_SEED, index)
        yield dataclasses.replace(drawn, ids=original_ids(drawn)) if plain else drawn


# ---------------------------------------------------------------- in words


def format_probe(result: Mapping[str, Any]) -> str:
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
    parts = [
        f"{console.format_table((Path(result['checkpoint']).name, ''), scores)}\n{asked}",
        console.format_table(head, rows),
    ]
    if found := result.get("depths"):
        columns = (found[key] for key in ("l2", "two_back", "mlm_accuracy", "speed"))
        deep = [
            (str(i), f"{l2:.3f}", f"{back:.3f}", f"{accuracy:.1%}", f"{speed:.2f}x")
            for i, (l2, back, accuracy, speed) in enumerate(zip(*columns, strict=True), start=1)
        ]
        headers = ("run to layer", "its step", "from two back", "masked words right", "speed")
        parts.append(console.format_table(headers, deep))
        parts.append(f"Run to {found['layers']} blocks, the stack of {found['trained']} {found['behaviour']}.")
    return "\n\n".join(parts)
