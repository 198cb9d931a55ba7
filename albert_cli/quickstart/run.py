"""Run the steps of a quickstart: vocabulary, shards, pretraining, fine-tuning on samples of the table, report.

A `QuickstartPlan` comes in; the values of the summary go out and are written to `quickstart.json`. Each step is an
`albert` command, which is printed so that the user can repeat it, and which does nothing if its output is complete.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Final, cast

from albert_cli import console, machine, store
from albert_cli.data.build import BUILD_PLAN_FILE
from albert_cli.data.records import BuildPlan, read_data_facts
from albert_cli.data.shards import TokenCorpus
from albert_cli.errors import BusyError
from albert_cli.formatting import format_command, hide_secrets
from albert_cli.inference.fill_mask import MASK, encode_masked
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.quickstart import PLAN_FILE, RESULT_FILE
from albert_cli.quickstart.bundled import load_or_write_bundled
from albert_cli.quickstart.plan import FINETUNE_RECIPE, QuickstartPlan, open_task
from albert_cli.quickstart.summary import summarize
from albert_cli.randomness import hash_to_unit_interval
from albert_cli.ranks import require_one_process
from albert_cli.results import CONTROLS
from albert_cli.store import JsonObject
from albert_cli.tasks.classification import TextExample
from albert_cli.tasks.features import tokenize
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.text.work_units import split_sources
from albert_cli.training.text_match import warn_about_mismatch
from albert_cli.work_plan import PLAN_FILE as WORK_PLAN_FILE
from albert_cli.work_plan import recorded_plan

InvokeJson = Callable[[Sequence[str]], JsonObject]  # runs an `albert` command and returns the output of `--json`
# The type of `run` in `run_quickstart`, which prints and runs a command; its arguments are the command's words.
_Run = Callable[..., JsonObject]

_MASKED_EXAMPLES: Final = 12  # texts with a masked word, on which the model's guesses are shown
_EXAMPLE_WORDS: Final = range(8, 17)  # numbers of words of these texts


def run_quickstart(out: Path, invoke: InvokeJson, plan: QuickstartPlan, device: str = "auto") -> JsonObject:
    """Run the unfinished steps of a quickstart in `out`; return the output of `--json`.

    invoke: runs a command and raises an error if it fails. Raises `BusyError` if `out` contains anything but a
    quickstart with the same plan, and `ConfigError` in a process that is one of several ranks.
    """
    require_one_process("the quickstart", "start the command alone; `albert pretrain` trains with several processes")

    def run(*arguments: object) -> JsonObject:
        """Print and run a command; return the output of its `--json`."""
        name, *words = [str(argument) for argument in arguments]
        console.info(f"$ {format_command(['albert', name, *words])}")
        return invoke([name, "--json", *words])  # not at the end, because words after "--" are no options

    started = time.monotonic()
    report = out / "report.html"
    steps = ("vocabulary", "data", "pretrain", *(f"scores/{count}" for count in plan.label_counts), report.name)
    with store.lock(out):
        is_resumed = _has_output(out)
        _require_same_plan(out, plan)
        # `albert status` lists the steps by their paths. The value "" means that a step has no title.
        with recorded_plan(out / WORK_PLAN_FILE, dict.fromkeys(steps, "")):
            corpus_facts: JsonObject = {"source": ", ".join(map(hide_secrets, plan.text))}
            if plan.bundled is not None:
                corpus_facts = load_or_write_bundled(out, plan.bundled)
                plan = replace(plan, text=tuple(str(out / name) for name in plan.text), table=str(out / plan.table))
            pretraining = _pretrain(run, out, plan, device)
            evaluations = {str(count): _evaluate(run, out, plan, count, device) for count in plan.label_counts}
            examples = _fill_masks(run, out, plan, device)
            run("report", "--out", report, "--", out)
            result = {
                "corpus": corpus_facts,
                "pretraining": pretraining,
                **summarize(evaluations),
                "examples": examples,
                "report": str(report),
            }
            seconds = _total_seconds(out, started, is_resumed=is_resumed)
            if seconds is not None:
                result["seconds"] = seconds
            store.write_json(out / RESULT_FILE, result)
    return result


def _has_output(out: Path) -> bool:
    """Return True if the directory contains anything visible but the plan."""
    return any(file.name != PLAN_FILE and not file.name.startswith(".") for file in out.iterdir())


def _require_same_plan(out: Path, plan: QuickstartPlan) -> None:
    """Record the plan in a new directory; raise `BusyError` if the directory has another plan or content.

    A plan without any output may change: its first step failed, for example because of an option of the plan.
    """
    path = out / PLAN_FILE
    public_plan = replace(plan, text=tuple(map(hide_secrets, plan.text)))
    values = json.loads(json.dumps(asdict(public_plan)))  # JSON has lists instead of tuples
    # The key `labels` is that of earlier versions, whose quickstarts can be resumed.
    values = {"labels" if key == "label_counts" else key: value for key, value in values.items()}
    if not _has_output(out):
        store.write_json(path, values)
    elif not path.is_file():
        raise BusyError(f"{out}: contains something other than a quickstart", "choose another --out")
    elif store.read_json(path) != values:
        raise BusyError(
            f"{out}: contains a quickstart with other options or of another version",
            "choose another --out or delete it",
        )


def _pretrain(run: _Run, out: Path, plan: QuickstartPlan, device: str) -> JsonObject:
    """Train a vocabulary, build token shards, and pretrain on them; return the output of `albert pretrain`."""
    vocabulary = out / "vocabulary"
    data = out / "data"
    sizes = ("--size", plan.vocabulary_size, "--sample-size", plan.sample_size)
    language = ("--language", plan.text_options.language)
    cleaning = plan.text_options.cleaning_flags()
    # After "--", a path may begin with "-".
    run("vocab", "--out", vocabulary, *sizes, *language, *cleaning, "--", *plan.text)
    if plan.bundled is None or not _has_moved_data(out, plan.text):
        run("data", "--vocab", vocabulary, "--out", data, "--holdout", 0.03, *language, "--", *plan.text)
    if read_data_facts(data).totals["heldout"].documents == 0:
        console.warn(
            "the text is a single document, or copies of one, so nothing is held out and there is no held-out MLM "
            "loss: divide the text into documents by blank lines, or use several files"
        )
    _warn_about_table(data, plan)
    schedule = ("--max-time", plan.max_time, "-s", "train.eval_every=400")  # often enough for a curve in the report
    return run("pretrain", plan.recipe, "--data", data, "--out", out / "pretrain", *schedule, "--device", device)


def _has_moved_data(out: Path, text: Sequence[str]) -> bool:
    """Return True if `out` has finished shards of the bundled text that were built when `out` had another path.

    `albert data` identifies a text by its path, and would reject them. It would also reject unfinished shards of
    another path, so these are deleted.
    """
    data = out / "data"
    is_finished = store.read_manifest(data) is not None
    if not is_finished and not (data / BUILD_PLAN_FILE).is_file():
        return False
    saved = read_data_facts(data) if is_finished else store.read_record(data / BUILD_PLAN_FILE, BuildPlan)
    if all(part["source"] in text for unit in saved.sources for part in unit["parts"]):
        return False
    if not is_finished:
        store.remove_directory(data)
        return False
    hashes = [unit.sha256() for unit in split_sources(text)]
    is_same_text = hashes == [unit.get("sha256") for unit in saved.sources]
    return is_same_text and saved.vocabulary == store.fingerprint(out / "vocabulary")


def _warn_about_table(data: Path, plan: QuickstartPlan) -> None:
    """Warn, before pretraining takes its time, if the table's texts differ much from the unlabeled text."""
    corpus = TokenCorpus.open(data)
    vocabulary = Vocabulary.load(corpus.vocabulary_dir)
    ids, _ = tokenize(_read_texts(plan, "train"), vocabulary)
    warn_about_mismatch(plan.table, vocabulary, ids, corpus.unigram_counts())


