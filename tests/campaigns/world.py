"""Create a small artifact of every kind that a command reads, with `albert` itself, in a few seconds."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers.command import albert, write_table

SYLLABLES = ("ba", "de", "fi", "go", "lu", "ma", "ne", "pi", "ro", "su", "ta", "ve", "wi", "zo", "kra", "ste")
RECIPE = """# A tiny model that trains in a fraction of a second.
[model]
embedding_size = 8
hidden_size = 16
num_hidden_layers = 1
num_attention_heads = 2
intermediate_size = 32
max_position_embeddings = 32
[data]
max_seq_length = 24
[optimizer]
lr = 1e-2
[schedule]
total_steps = 4
warmup_steps = 1
[train]
batch_size = 4
micro_batch_size = 4
log_every = 1
eval_every = 2
eval_sequences = 4
save_every = 2
keep = 3
precision = "fp32"
compile = "off"
"""
_TASK = """extends = "finetune/{name}"
[data]
max_seq_length = 24
[schedule]
total_steps = 2
warmup_steps = 1
[train]
batch_size = 4
micro_batch_size = 4
eval_every = 1
save_every = 1
log_every = 1
threads = 1
precision = "fp32"
compile = "off"
"""
TASKS = ("table", "mrpc", "squad2", "race")
_RARELY_READ = ("scored", "further", "searched", "reproduced")
CPU = ("--device", "cpu")


@dataclass(frozen=True)
class Command:
    """A command over the artifacts.

    inputs: the files and directories that it reads; out: its output, which may exist; weight: of the random choice of a
    command.
    """

    name: str
    arguments: tuple[str, ...]
    inputs: tuple[str, ...]
    out: str = "out"
    weight: float = 1.0

    @property
    def resumes(self) -> bool:
        """True if `out` exists already: the command resumes it, or finds that it is finished."""
        return self.out in self.inputs


def make(folder: Path, tasks: Sequence[str] = TASKS) -> Path:
    """Create the artifacts in `folder`, with a fine-tuned run for each of the tasks; return the folder.

    If the folder exists, it already has the artifacts.
    """
    if folder.is_dir():
        return folder
    folder.mkdir(parents=True)
    rng = random.Random(5)
    with chdir(folder):
        _write_texts(rng)
        write_table(Path("table"), rows=8)
        _convert_table(Path("table-jsonl"), Path("table-parquet"))
        _write_tasks(rng)
        Path("recipe.toml").write_text(RECIPE)
        Path("child.toml").write_text('extends = "recipe.toml"\n[schedule]\ntotal_steps = 2\n')
        for name in TASKS:
            span = "[span]\nmax_query_length = 8\ndoc_stride = 4\n" if name == "squad2" else ""
            Path(f"{name}.toml").write_text(_TASK.format(name=name) + span)
        albert("vocab", "text/a.txt", "--size", 70, "--out", "vocabulary")
        albert("data", "text/a.txt", "--vocab", "vocabulary", "--out", "data", "--holdout", 0.2, "--workers", 1)
        albert("data", "text/a.txt", "text/b.jsonl", "--vocab", "vocabulary", "--out", "half", "--task", "1/2")
        albert("pretrain", "recipe.toml", "--data", "data", "--out", "run", *CPU)
        copy_without_step(Path("run"), Path("run-half"), 4)
        for task in tasks:
            data = {"mrpc": "glue", "squad2": "squad"}.get(task, task)
            albert("finetune", f"{task}.toml", "--checkpoint", "run", "--data", data, "--out", f"tuned-{task}", *CPU)
        if tasks == TASKS:
            albert("eval", "table.toml", "--checkpoint", "run", "--data", "table", "--out", "eval", "--runs", 2, *CPU)
            _create_rarely_read()
        shutil.copytree("run", "elsewhere/run")
        Path("elsewhere/run/step-00000004/manifest.json").unlink()
    return folder


def _create_rarely_read() -> None:
    """Create the artifacts that few commands read."""
    Path("scored.toml").write_text('extends = "recipe.toml"\nevaluation = ["further"]\n')
    albert("data", "text/b.jsonl", "--vocab", "vocabulary", "--out", "further", "--holdout", 0.2, "--workers", 1)
    for command in _commands_over_finished_output():
        albert(*command.arguments)


def tasks_for(selected: Iterable[Command]) -> Sequence[str]:
    """Return the tasks whose fine-tuned runs these commands read: all tasks or none."""
    inputs = [name for command in selected for name in command.inputs]
    return TASKS if any(name.startswith(("tuned", "eval", *_RARELY_READ)) for name in inputs) else ()


def copy_inputs(world: Path, command: Command, folder: Path) -> None:
    """Copy the inputs of a command into a folder."""
    for name in command.inputs:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        source = world / name
        shutil.copytree(source, target, symlinks=True) if source.is_dir() else shutil.copy2(source, target)


def run_in_process(world: Path, command: Command, folder: Path) -> None:
    """Run a command in this process on a copy of its inputs, so that later forks inherit its imports and caches."""
    copy_inputs(world, command, folder)
    with chdir(folder):
        albert(*command.arguments)
    shutil.rmtree(folder)


def reproduction() -> Command:
    """Return the command of the shortest experiment."""
    call = "reproduce similarity --scale smoke --data data --seeds 1 --device cpu --out out"
    return _command("reproduce", call, "data")


def _random_documents(rng: random.Random, count: int) -> list[str]:
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(60)]
    return [
        " ".join(" ".join(rng.choices(words, k=rng.randint(3, 9))).capitalize() + "." for _ in range(rng.randint(1, 5)))
        for _ in range(count)
    ]


def _write_texts(rng: random.Random) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    documents = _random_documents(rng, 60)
    plain = "\n\n".join(documents).encode()
    Path("text").mkdir()
    Path("text/a.txt").write_bytes(plain)
    Path("text/b.jsonl").write_text("".join(json.dumps({"text": d}) + "\n" for d in documents))
    Path("text/c.csv").write_text("id,text\n" + "".join(f'{i},"{d}"\n' for i, d in enumerate(documents)))
    Path("text/d.tsv").write_text("id\ttext\n" + "".join(f"{i}\t{d}\n" for i, d in enumerate(documents)))
    pq.write_table(pa.table({"text": documents}), "text/e.parquet")
    Path("text/f.txt.gz").write_bytes(gzip.compress(plain, mtime=0))
    Path("text/g.txt.bz2").write_bytes(bz2.compress(plain))
    Path("text/h.txt.xz").write_bytes(lzma.compress(plain))
    Path("text/i.txt.zst").write_bytes(pa.compress(plain, codec="zstd", asbytes=True))
    Path("input").mkdir()
    Path("input/lines.txt").write_text("".join(f"{d[:60]}\n" for d in documents[:6]))
    Path("input/lines.jsonl").write_text("".join(json.dumps({"text": d[:60]}) + "\n" for d in documents[:6]))


def _convert_table(jsonl: Path, parquet: Path) -> None:
    """Write the table also as JSON lines and as Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    jsonl.mkdir()
    parquet.mkdir()
    for split in ("train", "dev"):
        rows = [line.split("\t") for line in Path(f"table/{split}.tsv").read_text().splitlines()[1:]]
        (jsonl / f"{split}.jsonl").write_text("".join(json.dumps({"text": t, "label": n}) + "\n" for t, n in rows))
        pq.write_table(
            pa.table({"text": [r[0] for r in rows], "label": [r[1] for r in rows]}), parquet / f"{split}.parquet"
        )


