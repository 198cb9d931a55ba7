"""`albert probe`: score a pretrained checkpoint on held-out text, without any task.

A checkpoint and a data directory come in, and `ProbeScores` go out. The scores are the accuracies of MLM, NSP and SOP
as in Table 5, for the heads that the checkpoint has, and the distances of Figure 1: how far each layer moves its input.
The paper concludes from the distances that sharing weights smooths the transitions from layer to layer, and that the
layers do not converge to a fixed point (§4.5). Checkpoints that are probed with the same settings see the same
examples.

Shapes: T tokens of a batch, H hidden size.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from albert_cli import config, console, store
from albert_cli.data.batches import PackedBatch, original_ids, sample_batch
from albert_cli.data.pairs import PairSettings, SentenceLoss, examples_per_pass, sample_pairs
from albert_cli.data.records import read_data_facts
from albert_cli.data.shards import TokenCorpus
from albert_cli.data.verification import verify_data
from albert_cli.errors import CheckpointError, ConfigError, InputError
from albert_cli.experiments.minimal_pairs import read_minimal_pairs, score_minimal_pairs
from albert_cli.experiments.probe_scores import DepthScores, LayerDistances, ProbeScores, TextScores
from albert_cli.experiments.uncertainty import JACKKNIFE_GROUPS, JackknifeEstimate, jackknife_mean
from albert_cli.model import hub, loading
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.packing import pack
from albert_cli.randomness import Integers
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.device import choose_device, prepare_model
from albert_cli.training.objectives import EVALUATION_SEED, PretrainingCorpora, PretrainingJob, count_correct
from albert_cli.training.pretrain_recipe import PretrainRecipe
from albert_cli.training.settings import TrainSettings

_MICRO_BATCH: Final = 64  # sequences in a forward pass


@dataclasses.dataclass(frozen=True)
class ProbeRecipe:
    """A recipe with one section, `data`: the settings of the sampled examples, which `-s` changes."""

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

    Examples are sampled with the settings of the run that trained the checkpoint, or with the paper's if these are
    unknown; `overrides` (`-s`) change them. The scores `mlm_…` are on sequences without swapped or replaced segments.
    If the checkpoint has a sentence-pair head, `sop_accuracy` and `nsp_accuracy` are on pairs sampled by the rules of
    SOP and NSP (§4.6).

    sequences: the number of sequences to score, at most those of one pass over the text. layers: also run the layers to
    every depth up to this number; beyond the trained layers they repeat. minimal_pairs: a file of minimal pairs to
    score, too.
    Raises `CheckpointError` without a masked-language head, and `ConfigError` if the data have another vocabulary.
    """
    minimal_pair_examples = read_minimal_pairs(minimal_pairs) if minimal_pairs is not None else []
    pretrained = hub.read_checkpoint(hub.find_checkpoint(checkpoint))
    fingerprint = store.fingerprint(pretrained.directory)  # now, because the run may delete the step while it trains
    corpora = _load_text(data, pretrained)
    pair_settings = _pair_settings(pretrained, overrides)
    one_pass = examples_per_pass(corpora.heldout, pair_settings)
    if sequences > one_pass:  # a second pass would only repeat the text, which makes no score more certain
        console.info(f"{data}: a pass over the scored text has {one_pass:,} sequences, so no more are scored")
        sequences = one_pass
    torch_device = choose_device(device)
    model = PretrainingModel(pretrained.config)
    loading.load_weights(model, pretrained, loading.LoadPolicy.MASKED_LANGUAGE)
    settings = TrainSettings(eval_sequences=sequences, micro_batch_size=_MICRO_BATCH)
    prepare_model(model, settings, torch_device)
    model.eval()
    job = PretrainingJob(model, PretrainRecipe(model=pretrained.config, data=pair_settings, train=settings), corpora)
    batches = _sample_batches(job)
    has_pair_head = {"order.weight", "encoder.pooler.weight"} <= set(pretrained.tensors)
    minimal_pair_scores = None
    if minimal_pair_examples:
        minimal_pair_scores = score_minimal_pairs(model, corpora.vocabulary, minimal_pair_examples, torch_device)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    block_prefixes = ("encoder.attention.", "encoder.feed_forward.")  # these prefixes cover a layer's LayerNorms, too
    return ProbeScores(
        checkpoint=pretrained.directory,
        fingerprint=fingerprint,
        sequences=sequences,
        data=pair_settings,
        parameters=sum(sizes.values()),
        block_parameters=sum(size for name, size in sizes.items() if name.startswith(block_prefixes)),
        layers=len(model.config.blocks()),
        text=_score_text(job, _pair_settings(pretrained), has_pair_head),
        distances=_layer_distances(job, batches),
        depths=_scores_by_depth(job, batches, layers) if layers else None,
        minimal_pairs=minimal_pair_scores,
    )


