"""A server's connections: few, and each for a short time, except for the sockets of pages.

Any program on this machine can open connections to a server. The limits leave file descriptors for training, which runs
in the same process, and let a page in while others hold connections that send nothing, or half a request.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 64  # without the sockets of pages
MAX_SECONDS = 10.0  # from the beginning of a connection to the end of its answer
BATCH = 16  # connections that asyncio accepts before it closes others
MAX_QUEUE = 100  # connections that wait to be accepted; in a longer queue, a page waits too long behind a flood


class Connection(H11Protocol):
    """A connection, which is closed after MAX_SECONDS unless `keep` makes it the socket of a page.

    `timers` has the server's connections that are not kept, the oldest first. If there are too many, the oldest that
    has sent no request is closed.
    """

    def __init__(
        self, timers: dict[Connection, asyncio.TimerHandle], app_state: dict[str, Any], **options: Any
    ) -> None:
        super().__init__(app_state=app_state | {"connection": self}, **options)
        self.timers = timers

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.timers[self] = self.loop.call_later(MAX_SECONDS, self.abort)
        if len(self.timers) > MAX_CONNECTIONS:
            oldest = next(iter(self.timers))
            next((each for each in self.timers if each.cycle is None), oldest).abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.keep()
        super().connection_lost(exc)

    def keep(self) -> None:
        """End the limits of this connection."""
        if (timer := self.timers.pop(self, None)) is not None:
            timer.cancel()

    def abort(self) -> None:
        """Close the connection at once."""
        self.keep()
        self.transport.abort()


class QuietServer(uvicorn.Server):
    """A server that prints no errors of its connections, so an attacker cannot write on the user's terminal.

    When it stops, it also closes the connections of pages that do not answer. These pages then notice it.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(MAX_QUEUE)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        for connection in [*self.server_state.connections]:
            connection.transport.abort()
