"""The server of a page: files, and one socket, for this machine's user only.

Starlette and uvicorn do the work. They are small, well maintained and pure Python, so they install everywhere.

These rules keep others out:

- It listens on 127.0.0.1 only, and answers only to the host names 127.0.0.1 and localhost. So a page from another site
  cannot reach it under that site's name (DNS rebinding).
- The page and the socket need the token in the address. The server draws it, and compares it in constant time.
- The socket needs an Origin that is the server's own. Browsers always send the true one.
- The page may load scripts and styles from this server only, and none are inline.

The length of a message, the number of pages, the messages that wait to be sent, and other connections have limits. If a
page reads slowly, it misses messages: a newer message replaces an older one of its kind.
"""

from __future__ import annotations

import asyncio
import atexit
import getpass
import json
import os
import secrets
import socket
import threading
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from typing import Any, Protocol
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from caffelite.web.connection import BATCH, Connection, QuietServer
from caffelite.web.messages import encode
from caffelite.web.page_file import STATIC, make_page_file

MEDIA_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
MAX_MESSAGE = 2**20  # bytes of a message from a page
MAX_PAGES = 16
SEND_TIMEOUT = 20.0  # seconds that a page may take to read a message

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Connection": "close",  # or it would stay for the next request
}
CLOSE_FULL, CLOSE_FORBIDDEN = 4001, 4003  # codes with which a socket is closed


class Page(Protocol):
    """The content of the pages of a server. The server's thread calls the methods, and they must be quick."""

    html: str  # the file of the page

    def on_connect(self, channel: Channel) -> None:
        """Act when a page has connected."""

    def on_receive(self, channel: Channel, message: dict[str, Any]) -> None:
        """Act when a page has sent a message. Raise ValueError for an unexpected message; then the page gets the
        reason.
        """

    def on_disconnect(self, channel: Channel) -> None:
        """Act when a page has gone."""


class Channel(Protocol):
    """The way to one page."""

    def send(self, kind: str, message: dict[str, Any] | bytes) -> None:
        """Send a message, from any thread. It replaces a message of its kind that is still waiting.

        For several pages, encode it once with `encode_message`.
        """

    def wait_until_sent(self, seconds: float) -> None:
        """Wait, on a thread other than the page's, until the page has everything, or for this many seconds."""