def _load_text(data: Path, checkpoint: hub.Checkpoint) -> PretrainingCorpora:
    """Open the held-out text of a data directory, or all of its text if nothing is held out.

    Raises `InputError` if the directory has no text, and `ConfigError` if its vocabulary is not the checkpoint's.
    """
    verify_data(data)
    heldout = TokenCorpus.open(data, "heldout")
    corpus = heldout if heldout.n_tokens else TokenCorpus.open(data, "train")
    if corpus.n_tokens == 0:
        raise InputError(f"{data}: contains no text to score", "name a data directory with text")
    vocabulary = Vocabulary.load(corpus.vocabulary_dir)
    hub.require_same_vocabulary(checkpoint, vocabulary, data)
    entropy = read_data_facts(data).unigram_entropy_nats if heldout.n_tokens else corpus.unigram_entropy()
    # A probe reads no training text, so both fields are the scored text.
    return PretrainingCorpora(corpus, corpus, vocabulary, entropy)


def _pair_settings(checkpoint: hub.Checkpoint, overrides: Sequence[str] = ()) -> PairSettings:
    """Return the sampling settings of the run that trained a checkpoint, changed by the overrides.

    A checkpoint without `recipe.toml` gets the default settings. Raises `ConfigError` if sequences would be longer than
    the model has positions.
    """
    recipe = checkpoint.directory / "recipe.toml"
    run_settings = store.read_toml(recipe).get("data", {}) if store.exists_or_is_listed(recipe) else {}
    if not isinstance(run_settings, dict):
        raise CheckpointError(f"{recipe}: data is not a section", "restore the file from the run")
    names = {field.name for field in dataclasses.fields(PairSettings)}
    positions = checkpoint.config.max_position_embeddings
    values = {"max_seq_length": min(512, positions)}
    values |= {key: value for key, value in run_settings.items() if key in names}
    pairs = config.load_recipe(ProbeRecipe, {"data": values}, overrides).data
    if pairs.max_seq_length > positions:
        raise ConfigError(
            f"data.max_seq_length is {pairs.max_seq_length}, but the model has only {positions} positions",
            f"use -s data.max_seq_length={positions}",
        )
    return pairs


def _sample_batches(job: PretrainingJob) -> list[PackedBatch]:
    """Sample the sequences for the distances and for the depths, masked, with segments in the order of the text."""
    pairs = dataclasses.replace(job.settings.data, sentence_loss="none")
    count = job.settings.train.eval_sequences
    batches = []
    for start in range(0, count, _MICRO_BATCH):
        index = np.arange(start, min(start + _MICRO_BATCH, count))
        batches.append(sample_batch(job.corpora.heldout, job.corpora.vocabulary, pairs, EVALUATION_SEED, index))
    return batches


