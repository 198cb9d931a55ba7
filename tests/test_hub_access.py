"""Reach the Hub directly or through a proxy."""

from __future__ import annotations

import re
import socket

import pytest

from albert_cli.errors import ConfigError
from albert_cli.hub_access import _is_reachable


@pytest.mark.parametrize("endpoint", ["https://mirror:abc", "https://mirror:99999", "https://[mirror"])
def test_is_reachable_wrong_endpoint_raises(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    _is_reachable.cache_clear()
    with pytest.raises(ConfigError, match=f"HF_ENDPOINT is '{re.escape(endpoint)}'"):
        _is_reachable()


@pytest.mark.parametrize(("variable", "expected"), [("no_proxy", False), ("https_proxy", True)])
def test_is_reachable_no_proxy_alone_is_no_proxy(
    variable: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv(variable, "localhost")
    with socket.socket() as closed:  # bound and not listening, so it refuses connections
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        _is_reachable.cache_clear()
        assert _is_reachable() is expected
    _is_reachable.cache_clear()