class SocketChannel(Channel):
    """The way to a page of the server: its socket."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._waiting, self._lock = loop, dict[str, bytes](), threading.Lock()
        self._wakes = asyncio.Event()
        self._sent = threading.Event()  # nothing waits, and nothing is on its way

    def send(self, kind: str, message: dict[str, Any] | bytes) -> None:
        content = message if isinstance(message, bytes) else encode_message(kind, message)
        with self._lock:
            self._waiting[kind] = content
            self._sent.clear()
        with suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(self._wakes.set)

    def wait_until_sent(self, seconds: float) -> None:
        self._sent.wait(seconds)

    async def _take_waiting(self) -> list[bytes]:
        await self._wakes.wait()
        self._wakes.clear()
        with self._lock:
            messages, self._waiting = list(self._waiting.values()), {}
        return messages

    def _mark_sent(self) -> None:
        with self._lock:
            if not self._waiting:
                self._sent.set()


def encode_message(kind: str, message: dict[str, Any]) -> bytes:
    """Return a message of this kind as `Channel.send` sends it."""
    return encode({"kind": kind, **message})


def receive(page: Page, channel: Channel, text: str) -> None:
    """Give a page the message of a channel. If that is impossible, the channel gets the reason."""
    try:
        message = json.loads(text)
        if not isinstance(message, dict):
            raise ValueError("expected an object")
        page.on_receive(channel, message)
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
        channel.send("refused", {"why": str(error) or type(error).__name__})


class Server:
    """Serves a page at `address`, on a thread of its own, until `stop` or the end of the program.

    `port` is 0 for any free port. `max_message` is a limit in bytes. If a server replaces an earlier
    one, give it the `token` of the earlier server: then open pages find it. Raise OSError if another program has the
    port.
    """

    def __init__(self, page: Page, port: int = 0, *, max_message: int = MAX_MESSAGE, token: str | None = None) -> None:
        self.page = page
        self.token = token or secrets.token_urlsafe(24)
        self._socket = socket.socket()
        try:
            # On Windows, SO_REUSEADDR would let other programs take the port at the same time.
            option = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)
            self._socket.setsockopt(socket.SOL_SOCKET, option, 1)
            self._socket.bind(("127.0.0.1", port))
            self._socket.listen()  # a page may then come before the thread has begun
        except OSError as error:
            self._socket.close()
            raise OSError(error.errno, f"{error.strerror}: give another port, or port=0", f"127.0.0.1:{port}") from None
        self.port = self._socket.getsockname()[1]
        self.hosts = {f"127.0.0.1:{self.port}", f"localhost:{self.port}"}
        self.pages = 0
        routes = [
            Route("/", self._serve_page),
            Route("/file", self._serve_page),
            Route("/static/{name}", self._serve_file),
            WebSocketRoute("/socket", self._serve_socket),
        ]
        options: dict[str, Any] = {"lifespan": "off", "log_config": None, "server_header": False, "date_header": False}
        options |= {"log_level": "critical", "http": partial(Connection, {}), "backlog": BATCH}
        options |= {"ws_max_size": max_message, "ws_max_queue": 4, "ws_per_message_deflate": False}
        options |= {"timeout_graceful_shutdown": 1}
        config = uvicorn.Config(LocalHostOnly(Starlette(routes=routes), self.hosts), **options)
        self._server = QuietServer(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), daemon=True, name="caffelite.web"
        )

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/?token={quote(self.token)}"

    @property
    def ssh_command(self) -> str | None:
        """The command that lets another computer reach the page; None unless this program was started through SSH."""
        try:
            _, _, host, port = os.environ.get("SSH_CONNECTION", "").split()
            ip_address(host)
            option, user = "" if int(port) == 22 else f" -p {int(port)}", getpass.getuser()
        except (ValueError, KeyError, OSError):  # a container may have no name for its user
            return None
        return f"ssh -N -L {self.port}:127.0.0.1:{self.port}{option} {user}@{host}"

    @property
    def directions(self) -> str:
        """The address, and how another computer reaches it, as text to print."""
        command = self.ssh_command
        return self.address if command is None else f"{self.address}\nFrom your own computer, first: {command}"

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Stop serving. Pages notice this, because their sockets close."""
        atexit.unregister(self.stop)
        self._server.should_exit = True
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)
        self._socket.close()

    # ---- answers ------------------------------------------------------------------------------------------------

    def _has_token(self, token: str | None) -> bool:
        return secrets.compare_digest((token or "").encode(), self.token.encode())

    async def _serve_page(self, request: Request) -> Response:
        if not self._has_token(request.query_params.get("token")):
            text = "This page needs the full address that was printed, with its token."
            return PlainTextResponse(text, 403, HEADERS)
        if request.url.path == "/file":
            return HTMLResponse(make_page_file(self.page.html), headers=HEADERS)
        return FileResponse(STATIC / self.page.html, headers=HEADERS, media_type="text/html")

    async def _serve_file(self, request: Request) -> Response:
        path = STATIC / request.path_params["name"]
        if path.suffix not in MEDIA_TYPES or path.suffix == ".html" or path.name not in os.listdir(STATIC):
            return PlainTextResponse("There is no such file.", 404, HEADERS)
        return FileResponse(path, headers=HEADERS, media_type=MEDIA_TYPES[path.suffix])

    async def _serve_socket(self, websocket: WebSocket) -> None:
        origin = websocket.headers.get("origin", "")
        if origin.removeprefix("http://") not in self.hosts or not self._has_token(websocket.query_params.get("token")):
            await websocket.close(CLOSE_FORBIDDEN)  # before it is accepted: the browser gets status 403
            return
        await websocket.accept()
        if self.pages >= MAX_PAGES:
            await websocket.close(CLOSE_FULL, f"{MAX_PAGES} pages are open already: close one")
            return
        self.pages += 1
        websocket.state.connection.keep()
        channel = SocketChannel(asyncio.get_running_loop())
        tasks = [
            asyncio.create_task(task)
            for task in (self._send(websocket, channel), self._receive_all(websocket, channel))
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.pages -= 1
            self.page.on_disconnect(channel)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive_all(self, websocket: WebSocket, channel: SocketChannel) -> None:
        with suppress(WebSocketDisconnect, RuntimeError, KeyError):  # KeyError: it has sent bytes, not text
            if command := self.ssh_command:
                channel.send("ssh", {"command": command})
            self.page.on_connect(channel)
            while True:
                receive(self.page, channel, await websocket.receive_text())

    async def _send(self, websocket: WebSocket, channel: SocketChannel) -> None:
        """Send the waiting messages, until the page has gone or takes too long to read."""
        with suppress(asyncio.TimeoutError, WebSocketDisconnect, RuntimeError):
            while True:
                for content in await channel._take_waiting():
                    await asyncio.wait_for(websocket.send_bytes(content), SEND_TIMEOUT)
                channel._mark_sent()


class LocalHostOnly:
    """Answers only requests for these hosts."""

    def __init__(self, app: ASGIApp, hosts: set[str]) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host_headers = [value.decode("latin-1") for name, value in scope.get("headers", ()) if name == b"host"]
        if len(host_headers) == 1 and host_headers[0] in self.hosts:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": CLOSE_FORBIDDEN})
        else:
            await PlainTextResponse("This is another host.", 421, HEADERS)(scope, receive, send)
