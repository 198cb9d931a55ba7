"""Run every experiment from end to end: its variants differ as their titles say.

The tests do not read the experiment's recipe, but the files of the runs: tensors of checkpoints, parents in manifests,
and the resolved recipes, with which they sample batches.
"""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from albert_cli import config, journal, store
from albert_cli.data.batches import PackedBatch, original_ids, sample_batch
from albert_cli.data.shards import TokenCorpus
from albert_cli.experiments import recipe, stages
from albert_cli.experiments.claims import HOLDS
from albert_cli.experiments.plan import ExperimentPlan, ExperimentRequest, VariantRun
from albert_cli.experiments.stages import make_plan
from albert_cli.model.heads import PretrainingModel
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.pretrain_recipe import PretrainRecipe
from tests.helpers.command import albert

Facts = dict[str, Any]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one directory for all experiments, so that they share runs."""
    return tmp_path_factory.mktemp("variants") / "out"


def write_recipe(name: str, folder: Path, *lines: str) -> str:
    """Write a recipe that extends an experiment, with small batches and more lines for its smoke scale."""
    path = folder / f"{name}.toml"
    small = ["probe_sequences = 1", "changes.train = { batch_size = 4, micro_batch_size = 4, eval_sequences = 4 }"]
    path.write_text("\n".join([f'extends = "experiments/{name}"', "[scales.smoke]", *small, *lines, ""]))
    return str(path)


def run(name: str, request: ExperimentRequest) -> ExperimentPlan:
    """Run an experiment at the smoke scale with one seed; return its plan."""
    call = ["reproduce", name, "--scale", "smoke", "--out", request.out, "--seeds", 1, "--device", "cpu", "--json"]
    for option, values in (("--text", request.text), ("--extra-text", request.extra_text), ("-s", request.changes)):
        call += [word for value in values for word in (option, value)]
    call += ["--data", request.data] if request.data else []
    call += ["--tasks", request.tasks] if request.tasks else []
    ended = json.loads(albert(*map(str, call)).out)
    plan = make_plan(recipe.load_experiment(name), request)
    assert ended["stages"] == len(plan.stages)
    assert all(plan.is_finished(stage) for stage in plan.stages.values())
    assert {metric for v in plan.variants for metric in ended["values"][v]} >= {"mlm_accuracy", "parameters", "steps"}
    assert not request.tasks or any(stage.kind == "task" for stage in plan.stages.values())
    return plan


def facts(plan: ExperimentPlan) -> dict[str, Facts]:
    """Return for each variant the tensors' shapes, the resolved recipe, the steps and the parents of its run."""
    facts_by_variant = {}
    for one in plan.runs:
        assert one.pretrain is not None
        directory = plan.directory(one.pretrain)
        step = sorted(directory.glob("step-*"))[-1]
        with safe_open(step / "model.safetensors", "np") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        parents = dict(store.verify(step).parents)
        values = tomllib.loads((step / "recipe.toml").read_text())
        facts_by_variant[one.variant] = {
            "shapes": shapes, "recipe": values, "parents": parents, "fingerprint": store.fingerprint(step),
            "config": json.loads((step / "config.json").read_text()), "steps": int(step.name[5:]), "run": one,
        }  # fmt: skip
    return facts_by_variant


def blocks(one: Facts) -> tuple[int, int]:
    """Return how many attention and feed-forward sub-layers have separate weights in the file."""
    names = one["shapes"]
    queries = sum(name.endswith(("attention.query.weight", "query.weight", "self.query.weight")) for name in names)
    ups = sum(name.endswith((".ffn.weight", ".up.weight", "intermediate.dense.weight")) for name in names)
    return queries, ups


def word_table(one: Facts) -> tuple[int, ...]:
    return next(s for name, s in one["shapes"].items() if "word" in name)


def hidden(one: Facts) -> int:
    return int(next(s[0] for name, s in one["shapes"].items() if name.endswith("query.weight")))


