"""A folder of GLUE in its published layout, with a dozen rows per task."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MRPC and RTE, twelve rows each in train and dev."""
    folder = tmp_path_factory.mktemp("glue")
    for name, header, row in (
        ("MRPC", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "{label}\t1\t2\tbade fi gowi.\tmane pi rosu {i}."),
        ("RTE", "index\tsentence1\tsentence2\tlabel", "{i}\tbade fi gowi.\tmane pi.\t{entails}"),
    ):
        (folder / name).mkdir()
        rows = [row.format(i=i, label=i % 2, entails=["entailment", "not_entailment"][i % 2]) for i in range(12)]
        for split in ("train", "dev"):
            (folder / name / f"{split}.tsv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return folder
