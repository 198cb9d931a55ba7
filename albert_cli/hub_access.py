"""Whether the Hugging Face Hub can be reached, found out before a library waits for it.

The libraries' own retries take half a minute; in their offline mode they still find what was downloaded before.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from albert_cli.errors import CheckpointError

_SECONDS_TO_CONNECT = 5.0


def prefer_offline() -> bool:
    """Before the Hub's libraries are imported: have them offline where it is out of reach; return whether they are."""
    if "HF_HUB_OFFLINE" not in os.environ and not _is_reachable():
        os.environ["HF_HUB_OFFLINE"] = "1"
    return os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE")


@cache
def _is_reachable() -> bool:
    endpoint = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    if getproxies():
        return True  # behind a proxy a direct connection says nothing
    address = (endpoint.hostname or "huggingface.co", endpoint.port or (80 if endpoint.scheme == "http" else 443))
    try:
        socket.create_connection(address, timeout=_SECONDS_TO_CONNECT).close()
    except OSError:
        return False
    return True


def download_hub_files(name: str, wanted: Sequence[str]) -> Path:
    """The directory of a model's files from the Hub, fetched now or before; `CheckpointError` where there is none."""
    offline = prefer_offline()
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    disable_progress_bars()
    try:
        return Path(snapshot_download(name, allow_patterns=list(wanted), local_files_only=offline))
    except Exception as error:  # the library's errors share no base class
        reason = f"{type(error).__name__}: {error}".split("\n")[0].strip()
        if offline:
            reason = "out of reach, and nothing of that name was downloaded before"
        hint = "check the path; with a network, a Hub id such as albert/albert-base-v2 works too"
        what = f"{name}: no such directory, and the Hub could not be asked for it ({reason})"
        raise CheckpointError(what, hint) from None
