"""The server of the page: its address is printed once it can be reached, and no page of another site may talk to it."""

import ast
import asyncio
import contextlib
import http.client
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from netsor.explore import _server
from netsor.explore._server import own_origin

OWN = "http://127.0.0.1:8123"
OTHERS = ["http://evil.example", "http://127.0.0.1:8124", "https://127.0.0.1:8123", "http://localhost:8123", "null", ""]


def asked(kind, *headers):
    """What an application behind the door answers, and whether it was asked at all."""
    sent, reached = [], []

    async def app(scope, receive, send):
        reached.append(scope)
        shared = [(b"Access-Control-Allow-Origin", b"*"), (b"access-control-expose-headers", b"x"), (b"age", b"1")]
        await send({"type": f"{kind}.answer", "headers": shared})

    async def receive():
        return {"type": f"{kind}.connect"}

    async def send(message):
        sent.append(message)

    named = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    asyncio.run(own_origin(app)({"type": kind, "headers": named}, receive, send))
    return sent, bool(reached)


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_the_page_itself_is_answered_and_shared_with_nobody(kind):
    host = ("host", "127.0.0.1:8123")
    for headers in ([host], [host, ("origin", OWN)], [("Host", "localhost:9"), ("Origin", "http://localhost:9")]):
        sent, reached = asked(kind, *headers)
        assert reached
        assert sent == [{"type": f"{kind}.answer", "headers": [(b"age", b"1")]}]


@pytest.mark.parametrize("origin", OTHERS)
def test_other_origins_are_turned_away(origin):
    headers = ("host", "127.0.0.1:8123"), ("origin", origin)
    sent, reached = asked("websocket", *headers)
    assert (reached, sent) == (False, [{"type": "websocket.close", "code": 1008}])
    sent, reached = asked("http", *headers)
    assert (reached, sent[0]["status"]) == (False, 403)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8123", "", "127.0.0.1:8123/x", "a@127.0.0.1", "[", "é"])
def test_other_hosts_are_turned_away(host):
    """A name that its owner makes point to this machine."""
    assert not asked("http", ("host", host), ("origin", f"http://{host}"))[1]
    assert not asked("http", ("host", "127.0.0.1"), ("host", host))[1]
    assert not asked("http")[1]


def test_the_address_is_told_when_it_can_be_had(monkeypatch):
    printed = threading.Event()

    class Server:
        started = False

        def __init__(self, config):
            pass

        def run(self, sockets):
            printed.wait(0.2)  # printing the address too early shows here
            self.started = True

    server = []
    monkeypatch.setitem(
        sys.modules,
        "uvicorn",
        SimpleNamespace(Config=lambda *_, **__: None, Server=lambda c: server.append(Server(c)) or server[0]),
    )
    made = SimpleNamespace(with_app=lambda **_: SimpleNamespace(build=lambda: None))
    monkeypatch.setitem(sys.modules, "marimo", SimpleNamespace(create_asgi_app=lambda **_: made))
    found = []

    def say(address):
        printed.set()
        found.append((server[0].started, re.fullmatch(r"http://127\.0\.0\.1:\d+/\?access_token=\S+", address)))

    _server.serve(None, 0, False, say)
    assert found[0][0]
    assert found[0][1]


def test_a_server_that_does_not_begin_is_an_error(monkeypatch):
    ended = SimpleNamespace(started=False, run=lambda sockets: None)
    monkeypatch.setitem(sys.modules, "uvicorn", SimpleNamespace(Config=lambda *_, **__: None, Server=lambda _: ended))
    made = SimpleNamespace(with_app=lambda **_: SimpleNamespace(build=lambda: None))
    monkeypatch.setitem(sys.modules, "marimo", SimpleNamespace(create_asgi_app=lambda **_: made))
    with pytest.raises(RuntimeError, match="before it began"):
        _server.serve(None, 0, False, lambda address: pytest.fail("nothing is there"))


@pytest.mark.slow
def test_the_real_server(tmp_path):
    """A connection at once; the websocket for its own origin, with the cookie, and for no other."""
    pytest.importorskip("marimo")
    command = [sys.executable, "-m", "netsor", "explore", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as running:
        try:
            line = running.stdout.readline()
            port, token = re.search(r":(\d+)/\?access_token=(\S+)", line).groups()
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", int(port))) as page:
                page.request("GET", f"/?access_token={token}", headers={"Origin": f"http://127.0.0.1:{port}"})
                answer = page.getresponse()
                answer.read()
            names = {name.lower() for name, _ in answer.getheaders()}
            assert not any(name.startswith("access-control") for name in names)
            cookie = answer.getheader("set-cookie").partition(";")[0]
            assert "101" in socket_status(port, cookie, f"http://127.0.0.1:{port}")
            assert "403" in socket_status(port, cookie, "http://evil.example")
        finally:
            running.kill()


def socket_status(port, cookie, origin):
    with contextlib.closing(socket.create_connection(("127.0.0.1", int(port)))) as door:
        lines = ["GET /ws?session_id=s_abcdef&file= HTTP/1.1", f"Host: 127.0.0.1:{port}", "Upgrade: websocket"]
        lines += ["Connection: Upgrade", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13"]
        door.sendall("\r\n".join([*lines, f"Cookie: {cookie}", f"Origin: {origin}", "", ""]).encode())
        return door.recv(64).partition(b"\r\n")[0].decode()


def test_the_page_finds_its_modules():
    """marimo runs the page as a script, which has no package: a relative import ends it."""
    path = Path(_server.__file__).with_name("_app.py")
    imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    assert imports
    for node in imports:
        assert (node.level, node.module) == (0, "netsor.explore")
        assert all(path.with_name(f"{alias.name}.py").is_file() for alias in node.names)