def _read_texts(plan: QuickstartPlan, split: str) -> list[str]:
    """Return the first text of each example of a split; leave out examples that are not a text or a pair of texts."""
    task = open_task(plan)
    return [example.text_a for example in task.read(split, plan.table) if isinstance(example, TextExample)]


def _evaluate(run: _Run, out: Path, plan: QuickstartPlan, count: int, device: str) -> JsonObject:
    """Fine-tune on `count` labeled examples, and return the output of `albert eval`.

    The recipe scores dev only after the last step, so dev selects no checkpoint.
    """
    paths = ("--checkpoint", out / "pretrain", "--data", plan.table, "--out", out / "scores" / str(count))
    processes = min(machine.available_cores(), 2)
    protocol = ("--runs", plan.runs, "--nproc", processes, "--controls", ",".join(CONTROLS))
    settings = ["-s", f'table.title="{plan.title}"', "-s", f"data.train_examples={count}", "--device", device]
    for override in plan.overrides:
        settings += ["-s", override]
    return run("eval", FINETUNE_RECIPE, *paths, *protocol, *settings)


def _total_seconds(out: Path, started: float, *, is_resumed: bool) -> float | None:
    """Return the seconds of the call that ran all steps; None if more than one call was necessary.

    A repeated call of a finished quickstart takes no time, so the result has the seconds of the first call.
    """
    previous = out / RESULT_FILE
    if previous.is_file():
        return cast("float | None", store.read_json(previous).get("seconds"))
    return None if is_resumed else round(time.monotonic() - started, 1)


