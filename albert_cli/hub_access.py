"""Access to the Hugging Face Hub; without a network the files of earlier downloads are used.

`datasets` retries for half a minute if the Hub is unreachable; in offline mode it uses its cache at once.
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

_DEFAULT_ENDPOINT = "https://huggingface.co"
_SECONDS_TO_CONNECT = 5.0


def prefer_offline() -> bool:
    """Set `HF_HUB_OFFLINE` if the Hub is unreachable; return True if it is set. Call it before importing a library."""
    if "HF_HUB_OFFLINE" not in os.environ and not _is_reachable():
        os.environ["HF_HUB_OFFLINE"] = "1"
    return os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE")


@cache
def _is_reachable() -> bool:
    if getproxies():
        return True  # a direct connection would prove nothing
    endpoint = urlsplit(os.environ.get("HF_ENDPOINT", _DEFAULT_ENDPOINT))
    default_port = 80 if endpoint.scheme == "http" else 443
    address = (endpoint.hostname or "huggingface.co", endpoint.port or default_port)
    try:
        socket.create_connection(address, timeout=_SECONDS_TO_CONNECT).close()
    except OSError:
        return False
    return True


def download_hub_files(name: str, patterns: Sequence[str]) -> Path:
    """Return the directory of a model's files from the Hub, downloaded now or before; raise `CheckpointError`."""
    is_offline = prefer_offline()
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    disable_progress_bars()
    try:
        return Path(snapshot_download(name, allow_patterns=list(patterns), local_files_only=is_offline))
    except Exception as error:  # the library's errors have no common base class
        reason = f"{type(error).__name__}: {error}".split("\n")[0].strip()
        if is_offline:
            reason = "unreachable, and no earlier download has this name"
        message = f"{name}: no such directory, and the Hub has not delivered it ({reason})"
        hint = "check the path; with a network, a Hub id such as albert/albert-base-v2 works too"
        raise CheckpointError(message, hint) from None