def layers(one: Facts) -> int:
    return int(one["config"]["num_hidden_layers"])


def dropout(one: Facts) -> tuple[float, float]:
    model = one["recipe"]["model"]
    return model["hidden_dropout_prob"], model["attention_probs_dropout_prob"]


LOSSES = ("none", "nsp", "sop")
# By experiment: a function that returns the property in which its variants differ, and its value for each variant.
PARTS: dict[str, object] = {
    "full": ("cooccurrence", [-1, 1], 0.93), "none": ("random", [], 0.0),
    "no-words": ("random", [-1, 1], 0.93), "no-neighbors": ("cooccurrence", [], 0.93),
    "no-copying": ("cooccurrence", [-1, 1], 0.0),
}  # fmt: skip
SHAPES: dict[str, tuple[Callable[[Facts], Any], dict[str, Any]]] = {
    "overall": (
        lambda f: (hidden(f), layers(f), word_table(f)[1], blocks(f)),
        {
            "bert-base": (32, 2, 32, (2, 2)), "bert-large": (48, 4, 48, (4, 4)), "base": (32, 2, 32, (1, 1)),
            "large": (48, 4, 32, (1, 1)), "xlarge": (64, 4, 32, (1, 1)), "xxlarge": (96, 2, 32, (1, 1)),
        },
    ),
    "embedding": (
        lambda f: (word_table(f)[1], blocks(f)),
        {
            **{f"none-{e}": (size, (2, 2)) for e, size in ((64, 32), (128, 48), (256, 64), (768, 96))},
            **{f"all-{e}": (size, (1, 1)) for e, size in ((64, 32), (128, 48), (256, 64), (768, 96))},
        },
    ),
    "sharing": (
        lambda f: (word_table(f)[1], blocks(f)),
        {
            f"{wide}{name}": (64 if wide else 32, counts)
            for wide in ("", "wide-")
            for name, counts in {"all": (1, 1), "attention": (1, 4), "ffn": (4, 1), "none": (4, 4)}.items()
        },
    ),
    "similarity": (blocks, {"shared": (1, 1), "separate": (4, 4)}),
    "groups": (blocks, {"one": (1, 1), "two": (2, 2), "ends": (3, 3), "each": (4, 4)}),
    "depth": (lambda f: (layers(f), blocks(f)), {f"l{n}": (n, (1, 1)) for n in (1, 3, 6, 12)}),
    "width": (
        lambda f: (hidden(f), layers(f)),
        {"h1024": (16, 3), "h2048": (32, 3), "h4096": (64, 3), "h6144": (96, 3)},
    ),
    "deeper-xxlarge": (lambda f: (hidden(f), layers(f)), {"l12": (96, 2), "l24": (96, 4)}),
    "degradation": (
        lambda f: (hidden(f), blocks(f)),
        {"large": (48, (4, 4)), "xlarge": (96, (4, 4)), "deep": (48, (8, 8))},
    ),
    "dropout": (dropout, {"with": (0.1, 0.1), "without": (0.0, 0.0)}),
    "equal-time": (lambda f: (hidden(f), blocks(f)), {"xxlarge": (96, (1, 1)), "bert-large": (48, (4, 4))}),
    "sentence-loss": (lambda f: f["recipe"]["data"]["sentence_loss"], {n: n for n in LOSSES} | {"three": "three-way"}),
    "stacking": (lambda f: (layers(f), blocks(f)), {"stacked": (4, (4, 4)), "whole": (4, (4, 4))}),
    "distillation": (
        lambda f: (hidden(f), "teacher" in f["parents"]),
        {"teacher": (96, False), "alone": (48, False), "distilled": (48, True)},
    ),
    "masking": (
        lambda f: (f["recipe"]["data"]["ngram"], f["recipe"]["data"]["whole_word"]),
        {"pieces": (1, False), "n1": (1, True), "n3": (3, True)},
    ),
    "init": (lambda f: tuple(f["recipe"]["init"].values()), PARTS),
}  # fmt: skip
WITH_TEXT = ("curves", "extra-data")
# By experiment: the variants that run. The others differ from these only in the sizes of their models.
FEW = {
    "overall": ["bert-base", "bert-large", "large", "xxlarge"],
    "embedding": ["none-64", "none-768", "all-64", "all-768"],
    "sharing": ["all", "attention", "ffn", "none", "wide-all"],
    "width": ["h1024", "h6144"],
}