@torch.inference_mode()
def _score_text(job: PretrainingJob, run_pairs: PairSettings, has_pair_head: bool) -> TextScores:
    """Return the scores of every head of the checkpoint.

    run_pairs: the settings of the run that trained the checkpoint, without `-s`; `own_mlm_accuracy` is the MLM accuracy
    with their masks.
    """
    pairs = job.settings.data
    mlm = _mean_scores(job, pairs)
    # The same sequences as for `mlm_accuracy`; only the masks differ.
    run_pairs = dataclasses.replace(run_pairs, max_seq_length=pairs.max_seq_length, sentence_loss=pairs.sentence_loss)
    run_mlm = mlm if run_pairs == pairs else _mean_scores(job, run_pairs)
    if "mlm_loss" not in mlm or "mlm_loss" not in run_mlm:
        raise InputError("no token of the sequences was masked", "use more --sequences or -s data.whole_word=false")
    estimates = {name: mlm[name] for name in ("mlm_loss", "mlm_accuracy")}
    estimates["own_mlm_accuracy"] = run_mlm["mlm_accuracy"]
    if job.corpora.unigram_entropy:
        estimates["below_unigram_entropy"] = job.corpora.unigram_entropy - mlm["mlm_loss"]
    if has_pair_head:
        pair_rules: tuple[SentenceLoss, ...] = ("sop", "nsp")
        for rule in pair_rules:
            scored = _mean_scores(job, pairs, rule)
            if "order_accuracy" in scored:
                estimates[f"{rule}_accuracy"] = scored["order_accuracy"]
    # Item 0 of an estimate is the score of all sequences, item 1 + i the score without jackknife group i
    # (`uncertainty`).
    scores = {name: round(float(estimate[0]), 6) for name, estimate in estimates.items()}
    without_groups = {
        name: np.round(estimate[1:], 8).tolist() for name, estimate in estimates.items() if np.isfinite(estimate).all()
    }
    return TextScores(scores, without_groups)


def _mean_scores(job: PretrainingJob, pairs: PairSettings, rule: SentenceLoss = "none") -> dict[str, JackknifeEstimate]:
    """Return the mean of each metric over the sequences, by name, as a jackknife estimate.

    rule: the `sentence_loss` by which the pairs are sampled: "sop" swaps half of them, "nsp" replaces the second
    segment of half of them, and with "none" the sentence-pair head is not scored. A metric without examples is left
    out.
    """
    pairs = dataclasses.replace(pairs, sentence_loss=rule)
    job = dataclasses.replace(job, settings=dataclasses.replace(job.settings, data=pairs))
    corpus = job.corpora.heldout
    # By metric, for each jackknife group the sum and the number of items.
    sums: defaultdict[str, NDArray[np.float64]] = defaultdict(lambda: np.zeros((JACKKNIFE_GROUPS, 2)))
    for group, examples in enumerate(group_by_position(corpus, pairs, job.settings.train.eval_sequences)):
        for start in range(0, len(examples), _MICRO_BATCH):
            index = examples[start : start + _MICRO_BATCH]
            for name, sum_and_count in job.evaluate_examples(corpus, pairs, index).items():
                sums[name][group] += sum_and_count
    return {name: jackknife_mean(groups[:, 0], groups[:, 1]) for name, groups in sums.items() if groups[:, 1].any()}


def group_by_position(corpus: TokenCorpus, pairs: PairSettings, count: int) -> list[Integers]:
    """Divide the evaluation examples 0 … `count` - 1 into jackknife groups of neighboring text.

    Sequences of the same document resemble each other. In the same group they do not count as independent examples.
    Returns the examples' numbers in each group: JACKKNIFE_GROUPS arrays, int64.
    """
    in_order = dataclasses.replace(pairs, sentence_loss="none")  # then segment A is the first part of the example
    starts = sample_pairs(corpus, np.arange(count), in_order, EVALUATION_SEED).a.start
    return np.array_split(np.argsort(starts, kind="stable"), JACKKNIFE_GROUPS)


# ---------------------------------------------------------------- Figure 1


def _layer_distances(job: PretrainingJob, batches: Sequence[PackedBatch]) -> LayerDistances:
    """Return the distances of Figure 1 on text without masks, because tasks have none either."""
    distances = _measure_distances(job, batches)
    summaries: dict[str, float] = {}
    for name in ("l2", "degrees"):
        values = distances[name]
        summaries |= {f"{name}_mean": statistics.fmean(values), f"{name}_last": values[-1]}
        if len(values) > 1:
            neighbors = itertools.pairwise(values)
            summaries[f"{name}_variation"] = statistics.fmean(abs(second - first) for first, second in neighbors)
    return LayerDistances(
        masked_tokens=sum(len(batch.masked_index) for batch in batches),
        by_measure={name: [round(value, 6) for value in values] for name, values in distances.items()},
        summaries={name: round(value, 6) for name, value in summaries.items() if math.isfinite(value)},
    )


