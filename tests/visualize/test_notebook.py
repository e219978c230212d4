"""How things show themselves in a notebook: one is executed, in a kernel of its own."""

from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

SETUP = """
import caffelite as cl
x, y = cl.datasets.spiral(points_per_class=20, seed=0)
model = cl.MLP(2, [16, 3], seed=0)
loss, optimizer = cl.SoftmaxLoss(), cl.SGD(model.parameters(), lr=0.1)
history = model.fit(x, y, loss=loss, optimizer=optimizer, epochs=20, metrics=["accuracy"])
program = cl.capture(lambda x, y: loss(model(x), y), x, y)
"""
SHOWN = {
    "model": ("text/html", "Linear(2, 16)"),
    "model.summary()": ("text/html", "multiply-adds"),
    "history": ("image/svg+xml", "<svg"),
    "history.plot()": ("image/png", "iVBOR"),
    "cl.plots.weights(model)": ("image/png", "iVBOR"),
    "program": ("text/html", "matmul"),
    "program.profile(2)": ("text/html", "GFLOP/s"),
    "cl.graph(model(x))": ("image/svg+xml", "Linear(2, 16)"),
    "cl.inspect(model, x, y, loss=loss)": ("text/html", "gradient&#x27;s norm"),
}
BAR = "_ = model.fit(x, y, loss=loss, optimizer=optimizer, epochs=20, verbose=1)"


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """Return the outputs of each cell, by its source."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "MPLCONFIGDIR"):
            patch.setenv(name, str(home / name.lower()))
        notebook = nbformat.v4.new_notebook()
        notebook.cells = [nbformat.v4.new_code_cell(source) for source in (SETUP, *SHOWN, BAR)]
        nbclient.NotebookClient(notebook, timeout=60).execute()
    return {cell.source: cell.outputs for cell in notebook.cells}


pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.mark.parametrize("source", SHOWN)
def test_a_notebook_shows(cells, source):
    (output,) = cells[source]
    kind, text = SHOWN[source]
    assert output.output_type == "execute_result"
    assert text in output.data[kind]
    assert len([name for name in output.data if name != "text/plain"]) == 1
    assert "<script" not in output.data[kind]


def test_training_that_is_soon_over_shows_nothing(cells):
    assert cells[SETUP] == []


def test_a_bar_is_one_line_of_text_that_is_written_again(cells):
    assert {output.output_type for output in cells[BAR]} == {"stream"}
    text = "".join([output.text for output in cells[BAR]])
    assert text.count("\n") == 1
    assert "epoch 20/20" in text
