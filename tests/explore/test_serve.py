"""The server of the page: who does not know its token is told nothing; answers come
line by line.
"""

import http.client
import json
import re
import subprocess
import sys
import threading
import time

import pytest

import netsor as ns
from tests.internals import _server


@pytest.fixture
def server():
    with _server.Server() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def asked(server, method, path, body=None, token=None, **headers):
    page = http.client.HTTPConnection("127.0.0.1", server.server_port)
    page.request(
        method,
        f"{path}?access_token={server.token if token is None else token}",
        body,
        headers,
    )
    answer = page.getresponse()
    return answer, answer.read()


def test_server_sends_page(server):
    """It loads nothing from elsewhere, and no page of another site may read it."""
    answer, content = asked(server, "GET", "/")
    assert answer.status == 200
    assert b"One layer" in content
    assert not re.findall(rb'(?:src|href)="(?!data:)', content)
    assert not any(
        name.lower().startswith("access-control") for name, _ in answer.getheaders()
    )


@pytest.mark.parametrize("token", ["", "wrong", "%C3%A9"])
def test_request_without_token_is_rejected(server, token, monkeypatch):
    monkeypatch.setattr(_server, "answer", lambda *_: pytest.fail("it is answered"))
    for method, path in (
        ("GET", "/"),
        ("GET", "/file/0/layer.csv"),
        ("POST", "/answer/layer"),
    ):
        answer, content = asked(
            server, method, path, "{}" if method == "POST" else None, token
        )
        assert answer.status == 403
        assert b"netsor" not in content


REQUESTS = [("GET", "/"), ("GET", "/file/0/layer.csv"), ("POST", "/answer/layer")]
FOREIGN = [
    {"Host": "attacker.example"},  # a name that resolves to 127.0.0.1
    {"Host": "attacker.example:8123"},
    {"Host": "127.0.0.1.attacker.example"},
    {"Host": "localhost:80@attacker.example"},
    {"Host": ""},
    {"Origin": "http://attacker.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost:1"},  # another server on this machine
    {"Host": "attacker.example", "Origin": "http://attacker.example"},
]


@pytest.mark.parametrize("headers", FOREIGN)
def test_request_with_other_host_or_origin_is_rejected(server, headers, monkeypatch):
    """Not even with the token."""
    monkeypatch.setattr(_server, "answer", lambda *_: pytest.fail("it is answered"))
    for method, path in REQUESTS:
        answer, content = asked(
            server, method, path, "{}" if method == "POST" else None, **headers
        )
        assert answer.status == 403
        assert b"netsor" not in content


def test_request_with_two_hosts_is_rejected(server):
    page = http.client.HTTPConnection("127.0.0.1", server.server_port)
    page.putrequest("GET", f"/?access_token={server.token}")  # with its own Host
    page.putheader("Host", "attacker.example")
    page.endheaders()
    assert page.getresponse().status == 403


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}", "localhost:9000"],
)
def test_request_from_own_page_is_answered(server, host):
    """Also through another port of this machine, as behind `ssh -L
    9000:127.0.0.1:PORT`.
    """
    name = host.format(port=server.server_port)
    given = json.dumps({"heads": 1, "width": 16, "draws": 500})
    for headers in ({"Host": name}, {"Host": name, "Origin": f"http://{name.lower()}"}):
        assert asked(server, "GET", "/", **headers)[0].status == 200
        answer, content = asked(server, "POST", "/answer/layer", given, **headers)
        assert answer.status == 200
        assert json.loads(content.splitlines()[-1])[0] == "html"


def policy_of(answer):
    parts = (
        part.split(maxsplit=1)
        for part in answer.getheader("content-security-policy").split(";")
    )
    return dict(parts)


@pytest.mark.parametrize(
    ("path", "token"), [("/", None), ("/nothing", None), ("/", "wrong")]
)
def test_every_response_has_security_headers(server, path, token):
    answer, _ = asked(server, "GET", path, token=token)
    policy = policy_of(answer)
    assert (
        policy["default-src"]
        == policy["base-uri"]
        == policy["form-action"]
        == policy["frame-ancestors"]
        == "'none'"
    )
    assert policy["connect-src"] == "'self'"
    assert answer.getheader("x-content-type-options") == "nosniff"
    assert answer.getheader("x-frame-options") == "DENY"
    assert answer.getheader("referrer-policy") == "no-referrer"


def test_only_scripts_with_nonce_run(server):
    """Each carries the nonce of its own answer, and no other page has the same."""
    nonces = set()
    for _ in range(2):
        answer, content = asked(server, "GET", "/")
        nonce = re.fullmatch(r"'nonce-([\w-]{22})'", policy_of(answer)["script-src"])[1]
        scripts = re.findall(r"<script[^>]*>", content.decode())
        assert scripts == [f'<script nonce="{nonce}">'] * 2
        assert not re.search(r"<[^>]+ on\w+=", content.decode())
        nonces.add(nonce)
    assert len(nonces) == 2


def test_post_answers_with_files(server):
    """Distances come after the picture; the files are those of the view."""
    given = json.dumps({"heads": 2, "width": 16, "draws": 200, "distances": True})
    _, content = asked(server, "POST", "/answer/layer", given)
    parts = [json.loads(line) for line in content.splitlines()]
    assert [what for what, _ in parts] == ["html", "html"]
    assert (
        f'data-value="{ns.paper.layer(heads=2).law(n=16, draws=200).var()!r}"'
        in parts[1][1]
    )
    files = re.findall(r'href="(file/\d+/layer\.(\w+))\?', parts[1][1])
    begins = {"png": b"\x89PNG", "pdf": b"%PDF", "csv": b"panel,curve,x,y"}
    assert [kind for _, kind in files] == list(begins)
    for path, kind in files:
        answer, content = asked(server, "GET", f"/{path}")
        assert answer.status == 200
        assert content.startswith(begins[kind])
    assert asked(server, "GET", "/file/99/layer.png")[0].status == 404
    assert asked(server, "GET", "/nothing")[0].status == 404


def test_server_drops_old_views(server):
    for k in range(_server.KEPT + 3):
        server.links(k, "layer")
    assert list(server.views) == [str(k) for k in range(3, _server.KEPT + 3)]


def test_work_ends_when_connection_closes(server, monkeypatch):
    """Of two audits one runs at a time, and one whose page has gone ends at its next
    message.
    """
    ended = threading.Event()

    def answer(kind, content, emit, target, links):
        try:
            for _ in range(30_000):  # five minutes: the page goes much sooner
                emit("progress", "0")
                time.sleep(0.01)
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


def test_served_address_is_of_the_page(monkeypatch):
    said = []
    monkeypatch.setattr(
        _server.Server, "serve_forever", lambda server: said.append(server.address)
    )
    monkeypatch.setattr(_server.webbrowser, "open", said.append)
    _server.serve(None, 0, True, said.append)
    assert len(set(said)) == 1
    assert len(said) == 3
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?access_token=\S{22}", said[0])


@pytest.mark.slow
def test_server_in_subprocess(tmp_path):
    command = [sys.executable, "-m", "netsor", "explore", "--no-browser"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as running:
        try:
            port, token = re.search(
                r":(\d+)/\?access_token=(\S+)", running.stdout.readline()
            ).groups()
            page = http.client.HTTPConnection("127.0.0.1", int(port))
            page.request("GET", f"/?access_token={token}")
            assert page.getresponse().status == 200
        finally:
            running.kill()
