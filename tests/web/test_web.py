"""The server of pages: what it answers, and to whom."""

import contextlib
import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("websockets")

from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from caffelite.web import connection
from caffelite.web import server as web
from caffelite.web.messages import encode
from tests.conftest import posix


class Echo:
    """A page that gives each message back, and remembers who was there."""

    html = "page.html"

    def __init__(self):
        self.channels, self.gone, self.got = [], [], []

    def on_connect(self, channel):
        self.channels.append(channel)
        channel.send("hello", {"x": np.arange(3, dtype=np.float32)})

    def on_receive(self, channel, message):
        if message["kind"] == "bad":
            raise ValueError("there is no such thing")
        self.got.append(message)
        channel.send("echo", {"of": message})

    def on_disconnect(self, channel):
        self.gone.append(channel)


@pytest.fixture
def server(tmp_path, monkeypatch):
    (tmp_path / "page.html").write_text("<!doctype html><title>page</title>")
    (tmp_path / "page.js").write_text("1")
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path.parent / "outside.js").write_text("outside")
    monkeypatch.setattr(web, "STATIC", tmp_path)
    made = web.Server(Echo())
    made.start()
    wait_for(lambda: made._server.started)
    yield made
    made.stop()
    assert not made._thread.is_alive()


def wait_for(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited for nothing"
        time.sleep(0.005)


def get(server, path, host=None, method="GET"):
    """Status, headers and text of an answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", method=method)
    if host is not None:
        request.add_header("Host", host)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()


def page(server, token=None, origin=True, host=None, **options):
    """Return a socket, as a page opens it."""
    origin = f"http://127.0.0.1:{server.port}" if origin is True else origin
    headers = {} if host is None else {"Host": host}
    place = f"ws://127.0.0.1:{server.port}/socket?token={server.token if token is None else token}"
    return connect(place, origin=origin, additional_headers=headers, compression=None, proxy=None, **options)


def raw_page(server):
    """Return the socket of a page that reads nothing, and answers nothing."""
    raw = socket.create_connection(("127.0.0.1", server.port))
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.sendall(
        f"GET /socket?token={server.token} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        f"Origin: http://127.0.0.1:{server.port}\r\n\r\n".encode()
    )
    return raw


def decode_in_javascript(content):
    """Return what `messages.js` makes of a message."""
    length = int.from_bytes(content[:4], "little")
    start = 4 + length
    assert start % 8 == 0

    def fill(value):
        if isinstance(value, dict) and "$array" in value:
            count = int(np.prod(value["$array"]))
            found = np.frombuffer(content, value["type"], count, start + value["at"])
            return found.reshape(value["$array"])
        if isinstance(value, dict):
            return {name: fill(x) for name, x in value.items()}
        return [fill(x) for x in value] if isinstance(value, list) else value

    return fill(json.loads(content[4:start]))


# ---- messages -------------------------------------------------------------------------------------------------------


def test_messages_keep_arrays_numbers_and_words():
    arrays = {"a": np.arange(6.0).reshape(2, 3).T, "b": np.array([1, 2]), "c": np.array([True]), "d": np.empty((0, 3))}
    found = decode_in_javascript(
        encode({"n": 3, "f": np.float32(0.5), "bad": [np.nan, np.inf, None], "t": "ä", **arrays})
    )
    assert (found["n"], found["f"], found["bad"], found["t"]) == (3, 0.5, [None, None, None], "ä")
    for name, dtype in {"a": "f4", "b": "i4", "c": "u1", "d": "f4"}.items():
        assert found[name].dtype == dtype
        np.testing.assert_array_equal(found[name], arrays[name])


# ---- pages ----------------------------------------------------------------------------------------------------------


def test_scripts_import_only_files_and_names_that_exist():
    scripts = {path.name: path.read_text(encoding="utf-8") for path in web.STATIC.glob("*.js")}
    imports = re.compile(r'^import \{ (.+) \} from "\./(.+)";$', re.MULTILINE)
    for name, text in scripts.items():
        found = imports.findall(text)
        assert len(found) == text.count('from "./'), name
        for names, file in found:
            exported = set(re.findall(r"^export (?:const|function|class) ([$\w]+)", scripts[file], re.MULTILINE))
            assert set(names.split(", ")) <= exported, (name, file)


def test_the_page_needs_the_token_and_has_a_strict_policy(server):
    status, headers, text = get(server, f"/?token={server.token}")
    assert (status, "<title>page" in text) == (200, True)
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    for token in ("", "x", server.token[:-1], server.token + "x", "%ff%00", "ä"):
        path = f"/?token={urllib.request.quote(token)}"
        assert get(server, path)[0] == 403
    assert get(server, "/")[0] == 403


@pytest.mark.parametrize(
    "name",
    [
        "secret.txt",
        "page.html",
        "../outside.js",
        "%2e%2e/outside.js",
        "..%2foutside.js",
        "%2e%2e%2foutside.js",
        "",
        "no.js",
        "a" * 5000 + ".js",
    ],
)
def test_it_serves_its_own_scripts_and_nothing_else(server, name):
    assert get(server, "/static/page.js")[::2] == (200, "1")
    assert get(server, f"/static/{name}")[0] in (404, 307)
    assert get(server, "/static/page.js", method="POST")[0] == 405


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "localhost.evil.example", "[::1]"])
def test_other_hosts_raise(server, host):
    assert get(server, f"/?token={server.token}", host=host)[0] == 421
    with pytest.raises(InvalidStatus), page(server, host=f"{host}"):
        pass


def test_localhost_is_another_name_of_it(server):
    assert get(server, f"/?token={server.token}", host=f"localhost:{server.port}")[0] == 200


def test_it_listens_on_this_machine_only(server):
    assert server._socket.getsockname()[0] == "127.0.0.1"


# ---- sockets --------------------------------------------------------------------------------------------------------


def test_a_page_gets_and_sends_messages(server):
    with page(server) as socket:
        hello = decode_in_javascript(socket.recv(10))
        assert hello["kind"] == "hello"
        np.testing.assert_array_equal(hello["x"], [0, 1, 2])
        socket.send(json.dumps({"kind": "ask", "n": 1}))
        assert decode_in_javascript(socket.recv(10)) == {"kind": "echo", "of": {"kind": "ask", "n": 1}}
    wait_for(lambda: server.page.gone == server.page.channels)


@pytest.mark.parametrize(
    "origin", [None, "null", "http://evil.example", "https://127.0.0.1:{port}", "http://127.0.0.1"]
)
def test_sockets_of_other_origins_raise(server, origin):
    origin = origin and origin.format(port=server.port)
    with pytest.raises(InvalidStatus) as error, page(server, origin=origin):
        pass
    assert error.value.response.status_code == 403


@pytest.mark.parametrize("token", ["", "wrong"])
def test_sockets_without_the_token_raise(server, token):
    with pytest.raises(InvalidStatus) as error, page(server, token=token):
        pass
    assert error.value.response.status_code == 403


@pytest.mark.parametrize("message", ["", "{", "[]", "3", "{}", '{"kind": "bad"}', '{"kind":' + "[" * 50_000])
def test_bad_messages_are_answered_and_harm_nothing(server, message):
    with page(server) as socket:
        socket.recv(10)
        socket.send(message)
        assert decode_in_javascript(socket.recv(10))["kind"] == "refused"
        socket.send('{"kind": "ask"}')
        assert decode_in_javascript(socket.recv(10))["kind"] == "echo"


def test_bytes_instead_of_a_message_close_the_page(server):
    with page(server) as socket:
        socket.recv(10)
        socket.send(b"\0\1")
        with pytest.raises(ConnectionClosed):
            socket.recv(10)
    with page(server) as socket:
        assert decode_in_javascript(socket.recv(10))["kind"] == "hello"


def test_huge_messages_close_the_page(server):
    with page(server) as socket:
        socket.recv(10)
        with contextlib.suppress(ConnectionClosed):
            socket.send(json.dumps({"kind": "ask", "x": "x" * web.MAX_MESSAGE}))
        with pytest.raises(ConnectionClosed):
            socket.recv(10)
    assert server.page.got == []


def test_of_a_hundred_pages_sixteen_are_let_in(server):
    def hello(socket):
        """Return what the page gets first: a message, or the code with which it is closed."""
        try:
            return decode_in_javascript(socket.recv(10))["kind"]
        except ConnectionClosed as error:
            return error.rcvd.code, error.rcvd.reason

    with contextlib.ExitStack() as stack:
        found = [hello(stack.enter_context(page(server))) for _ in range(80)]
        assert found == ["hello"] * web.MAX_PAGES + [(web.CLOSE_FULL, "16 pages are open already: close one")] * 64
        assert len(server.page.channels) == web.MAX_PAGES
        with contextlib.suppress(InvalidStatus, OSError):
            for _ in range(100):  # that do not even say who they are
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
    wait_for(lambda: server.pages == 0)
    with page(server) as one:
        assert hello(one) == "hello"


def test_a_slow_page_misses_messages_and_is_dropped(server, monkeypatch):
    monkeypatch.setattr(web, "SEND_TIMEOUT", 0.5)
    with raw_page(server):
        wait_for(lambda: server.page.channels)
        (channel,) = server.page.channels
        megabyte = np.zeros(2**20, np.uint8)
        for _ in range(40):  # nobody reads them
            channel.send("picture", {"pixels": megabyte})
            time.sleep(0.01)
        assert sum(map(len, channel._waiting.values())) < 2**21
        wait_for(lambda: server.page.gone == [channel])
    with page(server) as other:
        assert decode_in_javascript(other.recv(10))["kind"] == "hello"


def test_messages_come_from_any_thread_and_the_newest_comes_last(server):
    with page(server) as socket:
        socket.recv(10)
        (channel,) = server.page.channels

        def send(name):
            for i in range(200):
                channel.send(name, {"i": i})

        threads = [threading.Thread(target=send, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        newest = {}
        while newest != {"a": 199, "b": 199}:
            found = decode_in_javascript(socket.recv(10))
            assert found["i"] > newest.get(found["kind"], -1)
            newest[found["kind"]] = found["i"]
        for thread in threads:
            thread.join()
        channel.wait_until_sent(5)
        assert channel._sent.is_set()


# ---- connections without the token -----------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"GET / HTTP/1.1\r\nHost:"])
def test_connections_that_send_no_request_do_not_lock_the_user_out(content, server):
    with contextlib.ExitStack() as stack:
        address = ("127.0.0.1", server.port)
        connections = [stack.enter_context(socket.create_connection(address)) for _ in range(150)]
        with contextlib.suppress(OSError):  # the server has closed some
            for each in connections:
                each.sendall(content)
        assert get(server, f"/?token={server.token}")[0] == 200
        with page(server) as one:
            assert decode_in_javascript(one.recv(10))["kind"] == "hello"


@pytest.mark.parametrize(
    "content", [b"", b"GET / HTTP/1.1\r\nHost:", b"GET /socket HTTP/1.1\r\nUpgrade: websocket\r\n"]
)
def test_a_connection_that_sends_no_request_is_closed_and_a_page_stays(content, server, monkeypatch):
    monkeypatch.setattr(connection, "MAX_SECONDS", 0.3)
    with page(server) as one, socket.create_connection(("127.0.0.1", server.port), timeout=10) as silent:
        one.recv(10)
        silent.sendall(content)
        assert silent.recv(1) == b""
        one.send('{"kind": "still here"}')
        assert decode_in_javascript(one.recv(10))["of"] == {"kind": "still here"}


TRAINING = """
import resource, sys, time
from pathlib import Path
import caffelite as cl
from caffelite.web.playground.page import Playground

resource.setrlimit(resource.RLIMIT_NOFILE, (180, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
page = Playground(0)
print(page.server.port, flush=True)
sys.stdin.readline()
cl.MLP(2, [2], seed=0).save(sys.argv[1])
files = []
try:
    while True:
        files.append(open(sys.argv[1]))
except OSError:  # this program has used all of its files
    print("no more", flush=True)
sys.stdin.readline()
del files
page.stop()
"""


@posix
def test_connections_leave_files_for_the_training_and_print_nothing(tmp_path):
    command = [sys.executable, "-c", TRAINING, tmp_path / "m.safetensors"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen(command, text=True, **pipes))
        stack.callback(process.kill)
        address = ("127.0.0.1", int(process.stdout.readline()))
        connections = [stack.enter_context(socket.create_connection(address)) for _ in range(220)]
        print(file=process.stdin, flush=True)
        assert process.stdout.readline() == "no more\n"
        for each in connections:
            each.close()
        stack.enter_context(socket.create_connection(address))
        time.sleep(0.5)
        _, said = process.communicate("\n")
    assert said == ""
    assert process.returncode == 0


# ---- its life -------------------------------------------------------------------------------------------------------


def test_it_stops_at_once_and_twice_and_tells_pages(server):
    with page(server) as socket:
        socket.recv(10)
        begun = time.monotonic()
        server.stop()
        server.stop()
        assert time.monotonic() - begun < 3
        with pytest.raises(ConnectionClosed):
            socket.recv(10)
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(server.address)


def test_a_page_that_does_not_answer_is_left_when_the_server_stops(server):
    with raw_page(server) as raw:
        wait_for(lambda: server.page.channels)
        server.stop()
        assert not server._thread.is_alive()
        raw.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            while raw.recv(2**16):
                pass


def test_a_port_that_is_taken_is_an_error_that_says_what_to_do(server):
    with pytest.raises(OSError, match=r"give another port, or port=0.*127\.0\.0\.1:" + str(server.port)):
        web.Server(Echo(), server.port)


def test_a_later_server_can_have_the_port_and_the_token_of_an_earlier_one(server):
    server.stop()
    later = web.Server(Echo(), server.port, token=server.token)
    later.start()
    wait_for(lambda: later._server.started)
    assert later.address == server.address
    assert get(later, f"/?token={server.token}")[0] == 200
    later.stop()
