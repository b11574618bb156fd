"""The Hugging Face client against a local hub that speaks its API; runs where huggingface_hub is installed."""

import base64
import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from slotpack.__main__ import main
from slotpack.errors import ConflictingObject, PublishError
from slotpack.publishing import HuggingFaceRepository, publish_package
from tests.slotpack.models import Packaged

pytest.importorskip("huggingface_hub")


class Hub:
    """A hub with one repository in memory; `refusals` answers that many commits with 503."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.commits = 0
        self.refusals = 0
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.hub = self  # type: ignore[attr-defined]
        self.base = f"http://127.0.0.1:{self.server.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, status: int, document: Any, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        found = re.match(r"/api/models/owner/name/tree/main/([^?]*)", self.path)
        prefix = found[1].replace("%2F", "/") if found else "?"
        entries = [
            {"type": "file", "path": p, "size": len(d), "oid": hashlib.sha1(b"blob %d\0" % len(d) + d).hexdigest()}
            for p, d in hub.files.items()
            if p.startswith(prefix + "/")
        ]
        if entries:
            self.answer(200, entries)
        else:
            self.answer(404, {"error": "not found"}, {"X-Error-Code": "EntryNotFound"})

    def do_POST(self) -> None:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "/preupload/" in self.path:
            wanted = json.loads(body)["files"]
            modes = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in wanted]
            self.answer(200, {"files": modes})
            return
        if hub.refusals:
            hub.refusals -= 1
            self.answer(400, {"error": "not now"})
            return
        for line in body.splitlines():
            record = json.loads(line)
            if record["key"] == "file":
                hub.files[record["value"]["path"]] = base64.b64decode(record["value"]["content"])
        hub.commits += 1
        self.answer(200, {"success": True, "commitOid": f"{hub.commits:040x}", "commitUrl": f"{hub.base}/owner/name"})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    made = Hub()
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def test_a_package_is_uploaded_resumed_and_never_overwritten(packaged: Packaged, hub: Hub) -> None:
    repository = HuggingFaceRepository("owner/name", endpoint=hub.base)
    first = publish_package(packaged.package, repository, batch_files=5)
    assert first.revision == f"{hub.commits:040x}"
    assert len(hub.files) == first.uploaded_files
    for path, data in hub.files.items():
        assert (packaged.package / path.removeprefix(first.prefix + "/")).read_bytes() == data
    lost = sorted(hub.files)[0]
    del hub.files[lost]
    assert publish_package(packaged.package, repository).uploaded_files == 1
    hub.files[lost] = b"?" * len(hub.files[lost])
    with pytest.raises(ConflictingObject):
        publish_package(packaged.package, repository)


def test_a_refusal_is_reported(packaged: Packaged, hub: Hub) -> None:
    hub.refusals = 1
    with pytest.raises(PublishError, match="run it again to resume"):
        publish_package(packaged.package, HuggingFaceRepository("owner/name", endpoint=hub.base))


def test_bad_names_and_dead_hosts_are_reported(packaged: Packaged) -> None:
    with pytest.raises(PublishError):
        publish_package(packaged.package, HuggingFaceRepository("no/such/name"))
    with pytest.raises(PublishError):
        publish_package(packaged.package, HuggingFaceRepository("owner/name", endpoint="http://127.0.0.1:9"))


def test_the_command_reports_a_bad_repository(packaged: Packaged, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["publish", "--package", str(packaged.package), "--repo", "a/b/c"]) == 1
    assert capsys.readouterr().err.startswith("error: ")
