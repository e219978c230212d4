"""The nets that learn on pages of the site: their WebAssembly, their losses, and the pages in a browser."""

import base64
import gzip
import json
import re
import runpy
import shutil
import sys
import zlib

import numpy as np
import pytest

import caffelite as cl
from tests.c.site_nets import DOCS, STATIC, build, load_module, missing_wasm, run_clang
from tests.conftest import run

ROOT = DOCS.parent
SCRIPTS = ("net.js", "spiral.js", "microgpt.js")
HASHES = dict(reversed(line.split()) for line in (DOCS / "_wasm" / "hashes.txt").read_text("utf-8").splitlines())
CONF = """
extensions = ["myst_parser", "net"]
myst_enable_extensions = ["colon_fence"]
html_static_path = ["_static"]
"""
PAGE = """# Nets

:::{net} spiral
Spirals without JavaScript.
:::
"""
PAGES = {"spiral": "index", "microgpt": "microgpt"}

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
needs_wasm = pytest.mark.skipif(missing_wasm(), reason="there is no clang for WebAssembly")


# ---- the files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", build.NETS)
def test_the_webassembly_is_made_from_the_c_that_caffelite_writes_today(name, tmp_path):
    build.export_net(name, tmp_path)
    advice = "the exported C has changed: run make wasm"
    assert build.hash_file(tmp_path / f"{name}.c") == HASHES[f"{name}.c"], advice
    assert build.hash_file(STATIC / f"{name}.wasm") == HASHES[f"{name}.wasm"], advice


@needs_wasm
@pytest.mark.parametrize("name", build.NETS)
def test_clang_makes_the_webassembly_that_is_under_version_control(name, tmp_path):
    if f" {build.CLANG_VERSION}" not in run_clang("--version"):
        pytest.skip(f"clang is not version {build.CLANG_VERSION}")
    build.export_net(name, tmp_path)
    build.compile_net(name, tmp_path)
    assert (tmp_path / f"{name}.wasm").read_bytes() == (STATIC / f"{name}.wasm").read_bytes(), "run make wasm"


def test_a_page_needs_60_kb_and_no_other_place():
    sizes = {path.name: path.stat().st_size for path in STATIC.iterdir()}
    assert sizes["microgpt.wasm"] + sizes["net.js"] + sizes["microgpt.js"] <= 60_000
    assert sizes["spiral.wasm"] + sizes["net.js"] + sizes["spiral.js"] <= 20_000
    parts = [(STATIC / name).read_bytes() for name in ("net.js", "microgpt.js", "caffelite.css")]
    parts += [base64.b64encode(zlib.compress((STATIC / "microgpt.wasm").read_bytes(), 9))]
    parts += [(DOCS / "microgpt.md").read_bytes()]
    assert len(gzip.compress(b"".join(parts))) <= 40_000  # the theme's style, scripts and menu add about 20,000
    table = (DOCS / "export-c.md").read_text("utf-8")
    assert all(f"| {sizes[f'{name}.wasm']:,} |" in table for name in build.NETS)
    for name in SCRIPTS:
        assert not re.search(r"//[a-z]+\.|fetch|import|XMLHttpRequest", (STATIC / name).read_text("utf-8")), name


# ---- the nets --------------------------------------------------------------------------------------------------------


def test_microgpt_is_the_net_of_the_example(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["microgpt.py", "--steps", "1"])
    example = runpy.run_path(str(ROOT / "examples" / "microgpt.py"))
    theirs, mine = example["MicroGPT"](seed=0), build.MicroGPT(seed=0)
    assert theirs.named_parameters().keys() == mine.named_parameters().keys()
    for p, q in zip(theirs.parameters(), mine.parameters(), strict=True):
        np.testing.assert_array_equal(p.data, q.data)
    x, _ = example["encode"](["marina", "bo"])
    np.testing.assert_array_equal(theirs.predict(x), mine.predict(x)[0])


def test_the_attention_on_the_page_is_what_the_layer_uses():
    model = build.MicroGPT(seed=0)
    h = np.random.default_rng(0).standard_normal((2, 16, 16)).astype(np.float32)
    with cl.inference():
        p = model.attend(cl.Tensor(h)).data
        value = model.attention.value(h).data.reshape(2, 16, 4, 4).transpose(0, 2, 1, 3)
        y = model.attention.output((p @ value).transpose(0, 2, 1, 3).reshape(2, 16, 16)).data
        np.testing.assert_allclose(y, model.attention(h).data, 1e-5, 1e-6)
    assert not np.triu(p, 1).any()
    np.testing.assert_allclose(p.sum(axis=3), 1, 1e-6)