def _write_tasks(rng: random.Random) -> None:
    texts = _random_documents(rng, 24)
    columns = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
    Path("glue/MRPC").mkdir(parents=True)
    Path("squad").mkdir()
    for split, rows in (("train", range(8)), ("dev", range(8, 14))):
        lines = [f"{i % 2}\t{i}\t{i + 1}\t{texts[i]}\t{texts[i + 1]}\n" for i in rows]
        Path(f"glue/MRPC/{split}.tsv").write_text("\t".join(columns) + "\n" + "".join(lines))
        articles = [
            {"title": f"t{i}", "paragraphs": [{"context": texts[i], "qas": [_question(f"{split}{i}", texts[i], i)]}]}
            for i in rows
        ]
        Path(f"squad/{split}-v2.0.json").write_text(json.dumps({"version": "v2.0", "data": articles}))
        for level in ("middle", "high"):
            folder = Path(f"race/{split}/{level}")
            folder.mkdir(parents=True)
            for i in rows:
                record = {"id": f"{level}{i}.txt", "article": texts[i], "questions": ["What is _ ?"], "answers": ["B"]}
                (folder / f"{i}.txt").write_text(json.dumps({**record, "options": [["a", "b", "c", "d"]]}))


def _question(name: str, context: str, number: int) -> dict[str, Any]:
    word = context.split()[-1].rstrip(".")
    answers = [] if number % 3 == 0 else [{"text": word, "answer_start": context.rindex(word)}]
    return {"id": name, "question": "Who?", "answers": answers, "is_impossible": not answers}