def test_every_experiment_has_a_check() -> None:
    separate = ["intrinsic", "sizes", "glue", "squad-race", "long-inputs"]
    assert sorted([*SHAPES, *WITH_TEXT, *separate]) == sorted(recipe.experiment_names())


@pytest.mark.parametrize("name", SHAPES)
def test_variants_differ_as_described(
    name: str, out: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "_SPEED_ROUNDS", 1)
    few = [f"variants = {json.dumps(FEW[name])}"] if name in FEW else []
    mine = write_recipe(name, tmp_path, *few)
    plan = run(mine, ExperimentRequest("smoke", out, data=tiny_data, seeds=1, device="cpu"))
    facts_by_variant = facts(plan)
    describe, expected = SHAPES[name]
    described = {variant: describe(one) for variant, one in facts_by_variant.items()}
    assert described == {variant: expected[variant] for variant in FEW.get(name, expected)}
    check = CHECKS.get(name)
    if check is not None:
        check(plan, facts_by_variant, tiny_data)


@pytest.mark.parametrize("name", FEW)
def test_models_of_all_variants_have_the_described_sizes(name: str, tiny_data: Path) -> None:
    request = ExperimentRequest("smoke", Path("out"), data=tiny_data, seeds=1, dry_run=True)
    described = {}
    describe, expected = SHAPES[name]
    for one in make_plan(recipe.load_experiment(name), request).runs:
        assert one.recipe is not None
        parameters = PretrainingModel(one.recipe.model).named_parameters()
        shapes = {parameter: tuple(tensor.shape) for parameter, tensor in parameters}
        model_config = {"num_hidden_layers": one.recipe.model.num_hidden_layers}
        described[one.variant] = describe({"shapes": shapes, "config": model_config})
    assert described == expected


# ---------------------------------------------------------------- differences that tensor shapes do not show


def drawn(one: Facts, data: Path) -> tuple[PackedBatch, TokenCorpus, Vocabulary]:
    """Return the first 256 training examples of a run, sampled with its resolved recipe."""
    corpus = TokenCorpus.open(data, "train")
    vocabulary = Vocabulary.load(corpus.vocabulary_dir)
    recipe_ = config.validate_recipe(PretrainRecipe, one["recipe"], "run")
    return sample_batch(corpus, vocabulary, recipe_.data, recipe_.train.seed, np.arange(256)), corpus, vocabulary


def check_labels(plan: ExperimentPlan, facts_by_variant: dict[str, Facts], data: Path) -> None:
    labels = {name: drawn(one, data)[0].order_labels for name, one in facts_by_variant.items()}
    assert set(labels["none"].tolist()) == {-1} and set(labels["three"].tolist()) >= {0, 1, 2}
    for name in ("nsp", "sop"):
        assert {0, 1} <= set(labels[name].tolist())
    # A pair with label 1 has the pieces of the plain pair in another order with SOP, and other pieces with NSP.
    texts = {name: pieces(drawn(one, data)[0]) for name, one in facts_by_variant.items()}
    plain = texts["none"]
    rows_of = {name: np.flatnonzero(labels[name] == 1) for name in ("sop", "nsp")}
    swapped = rows_of["sop"]
    assert any(texts["sop"][i] != plain[i] for i in swapped)
    # A pair that is too long loses different pieces in each order, so the overlap with SOP is not 1.
    overlap = {name: np.mean([common(texts[name][i], plain[i]) for i in rows]) for name, rows in rows_of.items()}
    assert overlap["sop"] > 0.8
    assert overlap["nsp"] < overlap["sop"] - 0.1


