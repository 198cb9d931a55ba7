from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping

import pytest

from albert_cli.errors import AlbertError, InputError, NetworkError
from albert_cli.text import remote_files
from albert_cli.text.corpus import read_documents
from albert_cli.text.remote_files import (
    list_files,
    open_remote,
    read_remote_file,
    request_missing_versions,
    supports_ranges,
    translate_remote_errors,
)
from tests.helpers.web_server import WebServer, run_server

aiohttp = pytest.importorskip("aiohttp", reason="aiohttp is not installed")
TEXT = b"One sentence. Another one.\n\nA second document.\n" * 50


@pytest.fixture(autouse=True)
def new_sessions() -> Iterator[None]:
    """Close the sessions of earlier tests, whose timeouts may be others."""
    from fsspec.implementations.http import HTTPFileSystem

    HTTPFileSystem.clear_instance_cache()
    yield
    HTTPFileSystem.clear_instance_cache()


def read_all(url: str) -> bytes:
    with open_remote(url) as stream:
        return stream.read()


@pytest.mark.parametrize("has_ranges", [True, False])
def test_open_remote_long_answer_has_no_total_timeout(has_ranges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiohttp.client, "DEFAULT_TIMEOUT", aiohttp.ClientTimeout(total=1))
    with run_server(WebServer(TEXT, has_ranges, fault="slow")) as server:
        assert read_all(server.url) == TEXT


@pytest.mark.parametrize("has_ranges", [True, False])
def test_open_remote_silent_server_is_a_network_error(has_ranges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_files, "_SECONDS_BETWEEN_BYTES", 1)
    with (
        run_server(WebServer(TEXT, has_ranges, fault="stall")) as server,
        pytest.raises(NetworkError, match="did not answer in time"),
    ):
        read_all(server.url)


@pytest.mark.parametrize(
    "server",
    [
        WebServer(TEXT, has_ranges=True, fault="cut"),
        WebServer(TEXT, has_ranges=False, fault="cut"),
        WebServer(TEXT, range_status=503),
        WebServer(TEXT, range_status=429),
    ],
    ids=["cut", "cut without ranges", "503", "429"],
)
def test_read_documents_lost_connection_is_a_network_error(server: WebServer) -> None:
    with run_server(server), pytest.raises(NetworkError, match="cannot be read now") as raised:
        list(read_documents([server.url]))
    assert raised.value.exit_code == 1
    assert "same command" in str(raised.value.hint)


def test_read_documents_refused_range_is_an_input_error() -> None:
    with run_server(WebServer(TEXT, range_status=403)) as server, pytest.raises(InputError, match="cannot be read"):
        list(read_documents([server.url]))


def test_list_files_busy_server_is_a_network_error() -> None:
    with run_server(WebServer()) as server, pytest.raises(NetworkError, match=r"cannot be read now .*503"):
        list_files(server.url.replace("all", "503"))


def test_translate_remote_errors_keeps_errors_of_albert() -> None:
    with pytest.raises(AlbertError, match=r"^as raised$"), translate_remote_errors("https://host/a.txt"):
        raise AlbertError("as raised")


@pytest.mark.parametrize("name", ["ETag", "Last-Modified", "Content-MD5", "Digest"])
def test_read_remote_file_version_follows_every_header(name: str) -> None:
    def read_version(versions: Mapping[str, str]) -> int:
        with run_server(WebServer(TEXT, versions=versions)) as server:
            return read_remote_file(server.url).version

    first, second = read_version({name: "one"}), read_version({name: "two"})
    assert len({first, second, 0}) == 3
    assert read_version({}) == 0


def test_read_remote_file_quotes_are_no_part_of_an_etag() -> None:
    quoted, plain = (
        remote_files.RemoteFile.from_info("az://a/b.txt", {"size": 1, "etag": etag}) for etag in ('"0x1"', "0x1")
    )
    assert quoted == plain


def test_request_missing_requests_only_unlisted_files() -> None:
    listed = remote_files.RemoteFile("https://nowhere.invalid/a.txt", 1, 2)
    with run_server(WebServer(TEXT)) as server:
        files = request_missing_versions({listed.url: listed, server.url: None})
        assert server.requests == ["HEAD /all.txt"]
    assert files[listed.url] is listed
    assert files[server.url].size == len(TEXT)


# ---------------------------------------------------------------- secrets


def with_password(url: str, password: str) -> str:
    return url.replace("://", f"://reader:{password}@")


def test_open_remote_sends_the_password_of_a_url() -> None:
    authorization = "Basic " + base64.b64encode(b"reader:pass word").decode()
    with run_server(WebServer(TEXT, authorization=authorization)) as server:
        url = with_password(server.url, "pass%20word")
        assert supports_ranges(url)
        assert read_all(url) == TEXT


@pytest.mark.parametrize("call", [list_files, supports_ranges, read_all, read_remote_file])
def test_errors_of_remote_files_show_no_secrets(call: object) -> None:
    assert callable(call)
    with run_server(WebServer(TEXT, authorization="Basic other")) as server:
        url = with_password(server.url, "SECRET") + "?token=SECRET"
        with pytest.raises(InputError, match=re.escape(f"{server.url}?token=…: cannot be read")) as raised:
            call(url)
    assert "SECRET" not in raised.value.message