def test_the_training_step_computes_no_attention_for_the_page(tmp_path):
    build.export_net("microgpt", tmp_path)
    text = (tmp_path / "microgpt.c").read_text("utf-8")
    bodies = dict(re.findall(r"^(?:float|void) microgpt_(train|predict)\(.*?\)\n\{\n(.*?)^\}", text, re.M | re.S))
    calls = {name: len(re.findall(r"\bsoftmax_\d+\(", body)) for name, body in bodies.items()}
    assert calls == {"train": 0, "predict": 1}


@needs_node
@pytest.mark.parametrize("name", build.NETS)
def test_in_node_a_net_has_the_losses_that_fit_has(name, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    benchmark = load_module(ROOT / "benchmarks" / "browser.py")
    net, x, y = benchmark.NETS[name][1]()
    wasm = (STATIC / f"{name}.wasm").read_bytes()
    n = len(x) // net["batch_size"] * net["batch_size"]
    losses, time = benchmark.run_in_node(benchmark.make_question(wasm, name, net, x, y, 1))
    np.testing.assert_allclose(losses, benchmark.fit_losses(net, x[:n], y[:n]), 1e-6)
    assert time > 0


LOOK = """
openNet(require("fs").readFileSync(process.argv[1]), "microgpt").then((net) => {
  const x = net.array(Int32Array, 16).fill(26), y = net.array(Int32Array, 16).fill(-1);
  const state = net.array(Float32Array, 13000), scores = net.array(Float32Array, 432);
  const attention = net.array(Float32Array, 1024);
  x[1] = y[0] = 3;
  y[1] = 26;
  net.init();
  for (let step = 0; step < 3; step++) net.train(x, y);
  const length = net.state(state, 1);
  net.predict(x, scores, attention);
  const parts = [0, length - 2 * 4192, length - 4192].map((i) => state.subarray(i, i + 4192));
  console.log(JSON.stringify([...parts, scores, attention].map((part) => [...part])));
});"""


@needs_node
def test_the_page_reads_the_parameters_means_predictions_and_attention_that_caffelite_has():
    program = (STATIC / "net.js").read_text("utf-8") + LOOK
    found = json.loads(run("node", "-e", program, STATIC / "microgpt.wasm", cwd=STATIC))
    net = build.NETS["microgpt"]()
    x, y = np.full((1, 16), 26), np.full((1, 16), -1)
    x[0, 1] = y[0, 0] = 3
    y[0, 1] = 26
    for _ in range(3):
        net["optimizer"].zero_grad()
        net["loss"](net["model"](x), y).backward()
        net["optimizer"].step()
    state = net["optimizer"].state_dict()
    parameters = np.concatenate([p.data.ravel() for p in net["model"].parameters()])
    assert parameters.size == 4192
    np.testing.assert_allclose(found[0], parameters, 1e-4, 1e-6)
    np.testing.assert_allclose(found[1], state["first_moment.float32"], 1e-4, 1e-7)
    np.testing.assert_allclose(found[2], state["second_moment.float32"], 1e-4, 1e-9)
    scores, attention = net["model"].predict(x)
    np.testing.assert_allclose(found[3], scores.ravel(), 0, 1e-5)
    np.testing.assert_allclose(found[4], attention.ravel(), 0, 1e-5)


@needs_node
@needs_wasm
def test_the_command_and_the_program_of_the_page_about_c_work(tmp_path):
    text = (DOCS / "export-c.md").read_text("utf-8")
    (command,) = re.findall(r"^\$ clang (--target=wasm32.*?)^```", text, re.M | re.S)
    (program,) = re.findall(r"^```js\n(.*?)^```", text, re.M | re.S)
    build.export_net("spiral", tmp_path)
    run(build.CLANG, *command.replace("\\\n", " ").split(), cwd=tmp_path)
    program += """
    const points = Array.from({ length: 64 }, (_, i) => Math.sin(i)), colours = points.slice(32).map((_, i) => i % 3);
    learn(require("fs").readFileSync("spiral.wasm"), points, colours).then(([losses, scores]) => {
      console.log(JSON.stringify([losses, [...scores]]));
    });"""
    losses, scores = json.loads(run("node", "-e", program, cwd=tmp_path))
    net = build.NETS["spiral"]()
    x, y = np.sin(np.arange(64)).reshape(32, 2).astype(np.float32), np.arange(32) % 3
    options = {"loss": net["loss"], "optimizer": net["optimizer"], "batch_size": 32, "shuffle": False, "verbose": 0}
    np.testing.assert_allclose(losses, net["model"].fit(x, y, epochs=100, **options)["loss"], 1e-5)
    np.testing.assert_allclose(np.reshape(scores, (32, 3)), net["model"].predict(x), 1e-3, 1e-3)


# ---- the pages -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the addresses of a page with the spiral and of the lesson, built by Sphinx and opened from the disk."""
    for module in ("sphinx", "myst_parser"):
        pytest.importorskip(module)
    folder = tmp_path_factory.mktemp("site")
    (folder / "_static").mkdir()
    for name in (*SCRIPTS, "spiral.wasm", "microgpt.wasm"):
        shutil.copy(STATIC / name, folder / "_static")
    (folder / "conf.py").write_text(f"import sys\nsys.path.append({str(DOCS / '_extensions')!r})\n{CONF}", "utf-8")
    (folder / "index.md").write_text(PAGE, "utf-8")
    lesson = (DOCS / "microgpt.md").read_text("utf-8")
    (folder / "microgpt.md").write_text(
        "---\norphan: true\n---\n" + re.sub(r"\]\([^)]*\)", "](index.md)", lesson), "utf-8"
    )
    run(sys.executable, "-m", "sphinx", "-W", "-q", folder, folder / "html", cwd=folder)
    return {net: (folder / "html" / f"{page}.html").as_uri() for net, page in PAGES.items()}


@pytest.fixture
def visit(browser, site):
    """Return a function that opens the page. No page may report an error, or read anything but files."""
    faults, contexts = [], []

    def open_page(net, **options):
        context = browser.new_context(**{"viewport": {"width": 1000, "height": 2000}} | options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: request.url.startswith("file:") or faults.append(request.url))
        page.goto(site[net])
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


def wait_for(page, net, pattern):
    """Wait until the line below the buttons of a net matches, and return it."""
    place = f"[data-net={net}] .bar span"
    page.wait_for_function(f"new RegExp('{pattern}').test(document.querySelector('{place}')?.textContent)")
    return page.inner_text(place)


def picture(page, place):
    return page.eval_on_selector(place, "canvas => canvas.toDataURL()")


def test_the_spiral_learns_pauses_and_begins_again(visit):
    page = visit("spiral")
    wait_for(page, "spiral", r"Step [1-4],\\d+ · (5[4-9]|60) of 60 held-out points right")
    assert "slowed down to" in wait_for(page, "spiral", r"\\d+ steps a second; one takes \\d+ µs")
    start, again = page.query_selector_all("[data-net=spiral] button")
    start.click()
    paused = page.inner_text("[data-net=spiral] .bar span").split("·")[0]
    before = picture(page, "[data-net=spiral] canvas")
    page.wait_for_timeout(300)
    assert page.inner_text("[data-net=spiral] .bar span").split("·")[0] == paused
    assert picture(page, "[data-net=spiral] canvas") == before
    again.click()
    wait_for(page, "spiral", r"Step \\d\\d?\\d? ")
    assert start.inner_text() == "Pause"


def test_a_spiral_that_is_learned_begins_again_after_a_pause(visit):
    page = visit("spiral")
    page.clock.install()
    page.reload()
    wait_for(page, "spiral", "Step ")
    page.clock.run_for(9_000)  # 4,000 steps, 8 before each frame
    wait_for(page, "spiral", "Step 4,000 ")
    page.clock.run_for(3_000)
    wait_for(page, "spiral", "Step 4,000 ")
    page.clock.run_for(3_000)
    wait_for(page, "spiral", r"Step [1-9]\\d\\d? ")


def test_microgpt_learns_names_and_shows_its_attention_and_one_number(visit):
    page = visit("microgpt", viewport={"width": 1000, "height": 6000})  # all of it is drawn
    page.select_option("[data-net=microgpt] select[aria-label=speed]", "25")
    status = wait_for(page, "microgpt", "Step 1,000")
    assert 1.5 < float(re.search(r"loss ([\d.]+)", status)[1]) < 2.2
    assert page.query_selector_all("[data-net=microgpt] button")[0].is_disabled()
    rows = page.eval_on_selector_all("[data-net=microgpt] tr", "rows => rows.map((row) => row.innerText)")
    steps, names = zip(*[row.split("\t") for row in rows], strict=True)
    assert (steps[0], steps[-1]) == ("0", "1,000")
    vowels = [sum(name.count(c) for c in "aeiou") / len(re.sub(r"\W", "", name)) for name in (names[0], names[-1])]
    assert vowels[0] < 0.35 < vowels[1]
    before = picture(page, ".one-name .heads canvas")
    page.fill(".one-name input", "Bo1!")
    assert picture(page, ".one-name .heads canvas") != before
    for letter in "dem":  # also after the last step
        page.select_option(".one-number select[aria-label=letter]", label=letter)
        assert_sums(page.inner_text(".one-number pre").replace("−", "-"))
    page.select_option("[data-net=microgpt] select[aria-label=speed]", "1")
    start, again, _ = page.query_selector_all("[data-net=microgpt] button")
    again.click()  # and wait for the reader
    wait_for(page, "microgpt", "Step 0")
    start.click()
    wait_for(page, "microgpt", r"Step [1-9]\\d ")
    start.click()  # while the learning rate is high
    assert_sums(page.inner_text(".one-number pre").replace("−", "-"))


def read_losses(page):
    """Return the column −ln p of the table of one name. Its last row is the mean."""
    return np.array([float(text) for text in page.locator(".one-name tbody td:last-child").all_inner_texts()])


def test_the_lesson_begins_with_equal_predictions_and_shows_what_each_step_changes(visit):
    page = visit("microgpt", reduced_motion="reduce", viewport={"width": 390, "height": 6000})
    first = read_losses(page)
    assert first.shape == (8,)  # marina, its end and the mean
    np.testing.assert_allclose(first[-1], np.log(27), 0, 0.2)
    np.testing.assert_allclose(first[-1], first[:-1].mean(), 0, 0.01)
    page.click("text=One step")
    assert wait_for(page, "microgpt", "Step 1 ")
    assert (read_losses(page) != first).any()
    page.select_option("select[aria-label=speed]", "25")
    page.click("text=Start")
    wait_for(page, "microgpt", "Step 1,000")
    assert read_losses(page)[-1] < 2.5
    page.click("text=Begin again")
    wait_for(page, "microgpt", "Step 0")
    np.testing.assert_array_equal(read_losses(page), first)


def test_the_lesson_needs_no_mouse_and_names_its_pictures(visit):
    page = visit("microgpt", reduced_motion="reduce", viewport={"width": 1000, "height": 6000})
    page.focus("text=One step")
    page.keyboard.press("Enter")
    page.keyboard.press("Space")
    wait_for(page, "microgpt", "Step 2 ")
    page.focus(".one-name input[type=radio]")
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    assert page.inner_text(".one-name b") == "“·mar”"
    names = page.eval_on_selector_all("canvas", "all => all.map((canvas) => canvas.ariaLabel)")
    assert re.match(r"The loss: 3\.\d\d at first, 3\.\d\d now", names[0])
    assert re.match(r"What comes next: \S+ .*\d %, ", names[1])
    for head, name in enumerate(names[2:6], 1):
        shares = [int(share) for share in re.findall(r"(\d+) %", name)]
        assert name.startswith(f"Attention of head {head}: r looks at ")
        assert len(shares) == 3
        assert 75 <= sum(shares) <= 100
    assert names[6] == "The value of the number over the steps"
    page.click(".one-name tbody tr:nth-child(2) td:nth-child(3)")  # a finger may hit any place of a row
    assert page.inner_text(".one-name b") == "“·m”"
    page.focus("input[type=range]")
    written = page.inner_text("[data-net=microgpt] tr:last-child td")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("[data-net=microgpt] output") == "0.6"
    assert page.inner_text("[data-net=microgpt] tr:last-child td") != written
    unnamed = "all => all.filter((e) => !(e.ariaLabel || e.innerText || e.labels?.[0]?.innerText)).length"
    assert page.eval_on_selector_all("section :is(button, input, select, canvas)", unnamed) == 0


def assert_sums(text):
    """Assert that a step of Adam is as it is written on the page, with four digits of each number."""
    found = dict(re.findall(r"^(?:gradient  )?(\S+) = (.*)$", text, re.M))
    g = float(found["g"])
    for name, share, term in (("m", 0.15, g), ("v", 0.01, g * g)):
        old, new = re.fullmatch(rf"{1 - share} · (\S+) \+ {share} g²? = (\S+)", found[name]).groups()
        limit = 1e-3 * max(abs(float(old)), abs(float(new)))
        assert abs((1 - share) * float(old) + share * term - float(new)) <= limit, (name, text)
    old, rate, new = map(float, re.fullmatch(r"(\S+) - (\S+) m̂ / √v̂ = (\S+)", found["w"]).groups())
    mean, square = [float(found[name].split()[-1]) for name in ("m̂", "v̂")]
    assert abs(old - rate * mean / square**0.5 - new) <= 2e-3 * abs(new), text


def test_nets_wait_for_a_reader_who_prefers_reduced_motion(visit):
    for net in build.NETS:
        page = visit(net, reduced_motion="reduce")
        wait_for(page, net, "Step 0")
        page.wait_for_timeout(200)
        assert page.inner_text(f"[data-net={net}] .bar span").startswith("Step 0")
        page.query_selector(f"[data-net={net}] button").click()
        wait_for(page, net, "Step [1-9]")


def test_readers_without_javascript_see_the_content_of_the_directive(visit):
    page = visit("spiral", java_script_enabled=False)
    assert page.inner_text("[data-net=spiral]") == "Spirals without JavaScript."
