"""What tests of pages share: a page without a browser. The fixture `browser` is in conftest.py."""

import contextlib
import json
import threading

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from caffelite.web.messages import decode

SECONDS = 30  # that a test waits at most


class Page:
    """A page without a browser: it keeps the newest message of each kind, and all names of kinds."""

    def __init__(self, live):
        self.messages, self.kinds, self.changed = {}, [], threading.Condition()
        address = live if isinstance(live, str) else live.address
        origin, _, token = address.partition("/?token=")
        place = f"{origin.replace('http', 'ws')}/socket?token={token}"
        self.stack = contextlib.ExitStack()
        self.socket = self.stack.enter_context(
            connect(place, origin=origin, compression=None, proxy=None, max_size=None)
        )
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        try:
            for content in self.socket:
                message = decode(content)
                with self.changed:
                    self.messages[message["kind"]] = message
                    self.kinds.append(message["kind"])
                    self.changed.notify_all()
        except ConnectionClosed:
            pass

    def ask(self, kind, **more):
        self.socket.send(json.dumps({"kind": kind, **more}))

    def wait_for(self, kind, condition=lambda message: True):
        """Return the newest message of a kind, as soon as the condition holds."""
        with self.changed:
            assert self.changed.wait_for(lambda: kind in self.messages and condition(self.messages[kind]), SECONDS), (
                f"no such {kind}: {self.messages.get(kind)}"
            )
            return self.messages[kind]

    def wait_for_state(self, state):
        return self.wait_for("status", lambda status: status["state"] == state)

    def close(self):
        self.stack.close()
        self.thread.join(SECONDS)