def copy_without_step(run: Path, out: Path, step: int) -> None:
    """Copy a finished run without its last step, as if it had been killed before the last save."""
    shutil.copytree(run, out)
    shutil.rmtree(out / f"step-{step:08d}")


def _command(name: str, line: str, inputs: str, out: str = "out", weight: float = 1.0) -> Command:
    return Command(name, tuple(shlex.split(line)), tuple(inputs.split()), out, weight)


def commands_by_name() -> dict[str, Command]:
    """Return the first command of each name, and the shortest experiment."""
    by_name: dict[str, Command] = {}
    for command in (*commands(), reproduction()):
        by_name.setdefault(command.name, command)
    return by_name


def commands() -> Iterator[Command]:
    """Yield the commands of the campaigns; each of them succeeds over undamaged artifacts."""
    yield from _text_commands()
    pretrain = "pretrain recipe.toml --data data --device cpu --out"
    yield _command("pretrain", f"{pretrain} out", "recipe.toml data", weight=3)
    yield _command("pretrain, resumed", f"{pretrain} run-half", "recipe.toml data run-half", "run-half", 3)
    yield _command("pretrain, finished", f"{pretrain} run", "recipe.toml data run", "run", 2)
    yield _command("pretrain, warm start", f"{pretrain} out -s warm_start.checkpoint=run", "recipe.toml data run")
    continued = "-s warm_start.continues=run -s schedule.total_steps=6"
    yield _command("pretrain, continued", f"{pretrain} out {continued}", "recipe.toml data run")
    call = "pretrain scored.toml --data data --device cpu --out out"
    yield _command("pretrain, further data", call, "scored.toml recipe.toml data further")
    yield _command("pretrain, teacher", f"{pretrain} out --teacher run", "recipe.toml data run")
    yield from _task_commands()
    yield from _commands_over_finished_output()
    yield _command("reproduce --list", "reproduce --list --out reproduced", "reproduced", "reproduced", 0.5)
    for file in ("lines.txt", "lines.jsonl"):
        call = f"predict tuned-table --input input/{file} --out out.jsonl --device cpu"
        yield _command("predict", call, f"tuned-table input/{file}", "out.jsonl")
    call = "encode run --input input/lines.txt --out out.jsonl --device cpu"
    yield _command("encode", call, "run input/lines.txt", "out.jsonl")
    call = "predict tuned-squad2 --input squad/dev-v2.0.json --out out.jsonl --device cpu"
    yield _command("predict", call, "tuned-squad2 squad", "out.jsonl")
    yield _command("fill-mask", "fill-mask run 'A [MASK] b.' --device cpu", "run")
    yield _command("probe", "probe run --data data --sequences 4 --device cpu", "run data")
    for name in ("vocabulary", "data", "half", "run", "run-half", "tuned-table", "tuned-squad2", "eval"):
        yield _command("inspect", f"inspect {name}", name, weight=0.6)
        if name not in ("half", "eval"):  # they have no manifests to verify
            yield _command("inspect --verify", f"inspect {name} --verify", name, weight=0.3)
    yield _command("inspect --examples", "inspect data --examples 2 --recipe recipe.toml", "data recipe.toml")
    yield _command(
        "bench", "bench pretrain recipe.toml --data data --rounds 1 --device cpu", "recipe.toml data", weight=0.3
    )
    everything = "data run tuned-table tuned-squad2 eval searched reproduced"
    yield _command("report", f"report {everything} --out out.html --markdown out.md", everything, "out.html")
    yield _command("params", "params run", "run", weight=0.5)
    yield _command("params", "params elsewhere/run", "elsewhere")
    yield _command("params", "params child.toml", "child.toml recipe.toml")
    yield _command("validate", "recipes validate child.toml", "child.toml recipe.toml")
    yield _command("validate", "recipes validate table.toml", "table.toml")


