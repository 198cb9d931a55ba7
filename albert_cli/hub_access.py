"""Use the Hugging Face Hub: download files, or use earlier downloads if the Hub is unreachable; drop columns of media.

If the Hub is unreachable, `datasets` repeats its requests for half a minute before it uses its cache. In offline mode
it uses the cache immediately. So this module tries one connection and, if that fails, sets the offline mode.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from albert_cli.errors import CheckpointError, ConfigError

_HUB_HOST = "huggingface.co"
_SECONDS_TO_CONNECT = 5.0
_UNREACHABLE = "ALBERT_HUB_UNREACHABLE"  # set by `prefer_offline`; worker processes inherit it


def _is_offline() -> bool:
    """Return True if the offline mode of `huggingface_hub` is on, by its rule."""
    return os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE")


IS_OFFLINE_BY_CHOICE = _is_offline() and _UNREACHABLE not in os.environ


def prefer_offline() -> bool:
    """Set `HF_HUB_OFFLINE` if the Hub is unreachable; return True if the offline mode is on.

    Call this before importing `huggingface_hub` or `datasets`, which read the variable when they are imported.
    """
    if "HF_HUB_OFFLINE" not in os.environ and not _is_reachable():
        os.environ["HF_HUB_OFFLINE"] = "1"
        os.environ[_UNREACHABLE] = "1"
    return _is_offline()


@cache
def _is_reachable() -> bool:
    """Return True if the Hub accepts a connection, or if a proxy may reach it.

    Raises `ConfigError` if `HF_ENDPOINT` has an invalid host or port.
    """
    if getproxies().keys() - {"no"}:  # NO_PROXY lists hosts that need no proxy
        return True  # a direct connection may fail although the proxy reaches the Hub
    url = os.environ.get("HF_ENDPOINT", f"https://{_HUB_HOST}")
    try:
        endpoint = urlsplit(url)
        explicit_port = endpoint.port
    except ValueError as error:
        hint = f"set it to a URL such as https://{_HUB_HOST}, or unset it"
        raise ConfigError(f"HF_ENDPOINT is {url!r}: {error}", hint) from None
    default_port = 80 if endpoint.scheme == "http" else 443
    host = endpoint.hostname or _HUB_HOST  # an endpoint without https:// has no host name
    port = explicit_port or default_port
    try:
        socket.create_connection((host, port), timeout=_SECONDS_TO_CONNECT).close()
    except OSError:
        return False
    return True


def download_hub_files(name: str, patterns: Sequence[str]) -> Path:
    """Return the directory with a model's files from the Hub, downloaded now or earlier.

    `name` is the Hub id, such as albert/albert-base-v2; `patterns` are globs of the required files. Raises
    `CheckpointError` if the files cannot be downloaded and no earlier download exists.
    """
    is_offline = prefer_offline()
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    disable_progress_bars()
    try:
        return Path(snapshot_download(name, allow_patterns=list(patterns), local_files_only=is_offline))
    except Exception as error:  # the library's errors have no common base class
        reason = _describe_error(error)
        if is_offline:
            reason = "unreachable, and no earlier download has this name"
        message = f"{name}: no such directory, and it could not be downloaded from the Hub ({reason})"
        hint = "check the path; with a network, a Hub id such as albert/albert-base-v2 works too"
        raise CheckpointError(message, hint) from None


def drop_media(dataset: Any) -> Any:
    """Return a data set of `datasets`, or a stream of its rows, without the columns of images, audio and video.

    `datasets` decodes them with packages that need not be installed.
    """
    if dataset.features is None:  # of a stream: `datasets` decodes nothing
        return dataset
    from datasets.features.features import require_decoding

    return dataset.select_columns([name for name, kind in dataset.features.items() if not require_decoding(kind)])


def list_hub_files(name: str) -> list[str]:
    """Return the names of all files of a model on the Hub; raise `CheckpointError` if the Hub does not list them."""
    from huggingface_hub import HfApi

    try:
        return HfApi().list_repo_files(name)
    except Exception as error:  # the library's errors have no common base class
        message = f"{name}: the Hub does not list its files ({_describe_error(error)})"
        raise CheckpointError(message, "try it again later") from None


def _describe_error(error: Exception) -> str:
    """Return the class of an error and the first line of its message."""
    return f"{type(error).__name__}: {error}".split("\n")[0].strip()
