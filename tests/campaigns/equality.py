"""The same bytes before and after: what a set of commands makes, a line and a SHA-256 each, to be compared by `diff`.

    python -m tests.campaigns.equality OUT > before.txt      in one checkout, and in the other: > after.txt

The product is the checkout that it is started from. Weights, predictions, vectors and data count by their bytes; JSON
and pages without what another run has otherwise: times, rates and versions. What the commands made stays in OUT.
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
TIMED = {"state.json", "results.json"}  # have seconds in them, and so a fingerprint that varies
# Of what `tests.campaigns.world` makes, by name and command.
COMMANDS = {
    "data-workers": "data text/a.txt text/b.jsonl --vocab vocabulary --out {out} --holdout 0.2 --workers 2",
    "data-squad": "data squad:squad/train-v2.0.json race:race --vocab vocabulary --out {out} --workers 1",
    "vocab-all": "vocab text --size 70 --out {out}",
    # resumed: the same without its last checkpoint, see `_before`
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
    # A drawing of speeds cannot be compared, so of what has them the tables alone.
    "report-runs": "report docs experiments --markdown {out}.md",
    "report": "report docs-cola eval-squad1 eval-mrpc searched-cola ensemble --out {out}.html --markdown {out}.md",
}  # fmt: skip


def make(folder: Path) -> Path:
    """Make the world of the campaigns, what else the commands read, and their results; returns the folder."""
    world.make(folder)
    with chdir(folder):
        _files()
        Path("printed").mkdir()
        for name, line in COMMANDS.items():
            if name == "resumed":
                world.undone(Path("long"), Path("resumed"), 8)
            sys.argv = ["albert", *shlex.split(line.format(out=name)), "--json"]  # what --nproc starts reads it
            Path(f"printed/{name}.json").write_text(albert(*sys.argv[1:]).out)
    return folder


def lines(folder: Path) -> Iterator[str]:
    """`SHA-256  NAME` of every file that the commands made, but for what varies from run to run."""
    made = [path.parent for path in sorted(folder.rglob(store.MANIFEST))]
    timed = [directory for directory in made if any((directory / name).exists() for name in TIMED)]
    names = {store.fingerprint(directory).encode(): str(directory.relative_to(folder)).encode() for directory in timed}
    names |= {fingerprint[:8]: name for fingerprint, name in names.items()}  # as pages shorten them
    for name, value in sorted(content(folder, names).items()):
        digest = value if isinstance(value, str) else hashlib.sha256(json.dumps(value).encode()).hexdigest()
        yield f"{digest}  {name}"


def _files() -> None:
    """Tasks that `world` has none of."""
    words = [f"{sentence}." for sentence in Path("text/a.txt").read_text().replace("\n", " ").split(". ")]
    header = "index\tsentence1\tsentence2\t"
    for split, rows in (("train", range(12)), ("dev", range(12, 24))):
        pairs = [f"{i}\t{words[i]}\t{words[i + 1]}\t" for i in rows]
        glue = {
            f"CoLA/{split}": [f"a\t{i % 3 % 2}\t\t{words[i]}" for i in rows],
            f"SST-2/{split}": ["sentence\tlabel", *(f"{words[i]}\t{i % 2}" for i in rows)],
            f"STS-B/{split}": [f"{header}score", *(f"{pair}{i % 11 / 2}" for i, pair in zip(rows, pairs, strict=True))],
            f"RTE/{split}": [f"{header}label", *(f"{p}{'not_' * (i % 2)}entailment" for i, p in enumerate(pairs))],
        }
        mnli = ("contradiction", "entailment", "neutral")
        for end in ("_matched", "_mismatched") if split == "dev" else ("",):
            glue[f"MNLI/{split}{end}"] = [f"{header}gold_label", *(f"{p}{mnli[i % 3]}" for i, p in enumerate(pairs))]
        for name, content_of in glue.items():
            Path(f"glue/{name}.tsv").parent.mkdir(exist_ok=True)
            Path(f"glue/{name}.tsv").write_text("\n".join(content_of) + "\n")
        squad = json.loads(Path(f"squad/{split}-v2.0.json").read_text())
        squad["data"] = [one for one in squad["data"] if not one["paragraphs"][0]["qas"][0].pop("is_impossible")]
        Path(f"squad/{split}-v1.1.json").write_text(json.dumps({**squad, "version": "1.1"}))
    Path("input/pairs.txt").write_text("".join(f"{words[i]}\t{words[i + 2]}\n" for i in range(6)))
    smoke = 'variants = ["all", "none"], tasks = ["mrpc", "rte"]'
    Path("small.toml").write_text(f'extends = "experiments/sharing"\nscales.smoke = {{ {smoke} }}\n')


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="a folder for what the commands make; it is emptied first")
    out = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what is started by --nproc prints
    results.write("".join(f"{line}\n" for line in lines(make(out))))
    results.close()


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
