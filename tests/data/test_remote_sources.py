"""Sources behind URLs: a real S3 server on the loopback (`moto`), and web servers with and without ranges."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from albert_cli.data.build import plan_units
from albert_cli.data.records import SPLITS
from albert_cli.errors import BusyError, InputError, NetworkError
from albert_cli.text.corpus import read_documents
from albert_cli.text.remote_files import is_url, list_files, supports_ranges
from albert_cli.text.sources import resolve_sources
from tests.helpers.data_directories import TENTH_HELD_OUT, build, document_set, unfinish
from tests.helpers.web_server import WebServer, run_server, serve

# The tests import s3fs and moto, because every process of pytest-xdist imports this module.
pytestmark = pytest.mark.skipif(not (find_spec("s3fs") and find_spec("moto")), reason="s3fs or moto is not installed")


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, documents_file: Path) -> str:
    """Return the URL of a bucket with the same documents as text, JSON lines in two files, gzip and Parquet."""
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    system = s3fs.S3FileSystem()
    if not system.exists("corpus"):
        system.mkdir("corpus")
        text = documents_file.read_bytes()
        system.pipe_file("corpus/plain/all.txt", text)
        system.pipe_file("corpus/zipped/all.txt.gz", gzip.compress(text))
        table = pa.table({"text": text.decode().split("\n\n")})
        with system.open("corpus/columns/all.parquet", "wb") as stream:
            pq.write_table(table, stream)
    return "s3://corpus"


@pytest.mark.parametrize("path", ["plain/all.txt", "zipped/*.gz", "columns/"])
def test_build_from_s3_equals_local_build(
    path: str, bucket: str, small_vocabulary: Path, tiny_data: Path, tmp_path: Path
) -> None:
    sources = [f"{bucket}/{path}"]
    workers = 2 if path == "plain/all.txt" else 1  # only a plain file is split, so that two processes read it
    report = build(sources, small_vocabulary, tmp_path / "remote", TENTH_HELD_OUT, workers)
    for split in SPLITS:
        assert document_set(tmp_path / "remote", split) == document_set(tiny_data, split)
    if workers == 2:
        assert len(plan_units(sources, small_vocabulary, tmp_path / "remote", TENTH_HELD_OUT)) > 3
        assert len(report.facts.sources) > 3  # one entry for each work unit
    assert build(sources, small_vocabulary, tmp_path / "remote", TENTH_HELD_OUT, workers=1).up_to_date


def test_file_on_s3_that_is_missing_is_rejected(bucket: str) -> None:
    with pytest.raises(InputError, match=re.escape("s3://corpus/absent.txt: no such file")):
        list(read_documents([f"{bucket}/absent.txt"]))


@pytest.fixture(params=[True, False], ids=["ranges", "no ranges"])
def web_url(request: pytest.FixtureRequest, documents_file: Path) -> Iterator[str]:
    with serve(documents_file.read_bytes(), has_ranges=request.param) as url:
        yield url


def test_build_from_web_server_equals_local_build(
    web_url: str, small_vocabulary: Path, tiny_data: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    assert supports_ranges(web_url) == ("no ranges" not in request.node.callspec.id)  # the parameter of `web_url`
    build([web_url], small_vocabulary, tmp_path / "remote", TENTH_HELD_OUT, workers=1)
    assert document_set(tmp_path / "remote", "train") == document_set(tiny_data, "train")


def test_file_missing_on_web_server_is_a_one_line_error(web_url: str) -> None:
    with pytest.raises(InputError, match="no such file") as raised:
        list_files(web_url.replace("all", "none"))
    assert "\n" not in raised.value.message


@pytest.mark.parametrize("status", [401, 403])
def test_refusal_of_a_web_server_is_no_missing_file(status: int) -> None:
    with serve(b"", has_ranges=True) as url:
        with pytest.raises(InputError, match=rf"cannot be read \(.*{status}") as raised:
            list_files(url.replace("all", str(status)))
        assert "credentials" in str(raised.value.hint)


def test_web_server_that_does_not_answer_is_reported() -> None:
    with pytest.raises(NetworkError, match=r"cannot be read now \(.*[Cc]onnect"):
        list_files("http://127.0.0.1:9/all.txt")


def test_file_gone_from_a_web_server_is_missing() -> None:
    with serve(b"", has_ranges=True) as url, pytest.raises(InputError, match="no such file"):
        list_files(url.replace("all", "410"))


def test_folder_of_a_web_server_hints_a_glob() -> None:
    with serve(b"", has_ranges=True) as url, pytest.raises(InputError, match="unknown kind") as raised:
        resolve_sources([url.replace("all.txt", "folder/")])
    assert "/folder/*.txt'" in str(raised.value.hint)


def test_list_files_web_page_with_a_query_is_listed() -> None:
    with serve(b'<a href="page-2">next</a>', has_ranges=False) as url:
        assert list(list_files(f"{url}?page=1")) == [f"{url}?page=1"]


@pytest.mark.parametrize(
    ("name", "expected"), [("s3://a/b", True), ("hf://datasets/x", True), ("hf:x", False), ("a/b.txt", False)]
)
def test_is_url_needs_a_scheme(name: str, expected: bool) -> None:
    assert is_url(name) == expected


@pytest.mark.parametrize(("before", "after"), [({}, {}), ({"Last-Modified": "one"}, {"Last-Modified": "two"})])
def test_build_notices_changed_web_file_of_equal_size(
    before: dict[str, str], after: dict[str, str], documents_file: Path, small_vocabulary: Path, tmp_path: Path
) -> None:
    with run_server(WebServer(documents_file.read_bytes(), versions=before)) as server:
        build([server.url], small_vocabulary, tmp_path / "data", TENTH_HELD_OUT, workers=1)
        server.content = server.content.replace(b"e", b"a")
        server.versions = after
        with pytest.raises(BusyError, match="other text"):
            build([server.url], small_vocabulary, tmp_path / "data", TENTH_HELD_OUT, workers=1)


@pytest.mark.parametrize("has_ranges", [True, False])
def test_build_records_no_secrets_and_takes_renewed_ones(
    has_ranges: bool, documents_file: Path, small_vocabulary: Path, tmp_path: Path
) -> None:
    out = tmp_path / "data"
    with run_server(WebServer(documents_file.read_bytes(), has_ranges)) as server:
        build([f"{server.url}?token=SECRET"], small_vocabulary, out, TENTH_HELD_OUT, workers=1)
        assert not [path for path in out.rglob("*") if path.is_file() and b"SECRET" in path.read_bytes()]
        assert all("token" not in path.name for path in (out / "shards").iterdir())
        unfinish(out)
        renewed = build([f"{server.url}?token=RENEWED"], small_vocabulary, out, TENTH_HELD_OUT, workers=1)
        assert build([f"{server.url}?token=THIRD"], small_vocabulary, out, TENTH_HELD_OUT, workers=1).up_to_date
    assert renewed.facts.sources[0]["parts"][0]["source"] == f"{server.url}?token=…"


def test_worker_passes_on_a_lost_connection(documents_file: Path, small_vocabulary: Path, tmp_path: Path) -> None:
    with (
        run_server(WebServer(documents_file.read_bytes(), range_status=503)) as server,
        pytest.raises(NetworkError, match="cannot be read now"),
    ):
        build([server.url], small_vocabulary, tmp_path / "data", TENTH_HELD_OUT, workers=2)


def test_parquet_on_a_failing_server_is_a_network_error(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> bytes:
        raise ConnectionResetError("reset by peer")

    monkeypatch.setattr("s3fs.core.S3File._fetch_range", fail)
    for path in ("columns/all.parquet", "zipped/all.txt.gz"):
        with pytest.raises(NetworkError, match="reset by peer"):
            list(read_documents([f"{bucket}/{path}"]))


@pytest.mark.parametrize("path", ["plain/*.txt", "plain/"])
def test_plan_takes_sizes_from_the_listing(
    path: str, bucket: str, small_vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    requested: list[str] = []
    call = s3fs.S3FileSystem._call_s3

    async def record(self: object, method: str, *arguments: object, **options: object) -> object:
        requested.append(method)
        return await call(self, method, *arguments, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", record)
    units = plan_units([f"{bucket}/{path}"], small_vocabulary, tmp_path / "data", TENTH_HELD_OUT)
    assert "head_object" not in requested
    (single,) = {unit.parts[0].signature for unit in units}
    (direct,) = {
        unit.parts[0].signature
        for unit in plan_units([f"{bucket}/plain/all.txt"], small_vocabulary, tmp_path / "data", TENTH_HELD_OUT)
    }
    assert single == direct
