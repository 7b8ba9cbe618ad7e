"""The local server of the page.

Requests need the token of its address, which no page of another site knows. In case one
learns it, they must also name this machine as their host, which a foreign name that
resolves to 127.0.0.1 (DNS rebinding) does not, and come from no other site.
"""

from __future__ import annotations

import itertools
import json
import secrets
import threading
import webbrowser
from collections.abc import Callable
from contextlib import nullcontext, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from ..programs._named_program import NamedProgram
from ._forms import AUDITS, answer, local_page
from ._view import View, as_csv, as_file

HOST = "127.0.0.1"
# names of this machine; the port may differ, as behind `ssh -L`
LOOPBACK = (HOST, "localhost")
# Nothing but what this server sends, and only scripts that carry the nonce of the page.
# Reports have style attributes.
POLICY = {
    "default-src": "'none'",
    "style-src": "'unsafe-inline'",
    "img-src": "'self' data:",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
HEADERS = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
KEPT = 32  # newest views, whose files can be downloaded
TYPES = {"png": "image/png", "pdf": "application/pdf", "csv": "text/csv"}


class Server(ThreadingHTTPServer):
    """The page, about a program if there is one."""

    def __init__(self, target: NamedProgram | None = None, port: int = 0) -> None:
        """Listen on this port, or on a free one for 0."""
        super().__init__((HOST, port), Handler)
        self.target = target
        self.token = secrets.token_urlsafe(16)
        self.audit = threading.Lock()  # held by the one audit that runs
        self.views: dict[str, View] = {}
        self._count = itertools.count()

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://{HOST}:{self.server_port}/?access_token={self.token}"

    def links(self, view: View, name: str) -> str:
        """Links to the files of a view, which are made when you open them."""
        number = next(self._count)
        self.views[str(number)] = view
        self.views.pop(str(number - KEPT), None)
        links = []
        for kind in TYPES:
            file = f"file/{number}/{name}.{kind}?access_token={self.token}"
            links.append(f'<a href="{file}" download>{kind.upper()}</a>')
        return f'<p class="netsor-files">{" ".join(links)}</p>'


class Handler(BaseHTTPRequestHandler):
    """The answer to one request."""

    server: Server
    nonce = ""  # of the scripts of the page, new for every request

    def parse_request(self) -> bool:
        """Reject a request without the token, for another host, or from another
        site.
        """
        self.nonce = secrets.token_urlsafe(16)
        if not super().parse_request():
            return False
        allowed = self._has_token() and self._is_local()
        if not allowed:
            self.send_error(403)
        return allowed

    def _has_token(self) -> bool:
        """Whether the address has the token; compared in constant time."""
        tokens = parse_qs(urlsplit(self.path).query).get("access_token", [""])
        return secrets.compare_digest(tokens[0].encode(), self.server.token.encode())

    def _is_local(self) -> bool:
        """Whether it names this machine, and comes from its page or, as an address that
        is typed in, from nowhere.
        """
        hosts = self.headers.get_all("host", [])
        origins = self.headers.get_all("origin", [])
        if len(hosts) != 1 or not is_loopback(hosts[0]):
            return False
        own_origin = f"http://{hosts[0].lower()}"
        return all(origin.lower() == own_origin for origin in origins)

    def do_GET(self) -> None:
        """The page, or a file of a view."""
        match urlsplit(self.path).path.split("/"):
            case ["", ""]:
                self._begin("text/html; charset=utf-8")
                self.wfile.write(local_page(self.server.target, self.nonce).encode())
            case ["", "file", number, name] if (
                number in self.server.views and name.rpartition(".")[2] in TYPES
            ):
                panels = self.server.views[number].panels
                kind = name.rpartition(".")[2]
                self._begin(TYPES[kind])
                if kind == "csv":
                    self.wfile.write(as_csv(panels))
                else:
                    self.wfile.write(as_file(panels, kind))
            case _:
                self.send_error(404)

    def do_POST(self) -> None:
        """Answer a form line by line; the work ends when the page no longer listens."""
        kind = urlsplit(self.path).path.rpartition("/")[2]
        content = self.rfile.read(int(self.headers["content-length"])).decode()
        self._begin("application/jsonl")

        def emit(message: str, text: str) -> None:
            """Send a message to the page, as a line of JSON."""
            self.wfile.write(json.dumps([message, text]).encode() + b"\n")

        one_at_a_time = self.server.audit if kind in AUDITS else nullcontext()
        with suppress(ConnectionError), one_at_a_time:
            answer(kind, content, emit, self.server.target, self.server.links)

    def _begin(self, kind: str) -> None:
        """Send the head of an answer whose content has this type."""
        self.send_response(200)
        self.send_header("content-type", kind)
        self.end_headers()

    def end_headers(self) -> None:
        """Add the headers that every answer has, also an error."""
        policy = {**POLICY, "script-src": f"'nonce-{self.nonce}'"}
        self.send_header(
            "content-security-policy",
            "; ".join(f"{name} {value}" for name, value in policy.items()),
        )
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def is_loopback(host: str) -> bool:
    """Whether a Host header names this machine: one of its names, with a port or
    without.
    """
    name, colon, port = host.lower().partition(":")
    return name in LOOPBACK and (not colon or port.isdecimal())


def serve(
    target: NamedProgram | None = None,
    port: int = 0,
    browser: bool = True,
    say: Callable[[str], None] = print,
) -> None:
    """Show the page until an interrupt, on a free port unless you give one; `say` is
    called with its address.
    """
    with Server(target, port) as server:
        say(server.address)
        if browser:
            webbrowser.open(server.address)
        server.serve_forever()