def common(first: list[int], second: list[int]) -> float:
    """Return the fraction of the pieces in `first` that are also in `second`, counted with multiplicity."""
    return (Counter(first) & Counter(second)).total() / len(first)


def pieces(packed: PackedBatch) -> list[list[int]]:
    ids = original_ids(packed).tolist()
    return [ids[a:b] for a, b in zip(packed.offsets[:-1], packed.offsets[1:], strict=True)]


def check_masks(plan: ExperimentPlan, facts_by_variant: dict[str, Facts], data: Path) -> None:
    longest = {}
    cut = {}
    for name, one in facts_by_variant.items():
        packed, _, vocabulary = drawn(one, data)
        begins = np.array([p.startswith("▁") for p in vocabulary.pieces])[original_ids(packed)]
        masked = np.zeros(len(packed.ids), bool)
        masked[packed.masked_index] = True
        # A word is masked only in part if one of its pieces is masked and the next piece of the same word is not, or
        # vice versa.
        ordinary = original_ids(packed) >= 5
        inside = ordinary[1:] & ordinary[:-1] & ~begins[1:]
        cut[name] = int((inside & (masked[1:] != masked[:-1])).sum())
        starts = np.flatnonzero(masked & begins)
        longest[name] = float(masked.sum() / max(len(starts), 1))
    assert cut["pieces"] > 10 * max(cut["n1"], 1), "only single pieces mask parts of words"


def check_depth(plan: ExperimentPlan, facts_by_variant: dict[str, Facts], data: Path) -> None:
    names = ["l1", "l3", "l6", "l12"]
    assert "warm_start" not in facts_by_variant["l1"]["parents"]
    for shallower, deeper in itertools.pairwise(names):
        assert facts_by_variant[deeper]["parents"]["warm_start"] == facts_by_variant[shallower]["fingerprint"]


def check_prefix(plan: ExperimentPlan, facts_by_variant: dict[str, Facts], data: Path) -> None:
    """Both continue from the same run, which was trained with dropout."""
    assert facts_by_variant["with"]["parents"]["warm_start"] == facts_by_variant["without"]["parents"]["warm_start"]
    stage = next(s for s in plan.stages.values() if "before" in s.title)
    step = sorted(plan.directory(stage).glob("step-*"))[-1]
    assert store.fingerprint(step) == facts_by_variant["with"]["parents"]["warm_start"]
    # Two steps of `before` and two more.
    assert step.name == "step-00000002"
    assert facts_by_variant["with"]["steps"] == facts_by_variant["without"]["steps"] == 4
    for name in ("with", "without"):
        run = plan.directory(next(r.pretrain for r in plan.runs if r.variant == name and r.pretrain))
        rate = next(r["lr"] for r in journal.read_journal(run / "metrics.jsonl") if "lr" in r)
        peak = config.read_recipe("mini/experiment")["optimizer"]["lr"]
        assert rate == pytest.approx(peak * (2 / 4 + 1 / 4) / 2, rel=1e-4), "no second warmup"


def check_stack(plan: ExperimentPlan, facts_by_variant: dict[str, Facts], data: Path) -> None:
    assert (
        facts_by_variant["stacked"]["recipe"]["warm_start"]["stack"]
        and "warm_start" not in facts_by_variant["whole"]["parents"]
    )
    planned = make_plan(plan.experiment, ExperimentRequest("mini", Path("out"), seeds=1, dry_run=True))
    cost = {run.variant: _cost(planned, run) for run in (*planned.unmeasured, *planned.runs)}
    assert cost["half"] + cost["stacked"] == pytest.approx(cost["whole"], rel=0.05)


