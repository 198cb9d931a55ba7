"""Whether the Hugging Face Hub can be reached, found out before a library waits for it.

The libraries' own retries take half a minute and print a line each before they give up; in their offline mode
they answer at once, and still find what was downloaded before.
"""

from __future__ import annotations

import os
import socket
from functools import cache
from urllib.parse import urlsplit
from urllib.request import getproxies

_SECONDS_TO_CONNECT = 5.0


def prefer_offline() -> bool:
    """Put the Hub's libraries into offline mode when it cannot be reached; return whether they are offline.

    Call it before the first import of `huggingface_hub` or `datasets`, which read the environment then.
    """
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
