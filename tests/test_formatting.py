from __future__ import annotations

import pytest

from albert_cli.formatting import hide_secrets


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("https://host/a.txt?token=SECRET", "https://host/a.txt?token=…"),
        ("https://host/a.txt?page=1&sig=SECRET%3D%3D", "https://host/a.txt?page=…&sig=…"),
        ("https://host/a.txt?SECRET@0.5", "https://host/a.txt?…@0.5"),
        ("https://reader:SECRET@host:80/a.txt@2", "https://host:80/a.txt@2"),
        ("https://SECRET@host/a.txt", "https://host/a.txt"),
        ("https://reader:SEC@RET@host/a.txt", "https://host/a.txt"),
        ("sftp://reader:SECRET@host/a.txt", "sftp://reader@host/a.txt"),
        ("403, url='https://host/a.txt?token=SECRET'", "403, url='https://host/a.txt?token=…"),
    ],
)
def test_hide_secrets_leaves_out_what_a_url_hides(text: str, public: str) -> None:
    assert hide_secrets(text) == public


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/wiki_0?.txt",
        "abfs://container@account.dfs.core.windows.net/a.txt",
        "https://host/folder/*.txt@2",
        "hf:wikipedia::train?rows=10",
        "tcp://head-node:8786",
        "notes@home.txt?x=1",
    ],
)
def test_hide_secrets_leaves_other_names_unchanged(text: str) -> None:
    assert hide_secrets(text) == text
