"""`albert probe`: score a pretrained checkpoint without any task, on text that it was not trained on.

It measures the accuracy of MLM, NSP and SOP as in Table 5, as far as the model was trained for them, and the distances
between layers of Figure 1: how far each layer moves its input. The paper concludes from these distances that sharing
weights smooths the steps from layer to layer, and that the layers do not converge to a fixed point (§4.5). Every model
is scored on the same examples.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from albert_cli import config, store
from albert_cli.data.batches import PackedBatch, original_ids, sample_batch
from albert_cli.data.pairs import PairSettings
from albert_cli.data.records import read_data_facts
from albert_cli.data.shards import TokenCorpus
from albert_cli.data.verification import verify_data
from albert_cli.errors import CheckpointError, ConfigError, InputError
from albert_cli.experiments.minimal_pairs import read_minimal_pairs, score_minimal_pairs
from albert_cli.experiments.probe_scores import DepthScores, LayerDistances, ProbeScores, TextScores
from albert_cli.experiments.uncertainty import JACKKNIFE_GROUPS, JackknifeEstimate, jackknife_mean
from albert_cli.model import hub
from albert_cli.model.encoder import Encoder
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.packing import PackedTokens, pack
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.device import choose_device
from albert_cli.training.objectives import EVALUATION_SEED, PretrainingCorpora, PretrainingJob, count_correct
from albert_cli.training.pretrain_recipe import PretrainRecipe
from albert_cli.training.settings import TrainSettings

_MICRO_BATCH: Final = 64
_PairRule = Literal["none", "sop", "nsp"]  # how sentence pairs are sampled


@dataclasses.dataclass(frozen=True)
class ProbeRecipe:
    """Settings that `-s` may change: the sampling of examples."""

    data: PairSettings = dataclasses.field(default_factory=PairSettings)


def probe(
    checkpoint: str,
    data: Path,
    sequences: int,
    overrides: Sequence[str] = (),
    device: str = "auto",
    layers: int = 0,
    minimal_pairs: Path | None = None,
) -> ProbeScores:
    """Score a checkpoint on the held-out text of a data directory.

    Examples are sampled with the settings of the checkpoint's own run, else with the paper's; `overrides` come last.
    `mlm_…` are scores on sentences in their order, `sop_accuracy` and `nsp_accuracy` on pairs of either rule (§4.6) if
    the checkpoint has a head for them; an untrained head guesses. `layers` also runs the stack to every depth up to
    this number; beyond its end the stack repeats. `minimal_pairs` is a file of such pairs to score. Raises
    `CheckpointError` without a masked-language head, `ConfigError` if the data have another vocabulary.
    """
    minimal = read_minimal_pairs(minimal_pairs) if minimal_pairs is not None else []
    pretrained = hub.read_checkpoint(hub.find_checkpoint(checkpoint))
    vocabulary = hub.load_vocabulary(pretrained)
    text = _load_text(data, vocabulary, checkpoint)
    pairs = _pair_settings(pretrained, overrides)
    target = choose_device(device)
    model = PretrainingModel(pretrained.config)
    hub.load_weights(model, pretrained, hub.LoadPolicy.MASKED_LANGUAGE)
    model.to(target).eval()
    settings = TrainSettings(eval_sequences=sequences, micro_batch_size=_MICRO_BATCH)
    job = PretrainingJob(model, PretrainRecipe(model=pretrained.config, data=pairs, train=settings), text)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    block_prefixes = ("encoder.attention.", "encoder.feed_forward.")  # LayerNorms included
    has_pair_head = {"order.weight", "encoder.pooler.weight"} <= set(pretrained.tensors)
    return ProbeScores(
        checkpoint=pretrained.directory,
        fingerprint=store.fingerprint(pretrained.directory),
        sequences=sequences,
        data=pairs,
        parameters=sum(sizes.values()),
        block_parameters=sum(size for name, size in sizes.items() if name.startswith(block_prefixes)),
        layers=len(model.config.blocks()),
        text=_score_text(job, _pair_settings(pretrained), has_pair_head),
        distances=_layer_distances(job),
        depths=_scores_by_depth(job, layers) if layers else None,
        minimal_pairs=score_minimal_pairs(model, vocabulary, minimal, target) if minimal else None,
    )


def _load_text(data: Path, vocabulary: Vocabulary, checkpoint: str) -> PretrainingCorpora:
    """Open the held-out text of a data directory, or all of its text if nothing is held out."""
    verify_data(data)
    heldout = TokenCorpus.open(data, "heldout")
    corpus = heldout if heldout.tokens else TokenCorpus.open(data, "train")
    if corpus.tokens == 0:
        raise InputError(f"{data}: holds no text to score on")
    if Vocabulary.load(corpus.vocabulary_dir).fingerprint != vocabulary.fingerprint:
        raise ConfigError(f"{data}: has another vocabulary than {checkpoint}", "make the data with the checkpoint's")
    entropy = read_data_facts(data).unigram_entropy_nats if heldout.tokens else corpus.unigram_entropy()
    return PretrainingCorpora(corpus, corpus, vocabulary, entropy)


def _pair_settings(checkpoint: hub.Checkpoint, overrides: Sequence[str] = ()) -> PairSettings:
    """Return the sampling settings of the checkpoint's own run, changed by the overrides."""
    recipe = checkpoint.directory / "recipe.toml"
    run_settings = store.read_toml(recipe).get("data", {}) if store.is_listed(recipe) else {}
    if not isinstance(run_settings, dict):
        raise CheckpointError(f"{recipe}: no [data] in it")
    names = {field.name for field in dataclasses.fields(PairSettings)}
    positions = checkpoint.config.max_position_embeddings
    values = {"max_seq_length": min(512, positions)}
    values |= {key: value for key, value in run_settings.items() if key in names}
    pairs = config.load_recipe(ProbeRecipe, {"data": values}, overrides).data
    if pairs.max_seq_length > positions:
        raise ConfigError(
            f"data.max_seq_length is {pairs.max_seq_length}, but the model has only {positions} positions",
            f"-s data.max_seq_length={positions}",
        )
    return pairs


