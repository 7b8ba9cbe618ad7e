"""The local server: a free port, a token in the address, and a same-origin check against other sites' pages."""

from __future__ import annotations

import secrets
import socket
import threading
import webbrowser
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ._program_view import Target

HOSTS = ("127.0.0.1", "localhost", "::1")  # this machine, also through a tunnel from another port
SHARED = b"access-control-"  # headers that would let pages of other sites read an answer

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]


def own_origin(app: App) -> App:
    """The ASGI application, for its own origin alone."""

    async def guarded(
        scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        if scope["type"] not in ("http", "websocket"):  # the server's start and end
            await app(scope, receive, send)
        elif _is_own(scope):
            await app(scope, receive, lambda message: send(_unshared(message)))
        elif scope["type"] == "websocket":
            await receive()  # the request to connect
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

    return guarded


def _is_own(scope: Message) -> bool:
    """Whether a request to an address of this machine comes from the page itself, or from no page at all."""
    headers: dict[bytes, list[bytes]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.lower(), []).append(value)
    hosts, origins = headers.get(b"host", []), headers.get(b"origin", [])
    if len(hosts) != 1 or len(origins) > 1:
        return False
    try:
        here = urlsplit(f"http://{hosts[0].decode('ascii')}")
        known = here.hostname in HOSTS and here.path == "" and here.username is None
        return known and (not origins or origins[0] == b"http://" + hosts[0])
    except ValueError:
        return False


def _unshared(message: Message) -> Message:
    if "headers" not in message:
        return message
    kept = [(name, value) for name, value in message["headers"] if not name.lower().startswith(SHARED)]
    return {**message, "headers": kept}


HOST = "127.0.0.1"
TARGET: Target | None = None  # the program that the page is about; one server in a process


def serve(
    target: Target | None = None, port: int = 0, browser: bool = True, say: Callable[[str], None] = print
) -> None:
    """Show the page until it is interrupted, on a free port unless one is given.

    `say` is called with the address once the page is served there.
    """
    import marimo
    import uvicorn

    global TARGET
    TARGET = target
    token = secrets.token_urlsafe(16)
    page = str(Path(__file__).with_name("_app.py"))
    app = marimo.create_asgi_app(quiet=True, token=token).with_app(path="", root=page).build()
    server = uvicorn.Server(uvicorn.Config(own_origin(app), log_level="error"))
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind((HOST, port))
        # in a thread of its own, so that an interrupt comes to the main thread as in all commands
        thread = threading.Thread(target=server.run, kwargs={"sockets": [door]}, daemon=True)
        thread.start()
        while thread.is_alive() and not server.started:
            thread.join(0.02)
        if not server.started:
            raise RuntimeError("the server of the page ended before it began")
        address = f"http://{HOST}:{door.getsockname()[1]}/?access_token={token}"
        say(address)
        if browser:
            webbrowser.open(address)
        while thread.is_alive():
            thread.join(0.2)
