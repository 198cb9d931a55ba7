from __future__ import annotations

import pytest

from albert_cli.errors import ConfigError
from albert_cli.text.read_settings import ReadSettings, parse_size


def test_parse_size_reads_units_rejects_others() -> None:
    assert [parse_size(s) for s in ("64MiB", "1.5k", "2 GB", "77", "1Gi", "3m")] == [
        64 << 20, 1500, 2 * 10**9, 77, 1 << 30, 3 * 10**6,
    ]  # fmt: skip
    for bad in ("²", "9" * 400, "9999999999GiB", "", "MiB", "1TB", "one", "-3k"):
        with pytest.raises(ConfigError, match="is not a size"):
            parse_size(bad)
    with pytest.raises(ConfigError, match="--max-line"):
        ReadSettings(max_line=10)