def check_teacher(plan: ExperimentPlan, facts_by_variant: dict[str, Facts], data: Path) -> None:
    assert facts_by_variant["distilled"]["parents"]["teacher"] == facts_by_variant["teacher"]["fingerprint"]
    assert _cost(plan, facts_by_variant["distilled"]["run"]) > _cost(plan, facts_by_variant["alone"]["run"])


def check_speedup(plan: ExperimentPlan, facts_by_variant: dict[str, Facts], data: Path) -> None:
    report = store.read_json(plan.request.out / "overall-smoke" / "results.json")
    assert all("speedup" in report["values"][variant] for variant in facts_by_variant)


def check_time(plan: ExperimentPlan, facts_by_variant: dict[str, Facts], data: Path) -> None:
    """The matched steps take as long as the other run's by measured seconds per step; FLOPs are reported too."""
    equal = plan.matched_times["bert-large"]
    measured = {s.title: store.read_json(plan.result_path(s)) for s in plan.stages.values() if s.kind == "speed"}
    seconds = {title: record["result"]["recipe_step"]["seconds"] for title, record in measured.items()}
    bert_seconds, albert_seconds = (seconds[f"{title}: seconds per step"] for title in ("BERT-large", "ALBERT-xxlarge"))
    assert equal.seconds == (bert_seconds, albert_seconds)
    steps = facts_by_variant["xxlarge"]["steps"]
    assert facts_by_variant["bert-large"]["steps"] == max(2, round(steps * albert_seconds / bert_seconds))
    page = (plan.request.out / "equal-time-smoke" / "report.html").read_text(encoding="utf-8")
    assert f"{equal.steps_by_flops:,} steps would have the same FLOPs" in page
    for scale in ("mini", "paper"):  # without measured speeds the FLOPs are equal
        planned = make_plan(plan.experiment, ExperimentRequest(scale, Path("out"), seeds=1, dry_run=True))
        flops = {r.variant: _cost(planned, r) for r in planned.runs}
        assert flops["bert-large"] == pytest.approx(flops["xxlarge"], rel=1e-3)
        assert planned.matched_times["bert-large"].seconds is None


def _cost(plan: ExperimentPlan, one: VariantRun) -> float:
    assert one.pretrain is not None and one.pretrain.cost is not None
    return one.pretrain.cost.flops


CHECKS: dict[str, Callable[[ExperimentPlan, dict[str, Facts], Path], None]] = {
    "sentence-loss": check_labels,
    "masking": check_masks,
    "depth": check_depth,
    "dropout": check_prefix,
    "equal-time": check_time,
    "overall": check_speedup,
    "stacking": check_stack,
    "distillation": check_teacher,
}


@pytest.mark.parametrize("name", WITH_TEXT)
def test_extra_text_is_only_trained_on(
    name: str, tmp_path: Path, out: Path, documents: list[str], documents_file: Path
) -> None:
    extra = tmp_path / "extra.txt"
    extra.write_text("\n\n".join(d.replace("ba", "zu") for d in documents), encoding="utf-8")
    mine = write_recipe(name, tmp_path, "vocabulary = 300", "tasks = []")  # a short text has a small vocabulary
    request = ExperimentRequest("smoke", out, (str(documents_file),), (str(extra),), seeds=1, device="cpu")
    plan = run(mine, request)
    facts_by_variant = facts(plan)
    without, with_ = (
        facts_by_variant[n] for n in (("without", "with") if name == "extra-data" else ("without-data", "with-data"))
    )
    assert without["parents"]["data"] != with_["parents"]["data"]
    sizes = {}
    for stage in plan.stages.values():
        if stage.kind == "data":
            directory = plan.directory(stage)
            sizes[store.fingerprint(directory)] = TokenCorpus.open(directory, "train").n_tokens
    assert sizes[with_["parents"]["data"]] > 1.5 * sizes[without["parents"]["data"]]
    probes = [one.probe.argv for one in plan.runs if one.probe]
    assert len({argv[argv.index("--data") + 1] for argv in probes}) == 1, "all are scored on the same text"
    if name == "curves":
        assert dropout(facts_by_variant["dropout"]) != dropout(facts_by_variant["no-dropout"])