def _text_commands() -> Iterator[Command]:
    for name in ("a.txt", "b.jsonl", "c.csv", "d.tsv", "e.parquet", "f.txt.gz", "g.txt.bz2", "h.txt.xz", "i.txt.zst"):
        source = f"text/{name}"
        yield _command("vocab", f"vocab {source} --size 70 --out out", source, weight=0.2)
        call = f"data {source} --vocab vocabulary --out out --workers 1"
        yield _command("data", call, f"{source} vocabulary", weight=0.6)
    for source in ("squad:squad/train-v2.0.json", "squad-answers:squad/train-v2.0.json", "race:race"):
        call = f"data {source} --vocab vocabulary --out out --workers 1"
        kind = source.partition(":")[0]
        yield _command("data", call, f"{kind.partition('-')[0]} vocabulary", weight=0.5)
    call = "vocab text/a.txt --size 70 --out vocabulary"
    yield _command("vocab, finished", call, "text/a.txt vocabulary", "vocabulary")
    call = "data text/a.txt --vocab vocabulary --out data --holdout 0.2 --workers 1"
    yield _command("data, finished", call, "text/a.txt vocabulary data", "data")
    call = "data text/a.txt text/b.jsonl --vocab vocabulary --out half --workers 1"
    yield _command("data, resumed", call, "text/a.txt text/b.jsonl vocabulary half", "half", 2)


def _commands_over_finished_output() -> Iterator[Command]:
    """Yield commands whose output is finished; `_create_rarely_read` creates it with the same commands."""
    call = "search table.toml lr=1e-3,1e-2 --checkpoint run --data table --runs 1 --device cpu --out searched"
    yield _command("search, finished", call, "table.toml run table searched", "searched")
    arguments = reproduction().arguments[:-1]
    yield Command("reproduce, finished", (*arguments, "reproduced"), ("data", "reproduced"), "reproduced", 2)


def _task_commands() -> Iterator[Command]:
    for data in ("table", "glue", "squad", "race", "table-jsonl", "table-parquet"):
        task = {"glue": "mrpc", "squad": "squad2"}.get(data, data.partition("-")[0])
        call = f"finetune {task}.toml --checkpoint run --data {data} --device cpu --out"
        yield _command("finetune", f"{call} out", f"{task}.toml run {data}")
        if "-" not in data:
            tuned = f"tuned-{task}"
            yield _command("finetune, finished", f"{call} {tuned}", f"{task}.toml run {data} {tuned}", tuned, 0.5)
            call = f"eval {task}.toml --checkpoint {tuned} --data {data} --device cpu --out out"
            yield _command("eval, task checkpoint", call, f"{task}.toml {tuned} {data}", weight=0.7)
    start = "eval table.toml --data table --device cpu"
    call = f"{start} --checkpoint elsewhere/run --runs 1 --out out"
    yield _command("eval", call, "table.toml elsewhere table", weight=2)
    call = f"{start} --checkpoint run --runs 2 --out eval"
    yield _command("eval, finished", call, "table.toml run table eval", "eval", 2)
    yield _command("ensemble", "ensemble table eval --data table --device cpu --out out", "eval table")
