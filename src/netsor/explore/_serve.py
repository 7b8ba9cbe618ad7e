"""The server: this machine alone, a free port, a token in the address."""

from __future__ import annotations

import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path

from ._door import own_origin
from ._program import Target

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
