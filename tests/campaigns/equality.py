"""Run a set of commands and print the SHA-256 of each file that they write, to compare two checkouts with `diff`.

    python -m tests.campaigns.equality OUT > before.txt      in one checkout
    python -m tests.campaigns.equality OUT > after.txt       in the other checkout

The command uses the `albert` of the checkout in which it is started. Weights, predictions, vectors and data are
compared by their bytes; JSON and pages without times, speeds and versions, which differ between runs. The files stay in
OUT.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

from albert_cli import store
from tests.campaigns import world
from tests.campaigns.faults import content
from tests.helpers.command import albert

RUN = "-s train.precision=fp32 -s train.threads=1 --device cpu"
SMALL = (
    "-s model.embedding_size=16 -s model.hidden_size=32 -s model.intermediate_size=64 -s model.num_attention_heads=4 "
    "-s model.num_hidden_layers=2 -s model.max_position_embeddings=32 -s data.max_seq_length=24 -s train.batch_size=8 "
    "-s train.eval_sequences=8 -s train.log_every=1 -s schedule.total_steps=5 " + RUN
)
TUNE = (
    "-s data.max_seq_length=24 -s schedule.total_steps=4 -s schedule.warmup_steps=1 -s optimizer.lr=1e-2 "
    "-s train.batch_size=4 -s train.eval_every=2 " + RUN
)
SPAN = "-s span.max_query_length=8 -s span.doc_stride=4"
DROPOUT = (
    "-s schedule.total_steps=8 -s train.save_every=4 -s model.hidden_dropout_prob=0.1 -s train.threads=1 --device cpu"
)
TIMED = {"state.json", "results.json"}  # these files contain times, so the fingerprints of their directories vary
# The commands by the name of their output; they read the artifacts of `tests.campaigns.world`, and each other's output.
COMMANDS = {
    "data-workers": "data text/a.txt text/b.jsonl --vocab vocabulary --out {out} --holdout 0.2 --workers 2",
    "data-squad": "data squad:squad/train-v2.0.json race:race --vocab vocabulary --out {out} --workers 1",
    "vocab-all": "vocab text --size 70 --out {out}",
    # `resumed` continues a copy of `long` without its last checkpoint.
    "long": f"pretrain recipe.toml --data data --out {{out}} {DROPOUT}",
    "resumed": f"pretrain recipe.toml --data data --out {{out}} {DROPOUT}",
    "ranks": f"pretrain recipe.toml --data data --out {{out}} --nproc 2 {DROPOUT}",
    "docs": f"pretrain mini/docs --data data-workers --out {{out}} {SMALL}",
    "base": f"pretrain pretrain/albert-base --data data --out {{out}} {SMALL} -s train.micro_batch_size=4 "
    "-s model.vocab_size=70 -s schedule.warmup_steps=2",
    "bert": f"pretrain pretrain/bert-base --data data-squad --out {{out}} {SMALL} -s schedule.warmup_steps=2 "
    "-s model.vocab_size=70 -s data.sentence_loss=three-way -s train.micro_batch_size=8",
    "taught": "pretrain recipe.toml --data data --out {out} --teacher long --device cpu",
    "further-data": "pretrain scored.toml --data data --out {out} --device cpu -s warm_start.checkpoint=run",
    "continued": "pretrain recipe.toml --data data --out {out} --device cpu -s warm_start.continues=run "
    "-s schedule.total_steps=6",
    **{
        f"docs-{task}": f"finetune {task} --checkpoint docs --data {data} --out {{out}} {TUNE}"
        for task, data in (("cola", "glue"), ("sst2", "glue"), ("stsb", "glue -s intermediate_task=pretrained"),
                           ("mnli", "glue"), ("race_high", "race"), ("squad2", f"squad {SPAN} -s span.head=beam"))
    },
    "eval-mrpc": f"eval mrpc --checkpoint docs --data glue --runs 2 --controls init,random --out {{out}} {TUNE} "
    "-s intermediate_task=pretrained",
    "eval-table": f"eval table --checkpoint docs --data table --runs 2 --nproc 2 --out {{out}} {TUNE}",
    "eval-squad1": f"eval squad1 --checkpoint docs --data squad --runs 2 --out {{out}} {TUNE} {SPAN}",
    "eval-scored": "eval cola --checkpoint docs-cola --data glue --out {out} --device cpu",
    "ensemble": "ensemble mrpc eval-mrpc --data glue --out {out} --device cpu",
    "ensemble-squad": "ensemble squad1 eval-squad1 --data squad --out {out} --device cpu",
    "searched-cola": f"search cola lr=1e-3,1e-2 batch=4 --checkpoint docs --data glue --runs 1 --out {{out}} {TUNE}",
    **{
        f"predict-{kind}": f"predict {run} --input {lines_file} --out {{out}}.jsonl --device cpu"
        for kind, run, lines_file in (("sentence", "docs-cola", "input/lines.txt"),
                                 ("table", "tuned-table", "input/lines.jsonl"),
                                 ("number", "docs-stsb", "input/pairs.txt"), ("pair", "docs-mnli", "input/pairs.txt"),
                                 ("squad1", "eval-squad1/run-0", "squad/dev-v1.1.json"),
                                 ("squad2", "docs-squad2", "squad/dev-v2.0.json"))
    },
    **{
        f"encode-{pooling}": f"encode docs --input input/lines.txt --pooling {pooling} --out {{out}}.jsonl --device cpu"
        for pooling in ("mean", "cls", "pooler")
    },
    "encode": "encode docs-mnli --input input/pairs.txt --out {out}.safetensors --device cpu",
    "fill-mask": "fill-mask docs 'A [MASK] b.' --device cpu",
    "probe": "probe docs --data data --sequences 8 --device cpu",
    "inspect": "inspect data --examples 2 --recipe recipe.toml",
    "params-paper": "params --paper",
    "params-run": "params docs",
    "experiments": "reproduce small.toml --scale smoke --data data --tasks glue --seeds 1 --out {out} --device cpu",
    # Drawings of speeds differ between runs, so runs and experiments are compared without the HTML page.
    "report-runs": "report docs experiments --markdown {out}.md",
    "report": "report docs-cola eval-squad1 eval-mrpc searched-cola ensemble --out {out}.html --markdown {out}.md",
}  # fmt: skip


def make(folder: Path) -> Path:
    """Create the artifacts and task files, and run the commands; return the folder."""
    world.make(folder)
    with chdir(folder):
        _write_task_files()
        Path("printed").mkdir()
        for name, line in COMMANDS.items():
            if name == "resumed":
                world.copy_without_step(Path("long"), Path("resumed"), 8)
            sys.argv = ["albert", *shlex.split(line.format(out=name)), "--json"]  # --nproc starts ranks with these
            Path(f"printed/{name}.json").write_text(albert(*sys.argv[1:]).out)
    return folder


def lines(folder: Path) -> Iterator[str]:
    """Yield `SHA-256  NAME` for every file, without the parts that differ between runs."""
    directories = [path.parent for path in sorted(folder.rglob(store.MANIFEST))]
    timed = [directory for directory in directories if any((directory / name).exists() for name in TIMED)]
    names = {store.fingerprint(directory).encode(): str(directory.relative_to(folder)).encode() for directory in timed}
    names |= {fingerprint[:8]: name for fingerprint, name in names.items()}  # pages show shortened fingerprints
    for name, value in sorted(content(folder, names).items()):
        digest = value if isinstance(value, str) else hashlib.sha256(json.dumps(value).encode()).hexdigest()
        yield f"{digest}  {name}"


def _write_task_files() -> None:
    """Write the files of tasks that `world` lacks."""
    sentences = [f"{sentence}." for sentence in Path("text/a.txt").read_text().replace("\n", " ").split(". ")]
    header = "index\tsentence1\tsentence2\t"
    for split, rows in (("train", range(12)), ("dev", range(12, 24))):
        pairs = [f"{i}\t{sentences[i]}\t{sentences[i + 1]}\t" for i in rows]
        glue = {
            f"CoLA/{split}": [f"a\t{i % 3 % 2}\t\t{sentences[i]}" for i in rows],
            f"SST-2/{split}": ["sentence\tlabel", *(f"{sentences[i]}\t{i % 2}" for i in rows)],
            f"STS-B/{split}": [f"{header}score", *(f"{pair}{i % 11 / 2}" for i, pair in zip(rows, pairs, strict=True))],
            f"RTE/{split}": [
                f"{header}label",
                *(f"{pair}{'not_' * (i % 2)}entailment" for i, pair in enumerate(pairs)),
            ],
        }
        mnli = ("contradiction", "entailment", "neutral")
        for end in ("_matched", "_mismatched") if split == "dev" else ("",):
            glue[f"MNLI/{split}{end}"] = [
                f"{header}gold_label",
                *(f"{pair}{mnli[i % 3]}" for i, pair in enumerate(pairs)),
            ]
        for name, content_of in glue.items():
            Path(f"glue/{name}.tsv").parent.mkdir(exist_ok=True)
            Path(f"glue/{name}.tsv").write_text("\n".join(content_of) + "\n")
        squad = json.loads(Path(f"squad/{split}-v2.0.json").read_text())
        articles = squad["data"]
        squad["data"] = [a for a in articles if not a["paragraphs"][0]["qas"][0].pop("is_impossible")]
        Path(f"squad/{split}-v1.1.json").write_text(json.dumps({**squad, "version": "1.1"}))
    Path("input/pairs.txt").write_text("".join(f"{sentences[i]}\t{sentences[i + 2]}\n" for i in range(6)))
    smoke = 'variants = ["all", "none"], tasks = ["mrpc", "rte"]'
    Path("small.toml").write_text(f'extends = "experiments/sharing"\nscales.smoke = {{ {smoke} }}\n')


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="the folder of the files; its old content is deleted")
    out = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # stdout must not have the output of the ranks that --nproc starts
    results.write("".join(f"{line}\n" for line in lines(make(out))))
    results.close()


if __name__ == "__main__":
    main()