def _fill_masks(run: _Run, out: Path, plan: QuickstartPlan, device: str) -> list[dict[str, str]]:
    """Mask one word in each of several dev texts, and write the model's guesses of the words to `examples.json`.

    Return the rows of the file, from which `albert report` makes a table; there are none if no dev text is suitable.
    """
    texts = _read_texts(plan, "dev")
    vocabulary = Vocabulary.load(out / "vocabulary")
    examples = list(islice(_mask_one_word(texts, vocabulary, _max_positions(out)), _MASKED_EXAMPLES))
    filled_texts = []
    if examples:
        masked_texts = [text for text, _ in examples]
        # After "--", a text may begin with "-".
        filled_texts = run("fill-mask", "--device", device, "--", out / "pretrain", *masked_texts)["texts"]
    rows = []
    for (text, word), filled_text in zip(examples, filled_texts, strict=True):
        guesses = [f"{guess['text']} {guess['probability']:.0%}" for guess in filled_text["masks"][0]]
        rows.append({"sentence": text, "word": word, "guesses": ", ".join(guesses)})
    title = "Masked words in texts of the development set"
    store.write_json(out / "examples.json", {"title": title, "rows": rows})
    return rows


def _max_positions(out: Path) -> int:
    """Return the maximum number of tokens in an input of the pretrained model."""
    return ModelConfig.read(hub.find_checkpoint(str(out / "pretrain")) / "config.json").max_position_embeddings


def _mask_one_word(texts: Sequence[str], vocabulary: Vocabulary, max_length: int) -> Iterator[tuple[str, str]]:
    """Yield (text with one word masked, the word as the vocabulary spells it) for the suitable texts.

    A text is suitable if its number of words is in `_EXAMPLE_WORDS`, if it has at most `max_length` tokens, and if the
    word that a hash chooses has only letters and is one known token, because the model guesses tokens.
    """
    for text in texts:
        words = text.split()
        if len(words) not in _EXAMPLE_WORDS:
            continue
        index = int(hash_to_unit_interval(f"mask {text}") * len(words))
        ids = vocabulary.encode(words[index])
        if not words[index].isalpha() or len(ids) != 1 or ids[0] == vocabulary.unk_id:
            continue
        masked_text = " ".join([*words[:index], MASK, *words[index + 1 :]])
        if len(encode_masked(masked_text, vocabulary)) <= max_length:
            yield masked_text, vocabulary.decode(ids)