@torch.inference_mode()
def _measure_distances(
    job: PretrainingJob, batches: Sequence[PackedBatch], depth: int | None = None
) -> dict[str, list[float]]:
    """Return the distances between each layer's input and output on unmasked text, by measure and layer.

    They are means over all tokens. `l2` is the Euclidean distance, `cosine` the cosine similarity, and `degrees` the
    angle. With x(d) for the output of layer d, and x(0) for the input of the first layer, `l2` is |x(d) - x(d-1)| and
    `two_back` is |x(d) - x(d-2)|; for the first layer `two_back` equals `l2`.
    depth: the number of layers to run, as in `Encoder.forward`.
    """
    tokens = 0
    sums = torch.zeros(())  # after the first batch [layers, measures]
    for batch in batches:
        unmasked = dataclasses.replace(batch, ids=original_ids(batch))
        tokens += len(unmasked.ids)
        layer_sums = []  # for each layer the sums over tokens, [measures]
        states = job.model.encoder.iterate_layers(pack(unmasked, job.device), depth=depth)
        x_TH = next(states).float()
        two_back_TH = x_TH  # for the first layer, x(d-2) is x(0), too
        for state_TH in states:
            y_TH = state_TH.float()
            cosine_T = F.cosine_similarity(x_TH, y_TH, dim=-1).clamp(-1, 1)
            measures = [
                (y_TH - x_TH).norm(dim=-1),
                cosine_T,
                torch.rad2deg(cosine_T.acos()),
                (y_TH - two_back_TH).norm(dim=-1),
            ]
            layer_sums.append(torch.stack([measure_T.sum() for measure_T in measures]))
            two_back_TH = x_TH
            x_TH = y_TH
        sums = sums + torch.stack(layer_sums)
    means = (sums.cpu() / tokens).T.tolist()
    return dict(zip(("l2", "cosine", "degrees", "two_back"), means, strict=True))


# ---------------------------------------------------------------- other depths

# The limits of `classify_convergence`; they are ours, because the paper only plots the distances.
_CONVERGED_FRACTION: Final = 0.1
_RETURN_FRACTION: Final = 0.5


def _scores_by_depth(job: PretrainingJob, batches: Sequence[PackedBatch], layers: int) -> DepthScores:
    """Run the layers to every depth up to `layers`, and apply the trained masked-language head at each depth."""
    model = job.model
    trained = len(model.config.blocks())
    depths = sorted({*range(1, layers + 1), trained})
    distances = _measure_distances(job, batches, depth=layers)
    correct: Counter[int] = Counter()
    seconds: defaultdict[int, float] = defaultdict(float)
    masked_tokens = 0
    with torch.inference_mode():
        for batch in batches:
            labels = torch.from_numpy(batch.masked_labels).long().to(job.device)
            tokens = pack(batch, job.device, batch.masked_index)
            if masked_tokens == 0:
                model(tokens)  # the first call is slower, so it is not timed
            masked_tokens += len(labels)
            for depth in depths:
                start = time.perf_counter()
                correct[depth] += int(count_correct(model(tokens, depth=depth).masked, labels))  # waits for the device
                seconds[depth] += time.perf_counter() - start
    return DepthScores(
        layers=layers,
        trained=trained,
        behavior=classify_convergence(distances["l2"], distances["two_back"], trained),
        l2=[round(value, 6) for value in distances["l2"]],
        two_back=[round(value, 6) for value in distances["two_back"]],
        mlm_accuracy=[round(correct[depth] / masked_tokens, 6) for depth in range(1, layers + 1)],
        speed=[round(seconds[trained] / seconds[depth], 3) for depth in range(1, layers + 1)],
    )


def classify_convergence(l2: Sequence[float], two_back: Sequence[float], trained: int) -> str:
    """Classify the hidden states at the last depth, from the distances of `_measure_distances` for each layer.

    They converge if the last layer moves its input by less than a tenth of the mean distance of the `trained` layers.
    They oscillate if the last layer undoes the move of the layer before it: |x(d) - x(d-2)| is less than half of
    |x(d) - x(d-1)|. Otherwise they keep moving.
    """
    if l2[-1] < _CONVERGED_FRACTION * statistics.fmean(l2[:trained]):
        return "converges"
    if len(l2) > 1 and two_back[-1] < _RETURN_FRACTION * l2[-1]:
        return "oscillates"
    return "keeps moving"