@pytest.mark.parametrize("jobs", [("--jobs", 1), ("--jobs", 2), ("--task", "0/1")])
def test_extra_text_cannot_contain_the_held_out_text(
    jobs: tuple[object, ...], tmp_path: Path, documents: list[str]
) -> None:
    """With two documents, the one with the smallest hash is held out, which the longer text would train on."""
    text, extra = tmp_path / "text.txt", tmp_path / "extra.txt"
    text.write_text("\n\n".join(" ".join(documents[start::2]) for start in (0, 1)), encoding="utf-8")
    extra.write_text("\n\n".join(d.replace("ba", "zu") for d in documents), encoding="utf-8")
    mine = write_recipe("extra-data", tmp_path, "vocabulary = 300", "tasks = []")
    out = tmp_path / "out"
    call = ["reproduce", mine, "--scale", "smoke", "--out", out, "--device", "cpu", "--text", text]
    stages: list[list[Path]] = []
    for _ in range(2):
        ended = albert(*map(str, [*call, "--extra-text", extra, *jobs]), expect=3).err
        stages.append(sorted(out.glob("stages/*.json")))
        assert re.search(rf"error: {out}/stages/data-\w+: .* holdout 0\.05 selects no document", ended)
        assert "use --text with more documents, or a larger holdout" in ended
    assert stages[0] == stages[1], "the second call reports the error before it runs a stage"
    assert not list(out.glob("stages/probe-*")) and not list(out.glob("extra-data-smoke/*"))


