"""A web server on the loopback, with and without ranges, versions, passwords and faults."""

from __future__ import annotations

import http.server
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class WebServer:
    """The file that a server sends for `/all.txt`, and for `/folder/`, and how the server behaves.

    versions: the headers that describe the file's version; authorization: the header that a request needs, "" for none;
    fault: of the answers with bytes: "cut" closes the connection after half of them, "slow" takes two seconds, "stall"
    sends half of them and then nothing; requests: method and path of all requests.
    """

    content: bytes = b""
    has_ranges: bool = True
    versions: Mapping[str, str] = field(default_factory=lambda: {"ETag": '"one"'})
    authorization: str = ""
    fault: str = ""
    range_status: int = 206
    requests: list[str] = field(default_factory=list)
    url: str = ""


class _Handler(http.server.BaseHTTPRequestHandler):
    settings: WebServer

    def do_HEAD(self) -> None:
        self._send(has_body=False)

    def do_GET(self) -> None:
        self._send(has_body=True)

    def _send(self, *, has_body: bool) -> None:
        settings = self.settings
        settings.requests.append(f"{self.command} {self.path}")
        status = self._error_status()
        if status:
            self.send_error(status)
            return
        content = settings.content
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")) if settings.has_ranges else None
        if match and settings.range_status != 206 and match[0] != "bytes=0-0":
            self.send_error(settings.range_status)
            return
        if match:
            first, last = int(match[1]), min(int(match[2]), len(content) - 1)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
            content = content[first : last + 1]
        else:
            self.send_response(200)
        if settings.has_ranges:
            self.send_header("Accept-Ranges", "bytes")
        for name, value in settings.versions.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if has_body:
            self._send_body(content)

    def _error_status(self) -> int:
        """Return the status of a refused request; 0 for an answered one."""
        if self.settings.authorization and self.headers.get("Authorization") != self.settings.authorization:
            return 401
        if self.path.partition("?")[0] in ("/all.txt", "/folder/"):
            return 0
        match = re.fullmatch(r"/(\d{3})\.txt", self.path.partition("?")[0])
        return int(match[1]) if match else 404

    def _send_body(self, content: bytes) -> None:
        half = len(content) // 2
        if not self.settings.fault or half == 0:
            self.wfile.write(content)
            return
        self.wfile.write(content[:half])
        if self.settings.fault == "slow":
            time.sleep(2)
            self.wfile.write(content[half:])
        elif self.settings.fault == "stall":
            time.sleep(6)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def run_handler(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """Answer requests on the loopback while the block runs, and yield the server's URL without a path."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def run_server(settings: WebServer) -> Iterator[WebServer]:
    """Serve a file over HTTP while the block runs, and yield the settings with the file's URL."""
    handler = type("Handler", (_Handler,), {"settings": settings})
    with run_handler(handler) as url:
        settings.url = f"{url}/all.txt"
        yield settings


@contextmanager
def serve(content: bytes, *, has_ranges: bool) -> Iterator[str]:
    """Serve a file over HTTP while the block runs, and yield its URL."""
    with run_server(WebServer(content, has_ranges)) as server:
        yield server.url