@torch.inference_mode()
def _score_text(job: PretrainingJob, run_pairs: PairSettings, has_pair_head: bool) -> TextScores:
    """Return the scores of every head of the checkpoint.

    `own_mlm_accuracy` masks as the checkpoint's own run did (`run_pairs`), whatever `-s` changed.
    """
    pairs = job.settings.data
    plain = _mean_scores(job, pairs, "none")
    estimates = {"mlm_loss": plain["mlm_loss"], "mlm_accuracy": plain["mlm_accuracy"]}
    estimates["own_mlm_accuracy"] = plain["mlm_accuracy"]
    run_pairs = dataclasses.replace(run_pairs, max_seq_length=pairs.max_seq_length, sentence_loss=pairs.sentence_loss)
    if run_pairs != pairs:
        estimates["own_mlm_accuracy"] = _mean_scores(job, run_pairs, "none")["mlm_accuracy"]
    if job.corpora.unigram_entropy:
        estimates["below_unigram_entropy"] = job.corpora.unigram_entropy - plain["mlm_loss"]
    if has_pair_head:
        for rule in ("sop", "nsp"):
            scored = _mean_scores(job, pairs, "sop", rule)
            if "order_accuracy" in scored:
                estimates[f"{rule}_accuracy"] = scored["order_accuracy"]
    scores = {name: round(float(estimate[0]), 6) for name, estimate in estimates.items()}
    without_groups = {
        name: np.round(estimate[1:], 8).tolist() for name, estimate in estimates.items() if np.isfinite(estimate).all()
    }
    return TextScores(scores, without_groups)


def _mean_scores(
    job: PretrainingJob, pairs: PairSettings, sentence_loss: Literal["none", "sop"], rule: _PairRule = "none"
) -> dict[str, JackknifeEstimate]:
    """Return every mean over the sequences, whose pairs are sampled by `rule`; none of metrics without examples."""
    scored = dataclasses.replace(pairs, sentence_loss=sentence_loss)
    sampled = dataclasses.replace(pairs, sentence_loss=rule)
    job = dataclasses.replace(job, settings=dataclasses.replace(job.settings, data=scored))
    count = job.settings.train.eval_sequences
    size = min(_MICRO_BATCH, math.ceil(count / JACKKNIFE_GROUPS))
    # By metric: the sum and the number of examples of each jackknife group.
    sums: defaultdict[str, NDArray[np.float64]] = defaultdict(lambda: np.zeros((JACKKNIFE_GROUPS, 2)))
    for number, start in enumerate(range(0, count, size)):
        index = np.arange(start, min(start + size, count))
        for name, sum_and_count in job.evaluate_examples(job.corpora.train, sampled, index).items():
            sums[name][number % JACKKNIFE_GROUPS] += sum_and_count
    return {name: jackknife_mean(*groups.T) for name, groups in sums.items() if groups[:, 1].any()}


# ---------------------------------------------------------------- Figure 1


def _layer_distances(job: PretrainingJob) -> LayerDistances:
    """Return Figure 1's distances over text without masks, which is the encoder's input in a task."""
    batches = list(_held_out_batches(job, plain=True))
    steps = layer_steps(job.model.encoder, (pack(batch, job.device) for batch in batches))
    summaries: dict[str, float] = {}
    for name in ("l2", "degrees"):
        values = steps[name]
        summaries |= {f"{name}_mean": statistics.fmean(values), f"{name}_last": values[-1]}
        if len(values) > 1:
            neighbors = itertools.pairwise(values)
            summaries[f"{name}_variation"] = statistics.fmean(abs(second - first) for first, second in neighbors)
    return LayerDistances(
        masked_words=sum(len(batch.masked_index) for batch in batches),
        steps={name: [round(value, 6) for value in values] for name, values in steps.items()},
        summaries={name: round(value, 6) for name, value in summaries.items() if math.isfinite(value)},
    )


@torch.inference_mode()
def layer_steps(encoder: Encoder, batches: Iterable[PackedTokens], depth: int | None = None) -> dict[str, list[float]]:
    """Return for every block the mean over all tokens of the distance between its input and its output.

    `l2` is Euclidean, `cosine` the cosine similarity, `degrees` the mean angle; `two_back` is the distance from the
    output to the previous block's input (for the first block: to its own input). `depth` as for `Encoder.forward`.
    """
    tokens = 0
    sums: list[Tensor] = []
    for batch in batches:
        tokens += len(batch.ids)
        batch_sums = []
        states = encoder.iterate_layers(batch, depth=depth)
        x_TH = next(states).float()
        previous_TH = x_TH
        for y in states:
            y_TH = y.float()
            cosine_T = F.cosine_similarity(x_TH, y_TH, dim=-1).clamp(-1, 1)
            distances = [
                (y_TH - x_TH).norm(dim=-1),
                cosine_T,
                torch.rad2deg(cosine_T.acos()),
                (y_TH - previous_TH).norm(dim=-1),
            ]
            batch_sums.append(torch.stack([distance_T.sum() for distance_T in distances]))
            previous_TH = x_TH
            x_TH = y_TH
        sums = [total + part for total, part in zip(sums, batch_sums, strict=True)] if sums else batch_sums
    names = ("l2", "cosine", "degrees", "two_back")
    if not sums:
        return {name: [] for name in names}
    means = (torch.stack(sums).cpu() / max(tokens, 1)).T.tolist()
    return dict(zip(names, means, strict=True))


# ---------------------------------------------------------------- other depths

_CONVERGED_FRACTION: Final = 0.1  # of the mean step at the trained depth; a smaller last step hardly moves
_RETURN_FRACTION: Final = 0.5  # of a step; a state that is closer to the state of two blocks before is a return


def _scores_by_depth(job: PretrainingJob, layers: int) -> DepthScores:
    """Run the stack to every depth up to `layers`, and the trained head on each depth's states."""
    model = job.model
    trained = len(model.config.blocks())
    depths = sorted({*range(1, layers + 1), trained}, reverse=True)
    steps = layer_steps(
        model.encoder, (pack(batch, job.device) for batch in _held_out_batches(job, plain=True)), depth=layers
    )
    correct: Counter[int] = Counter()
    seconds: defaultdict[int, float] = defaultdict(float)
    words = 0
    with torch.inference_mode():
        for batch in _held_out_batches(job):
            labels = torch.from_numpy(batch.masked_labels).long().to(job.device)
            tokens = pack(batch, job.device, batch.masked_index)
            if not words:
                model(tokens)  # warm up
            words += len(labels)
            for depth in depths:
                start = time.perf_counter()
                correct[depth] += int(count_correct(model(tokens, depth=depth).masked, labels))  # waits for the device
                seconds[depth] += time.perf_counter() - start
    return DepthScores(
        layers=layers,
        trained=trained,
        behaviour=classify_convergence(steps["l2"], steps["two_back"], trained),
        l2=[round(value, 6) for value in steps["l2"]],
        two_back=[round(value, 6) for value in steps["two_back"]],
        mlm_accuracy=[round(correct[depth] / words, 6) for depth in range(1, layers + 1)],
        speed=[round(seconds[trained] / seconds[depth], 3) for depth in range(1, layers + 1)],
    )


def classify_convergence(l2: Sequence[float], two_back: Sequence[float], trained: int) -> str:
    """Classify the states at the last depth from every block's step; `trained` is the model's own depth.

    They converge if the last step is below a tenth of the mean step up to the trained depth, oscillate if it leads back
    to the states of two blocks before, and keep moving otherwise.
    """
    if l2[-1] < _CONVERGED_FRACTION * statistics.fmean(l2[:trained]):
        return "converges"
    return "oscillates" if len(l2) > 1 and two_back[-1] < _RETURN_FRACTION * l2[-1] else "keeps moving"


def _held_out_batches(job: PretrainingJob, plain: bool = False) -> Iterator[PackedBatch]:
    """Yield the scored text in order; with `plain` without masks."""
    pairs = dataclasses.replace(job.settings.data, sentence_loss="none")
    count = job.settings.train.eval_sequences
    for start in range(0, count, _MICRO_BATCH):
        index = np.arange(start, min(start + _MICRO_BATCH, count))
        batch = sample_batch(job.corpora.train, job.corpora.vocabulary, pairs, EVALUATION_SEED, index)
        yield dataclasses.replace(batch, ids=original_ids(batch)) if plain else batch