def test_hub_layout_text_runs_to_a_verdict(
    tmp_path: Path, documents: list[str], tiny_glue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One text has an article per row, the other a sentence per row, as `--scale paper` reads them from the Hub."""
    # `test_build.py` also reads such text in a pool, whose processes take seconds to import their modules.
    monkeypatch.setattr("albert_cli.data.build.available_cores", lambda: 1)
    for source, rows in (("wiki", documents[:300]), ("books", [s for d in documents[300:] for s in d.split(". ")])):
        (tmp_path / source).mkdir()
        lines = "".join(json.dumps({"text": text}) + "\n" for text in rows)
        (tmp_path / source / "train.jsonl").write_text(lines, encoding="utf-8")
    mine = write_recipe("glue", tmp_path, "vocabulary = 300", 'tasks = ["rte"]')
    named = (f"hf:{tmp_path / 'books'}?rows=40", f"hf:{tmp_path / 'wiki'}")
    text, extra = named[:1], named[1:]
    request = ExperimentRequest("smoke", tmp_path / "out", text, extra, tasks=tiny_glue, seeds=1, device="cpu")
    plan = run(mine, request)
    assert [stage.kind for stage in plan.stages.values()][:2] == ["vocabulary", "data"]
    data = [plan.directory(s) for s in plan.stages.values() if s.kind == "data"][-1]
    totals = store.read_json(data / "data.json")["totals"]
    sentences = sum(split["sentences"] for split in totals.values())
    document_count = sum(split["documents"] for split in totals.values())
    assert 300 < document_count < 360 < sentences / 4, "a book has forty sentences, not one"
    report = json.loads((tmp_path / "out" / "glue-smoke" / "results.json").read_text(encoding="utf-8"))
    measured = {metric for values in report["values"].values() for metric in values}
    assert {"task_rte", "tasks_mean", "mlm_accuracy"} <= measured
    assert "speedup" not in measured
    for claim in report["claims"]:  # a single seed decides only claims about counts
        exact = all(".parameters" in f["condition"] for f in claim["findings"])
        assert all(f["mean"] is not None for f in claim["findings"]) and (claim["verdict"] != HOLDS or exact)
    # The ensemble has three members.
    members = next(r for r in plan.runs if r.variant == "ensemble").tasks
    ended = store.read_json(plan.directory(members["rte"]) / "results.json")
    assert (ended["kind"], len(ended["members"])) == ("ensemble", 3)
    gaps = report["comparison_with_paper"]["Table 9, one model on dev, final version"]
    assert gaps["XLNet-large"]["RTE"] == [[100 * report["values"]["m15"]["task_rte"]["0"], 83.8]]


def test_intrinsic_scores_use_the_text_of_tasks(
    tmp_path: Path, out: Path, tiny_data: Path, documents: list[str]
) -> None:
    """SQuAD's passages exist and are used; RACE's are missing and are listed as skipped."""
    question = {"id": "1", "question": "ba?", "answers": [{"text": documents[0][:3], "answer_start": 0}]}
    paragraphs = [{"context": d, "qas": [dict(question, id=str(n))]} for n, d in enumerate(documents[:50])]
    (tmp_path / "squad").mkdir()
    squad = {"version": "1.1", "data": [{"title": "T", "paragraphs": paragraphs}]}
    (tmp_path / "squad" / "dev-v1.1.json").write_text(json.dumps(squad), encoding="utf-8")
    request = ExperimentRequest("smoke", out, data=tiny_data, tasks=tmp_path, seeds=1, device="cpu")
    mine = write_recipe("intrinsic", tmp_path)
    plan = make_plan(recipe.load_experiment(mine), request)
    assert any(c.compares_tasks for c in plan.experiment.claims) and not any(c.compares_tasks for c in plan.claims)
    assert [name.partition(":")[0] for name in plan.skipped] == ["squad", "race"]
    (data_stage,) = (stage for stage in plan.stages.values() if stage.kind == "data")
    assert data_stage.argv[1:2] == (f"squad:{tmp_path / 'squad' / 'dev-v1.1.json'}",)
    probes = [stage for stage in plan.stages.values() if stage.kind == "probe"]
    assert all(
        data_stage.id in [need.id for need in probe.needs] and str(plan.directory(data_stage)) in probe.argv
        for probe in probes
    )
    call = ["reproduce", mine, "--scale", "smoke", "--out", request.out, "--seeds", 1, "--device", "cpu"]
    ended = json.loads(albert(*call, "--data", tiny_data, "--tasks", tmp_path, "--json").out)
    assert ended["stages"] == len(plan.stages) and all(plan.is_finished(stage) for stage in plan.stages.values())
    assert all(values.keys() >= {"mlm_accuracy", "parameters", "steps"} for values in ended["values"].values())
    describe, expected = SHAPES["sentence-loss"]
    assert {variant: describe(one) for variant, one in facts(plan).items()} == expected
    assert all(-2 < v["below_unigram_entropy"]["0"] < 2 for v in ended["values"].values()), "of the scored text"
    usual_request = ExperimentRequest("smoke", out, data=tiny_data, seeds=1, device="cpu")
    usual = make_plan(recipe.load_experiment(write_recipe("sentence-loss", tmp_path)), usual_request)
    assert pretraining_ids(plan) == pretraining_ids(usual), "the runs are the same"


def pretraining_ids(plan: ExperimentPlan) -> set[str]:
    return {run.pretrain.id for run in plan.runs if run.pretrain}


def test_unreadable_text_is_rejected_before_any_run(tmp_path: Path) -> None:
    call = ["reproduce", "sharing", "--scale", "smoke", "--seeds", 1, "--device", "cpu"]
    missing = ["--text", f"hf:{tmp_path / 'nothing-here'}", "--out", tmp_path / "out"]
    ended = albert(*map(str, [*call, *missing]), expect=3).err
    assert "cannot be read from the Hub" in ended and "use --text SOURCE" in ended
    assert not (tmp_path / "out").exists()
    planned = albert(*map(str, [*call, *missing, "--dry-run"]))
    assert "the run would stop there" in planned.err and "Claim:" in planned.out
