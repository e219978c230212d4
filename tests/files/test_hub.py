"""Models on the Hugging Face Hub: with the real huggingface_hub, and a server of its protocol on this machine."""

import base64
import hashlib
import json
import os
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import caffelite as cl
from caffelite.files.hub import local_path
from tests.conftest import run


class HubHandler(BaseHTTPRequestHandler):
    """Repositories in memory: small files come with a commit, large ones by Git LFS before it."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def answer(self, content, status=200, **headers):
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": len(content), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def read(self):
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_POST(self):
        hub, body = self.server, self.read()
        if self.path.startswith("/api") and self.headers.get("Authorization") != "Bearer secret":
            self.answer({"error": "Invalid credentials"}, 401)
        elif self.path == "/api/repos/create":
            repo = "{organization}/{name}".format(**json.loads(body))
            status = 409 if repo in hub.repos else 200
            hub.repos.setdefault(repo, [])
            self.answer({"url": f"{hub.address}/{repo}"}, status)
        elif self.path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif self.path.endswith("/preupload/main"):
            files = json.loads(body)["files"]
            modes = [(x["path"], "lfs" if x["path"].endswith(".safetensors") else "regular") for x in files]
            self.answer({"files": [{"path": p, "uploadMode": mode, "shouldIgnore": False} for p, mode in modes]})
        elif self.path.endswith(".git/info/lfs/objects/batch"):
            objects = json.loads(body)["objects"]
            links = [{"upload": {"href": f"{hub.address}/lfs/{x['oid']}"}} for x in objects]
            found = [{**x, "actions": actions} for x, actions in zip(objects, links, strict=True)]
            self.answer({"transfer": "basic", "objects": found}, Content_Type="application/vnd.git-lfs+json")
        else:
            self.commit(re.fullmatch("/api/models/(.*)/commit/main", self.path)[1], body)

    def commit(self, repo, body):
        files = dict(self.server.repos[repo][-1][1]) if self.server.repos[repo] else {}
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            if line["key"] == "lfsFile":
                files[value["path"]] = self.server.blobs[value["oid"]]
            if line["key"] == "header":
                message = value["summary"]
        oid = hashlib.sha1(body).hexdigest()
        self.server.repos[repo].append((oid, files, message))
        self.answer({"commitUrl": f"{self.server.address}/{repo}/commit/{oid}", "commitOid": oid})

    def do_PUT(self):
        self.server.blobs[self.path.rpartition("/")[2]] = self.read()
        self.answer(b"")

    def do_GET(self):
        if (found := re.fullmatch("/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path)) is None:
            self.answer({"error": "Invalid credentials"}, 401)  # a question after a repository, which a wrong token has
            return
        repo, revision, name = found.groups()
        commits = self.server.repos.get(repo, [])
        commits = [commit for commit in commits if revision in {"main", commit[0]}]
        if not commits or name not in commits[-1][1]:
            self.answer(b"", 404, X_Error_Code="EntryNotFound" if commits else "RepoNotFound")
            return
        oid, files, _ = commits[-1]
        self.answer(files[name], ETag=f'"{hashlib.sha1(files[name]).hexdigest()}"', X_Repo_Commit=oid)

    do_HEAD = do_GET  # noqa: N815


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), HubHandler)
    server.address, server.repos, server.blobs = f"http://127.0.0.1:{server.server_port}", {}, {}
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def run_program(hub, tmp_path):
    """Return a function that runs a program with this Hub: huggingface_hub reads its address when it is imported."""
    pytest.importorskip("huggingface_hub")
    settings = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "cache"), "HF_TOKEN": "secret"}
    settings |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}

    def run_it(program, **changes):
        return run(sys.executable, "-c", program, cwd=tmp_path, env=os.environ | settings | changes, timeout=60)

    return run_it


MODEL = """
import caffelite as cl, numpy as np
model = cl.Model([cl.Linear(3, 4), cl.BatchNorm(4), cl.ReLU(), cl.Linear(4, 2)], seed={seed})
x = np.arange(6.0).reshape(2, 3)
"""
PUSH = MODEL + 'print(model.push_to_hub("anna/net", private=True))\n'


def test_a_model_on_the_hub_is_loaded_again_with_all_its_bits(hub, run_program):
    assert run_program(PUSH.format(seed=0)).strip() == f"{hub.address}/anna/net"
    ((_, files, message),) = hub.repos["anna/net"]
    assert (files.keys(), message) == ({"model.safetensors", "README.md"}, "Upload model")
    assert b'cl.load("hf://anna/net")' in files["README.md"]
    program = (
        MODEL
        + """
loaded = cl.load("hf://anna/net")
assert repr(loaded) == repr(model)
assert (loaded.predict(x) == model.predict(x)).all()
other = cl.Model([cl.Linear(3, 4), cl.BatchNorm(4), cl.ReLU(), cl.Linear(4, 2)], seed=1)
assert (other.load("hf://anna/net/model.safetensors").predict(x) == model.predict(x)).all()
"""
    )
    run_program(program.format(seed=0))
    hub.repos.clear()
    run_program(program.format(seed=0), HF_HUB_OFFLINE="1")  # from the cache


def test_a_later_push_keeps_the_card_and_a_revision_names_the_earlier_model(hub, run_program):
    run_program(PUSH.format(seed=0))
    hub.repos["anna/net"][0][1]["README.md"] = b"written by Anna"
    run_program(PUSH.format(seed=1))
    (first, *_), (_, files, _) = hub.repos["anna/net"]
    assert files["README.md"] == b"written by Anna"
    program = MODEL + 'assert (cl.load("hf://anna/net{revision}").predict(x) == model.predict(x)).all()\n'
    run_program(program.format(seed=0, revision=f"@{first}"))
    run_program(program.format(seed=1, revision=""))


def test_an_answer_of_the_hub_that_refuses_is_an_oserror(hub, run_program):
    program = (
        MODEL
        + """
for action in (
    lambda: cl.load("hf://anna/missing"),
    lambda: cl.load("hf://anna/net/missing.safetensors"),
    lambda: model.push_to_hub("anna/net", token="wrong"),
):
    try:
        action()
    except OSError as error:
        print(type(error).__name__)
"""
    )
    run_program(PUSH.format(seed=0))
    names = run_program(program.format(seed=1)).split()
    assert names == ["RepositoryNotFoundError", "RemoteEntryNotFoundError", "HfHubHTTPError"]
    assert len(hub.repos["anna/net"]) == 1


@pytest.mark.parametrize("path", ["hf://net", "hf://anna/", "hf://anna/net@", "hf:///net/x"])
def test_an_address_without_owner_and_name_raises_and_shows_how_it_should_be(path):
    with pytest.raises(ValueError, match=f"expected hf://owner/name, or hf://owner/name@revision/file, got {path}"):
        cl.load(path)


def test_paths_of_this_machine_are_left_as_they_are(tmp_path):
    assert [local_path(path) for path in ("net.safetensors", tmp_path)] == ["net.safetensors", tmp_path]


def test_without_huggingface_hub_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match="-m pip install huggingface_hub"):
        cl.load("hf://anna/net")
    with pytest.raises(ImportError, match="-m pip install huggingface_hub"):
        cl.Model([cl.Linear(2, 2)]).push_to_hub("anna/net")
