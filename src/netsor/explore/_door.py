"""Who may talk to the server: the page that it serves, and no page of another site.

A browser sends the page's cookie with every request to this machine, also with requests that pages of other sites make.
But it always states the origin of the page that makes a request, and that is checked here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

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
    found: dict[bytes, list[bytes]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.lower(), []).append(value)
    hosts, origins = found.get(b"host", []), found.get(b"origin", [])
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
