"""User namespaces of Linux, in which a test may mount a small disk."""

from __future__ import annotations

import subprocess
import sys


def has_namespaces() -> bool:
    """Return True if `unshare` may create a user namespace with separate mounts."""
    return sys.platform == "linux" and not subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode
