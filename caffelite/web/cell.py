"""Pages in the cells of a notebook. Their messages go through the notebook's kernel, so they need no address.

A widget of anywidget carries them. It shows the page, as one file, in a frame: `static/cell.js` makes it.

The kernel may hear a page only when the cell that trains has ended: JupyterLab with ipykernel 7 has a thread for
messages, others have none. So training never waits for an answer. After a message without an answer, the next one
waits, and the page says that the kernel does not hear it.
"""

from __future__ import annotations

import contextvars
import sys
import threading
import time
from importlib.util import find_spec
from typing import Any

from caffelite._support.extras import install_command
from caffelite.web.page_file import STATIC, make_page_file
from caffelite.web.server import Channel, Page, encode_message, receive

MAX_WAIT = 1.0  # seconds that messages wait for the page's answer to the last ones
MAX_SILENCE = 30.0  # seconds without an answer after which a page has gone, if the kernel hears pages


class CellPage(Page):
    """A page that shows itself in a cell of a notebook."""

    _cell: Cell | None = None

    def open_cell(self) -> Cell:
        """Return the page's cell, made when it is first asked for. Raise ImportError if anywidget is missing."""
        if self._cell is None:
            self._cell = Cell(self)
        return self._cell

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """Show the page in a notebook. At the IPython prompt, there is only its text."""
        return self.open_cell().widget._repr_mimebundle_(**options) if in_notebook() else None


class Cell:
    """The widget of a page. The notebook may show it in several places, each with a channel of its own."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.widget = make_widget(page)
        choose_thread(self.widget)
        self.widget.on_msg(self._receive)
        self._channels: dict[str | None, CellChannel] = {}  # by the name of the place, None for all places
        self._lock = threading.Lock()

    def open_channels(self) -> list[CellChannel]:
        """Return the channels of the places. Before the first page is heard, there is one channel to all places."""
        with self._lock:
            if not self._channels:
                self._channels[None] = CellChannel(self, None)
            return [*self._channels.values()]

    def close_channel(self, place: str | None) -> None:
        with self._lock:
            channel = self._channels.pop(place, None)
        if channel is not None:
            self.page.on_disconnect(channel)

    def _receive(self, widget: Any, content: dict[str, Any], buffers: Any) -> None:
        place = content["place"]
        if "closed" in content:
            self.close_channel(place)
            return
        with self._lock:
            is_new = place not in self._channels
            channel = self._channels.setdefault(place, CellChannel(self, place))
        if is_new:
            self.page.on_connect(channel)
            self.close_channel(None)
        if content["text"] is not None:
            receive(self.page, channel, content["text"])
        channel.hear()


class CellChannel(Channel):
    """The way to a page in a cell. Messages wait for the answer to the last ones, for MAX_WAIT at most."""

    def __init__(self, cell: Cell, place: str | None) -> None:
        self._cell, self._place, self._waiting, self._lock = cell, place, dict[str, bytes](), threading.Lock()
        self._heard_at, self._context = time.monotonic(), contextvars.copy_context()
        self._sent_at: float | None = None  # when messages were sent that have no answer yet
        self._listener = 0  # the thread that hears the page
        self._is_unheard = True  # as the page knows it

    def send(self, kind: str, message: dict[str, Any] | bytes) -> None:
        now = time.monotonic()
        with self._lock:
            self._waiting[kind] = message if isinstance(message, bytes) else encode_message(kind, message)
            is_late = self._sent_at is not None and now - self._sent_at > MAX_WAIT
            if self._sent_at is None or is_late:
                self._send_waiting(is_unheard=is_late or self._place is None)
        can_hear = self._place is not None and threading.get_ident() != self._listener
        if can_hear and is_late and now - self._heard_at > MAX_SILENCE:
            self._cell.close_channel(self._place)

    def wait_until_sent(self, seconds: float) -> None:
        with self._lock:
            self._send_waiting(self._is_unheard)

    def hear(self) -> None:
        """Note that the page has answered, and send the waiting messages."""
        with self._lock:
            self._heard_at, self._context = time.monotonic(), contextvars.copy_context()
            self._sent_at, self._listener = None, threading.get_ident()
            if self._waiting or self._is_unheard:
                self._send_waiting(is_unheard=False)

    def _send_waiting(self, is_unheard: bool) -> None:
        messages, self._waiting = [*self._waiting.values()], {}
        self._sent_at, self._is_unheard = time.monotonic(), is_unheard
        content = {"place": self._place, "unheard": is_unheard}
        self._context.run(self._cell.widget.send, content, messages)  # see `choose_thread`
        choose_thread(self._cell.widget)


def choose_thread(widget: Any) -> None:
    """Let the notebook choose the thread that hears a widget.

    Otherwise, ipykernel sends an answer to the thread in whose context the last message was sent. That may be the
    thread that trains, or one that has ended.
    """
    getattr(widget.comm, "__dict__", {}).pop("_reply_subshell_id", None)


def make_widget(page: Page) -> Any:
    """Return the widget that shows a page. Raise ImportError if anywidget is missing."""
    try:
        import anywidget
        import traitlets
    except ModuleNotFoundError as error:
        name = f"cl.{type(page).__name__.lower()}"
        missing = f"{name} in a notebook needs {error.name}, which is not installed: {install_command('notebook')}"
        raise ImportError(missing) from None

    class PageWidget(anywidget.AnyWidget):
        _esm = (STATIC / "cell.js").read_text(encoding="utf-8")
        html = traitlets.Unicode().tag(sync=True)

        def __repr__(self) -> str:
            return repr(page)

    return PageWidget(html=make_page_file(page.html))


def in_notebook() -> bool:
    """Return whether this program is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


def has_widgets() -> bool:
    """Return whether this program is the kernel of a notebook, and anywidget is installed."""
    return in_notebook() and find_spec("anywidget") is not None
