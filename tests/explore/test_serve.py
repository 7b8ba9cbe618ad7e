"""The server of the page: who does not know its token is told nothing; answers come line by line."""

import http.client
import json
import re
import subprocess
import sys
import threading
import time

import pytest

import netsor as ns
from netsor.explore import _server


@pytest.fixture
def server():
    with _server.Server() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def asked(server, method, path, body=None, token=None):
    page = http.client.HTTPConnection("127.0.0.1", server.server_port)
    page.request(method, f"{path}?access_token={server.token if token is None else token}", body)
    answer = page.getresponse()
    return answer, answer.read()


def test_the_page(server):
    """It loads nothing from elsewhere, and no page of another site may read it."""
    answer, content = asked(server, "GET", "/")
    assert answer.status == 200
    assert b"One layer" in content
    assert not re.findall(rb'(?:src|href)="(?!data:)', content)
    assert not any(name.lower().startswith("access-control") for name, _ in answer.getheaders())


@pytest.mark.parametrize("token", ["", "wrong", "%C3%A9"])
def test_without_the_token_nothing_is_told(server, token, monkeypatch):
    monkeypatch.setattr(_server, "answer", lambda *_: pytest.fail("it is answered"))
    for method, path in (("GET", "/"), ("GET", "/file/0/layer.csv"), ("POST", "/answer/layer")):
        answer, content = asked(server, method, path, "{}" if method == "POST" else None, token)
        assert answer.status == 403
        assert b"netsor" not in content


def test_an_answer_and_its_files(server):
    """Distances come after the picture; the files are those of the view."""
    given = json.dumps({"heads": 3, "width": 16, "draws": 500, "distances": True})
    _, content = asked(server, "POST", "/answer/layer", given)
    parts = [json.loads(line) for line in content.splitlines()]
    assert [what for what, _ in parts] == ["html", "html"]
    assert f'data-value="{ns.paper.layer(heads=3).law(n=16, draws=500).var()!r}"' in parts[1][1]
    files = re.findall(r'href="(file/\d+/layer\.(\w+))\?', parts[1][1])
    begins = {"png": b"\x89PNG", "pdf": b"%PDF", "csv": b"panel,curve,x,y"}
    assert [kind for _, kind in files] == list(begins)
    for path, kind in files:
        answer, content = asked(server, "GET", f"/{path}")
        assert answer.status == 200
        assert content.startswith(begins[kind])
    assert asked(server, "GET", "/file/99/layer.png")[0].status == 404
    assert asked(server, "GET", "/nothing")[0].status == 404


def test_old_views_are_dropped(server):
    for k in range(_server.KEPT + 3):
        server.links(k, "layer")
    assert list(server.views) == [str(k) for k in range(3, _server.KEPT + 3)]


def test_work_ends_when_nobody_listens(server, monkeypatch):
    """Of two audits one runs at a time, and one whose page has gone ends at its next message."""
    ended = threading.Event()

    def answer(kind, content, emit, target, links):
        try:
            for _ in range(10_000):
                emit("progress", "0")
                time.sleep(0.001)
        except ConnectionError:
            ended.set()
            raise

    monkeypatch.setattr(_server, "answer", answer)
    page = http.client.HTTPConnection("127.0.0.1", server.server_port)
    page.request("POST", f"/answer/model?access_token={server.token}", "{}")
    page.getresponse().read(20)
    assert server.audit.locked()
    page.close()
    assert ended.wait(300)  # seconds: a deadline that only a hang reaches
    with server.audit:
        pass


def test_the_address_is_that_of_the_page(monkeypatch):
    said = []
    monkeypatch.setattr(_server.Server, "serve_forever", lambda server: said.append(server.address))
    monkeypatch.setattr(_server.webbrowser, "open", said.append)
    _server.serve(None, 0, True, said.append)
    assert len(set(said)) == 1
    assert len(said) == 3
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?access_token=\S{22}", said[0])


@pytest.mark.slow
def test_the_real_server(tmp_path):
    command = [sys.executable, "-m", "netsor", "explore", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as running:
        try:
            port, token = re.search(r":(\d+)/\?access_token=(\S+)", running.stdout.readline()).groups()
            page = http.client.HTTPConnection("127.0.0.1", int(port))
            page.request("GET", f"/?access_token={token}")
            assert page.getresponse().status == 200
        finally:
            running.kill()
