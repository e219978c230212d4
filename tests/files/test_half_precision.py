"""Files with arrays of float16 and bfloat16."""

import numpy as np
import pytest
import safetensors.numpy

import caffelite as cl
from caffelite.files.safetensors import File
from tests.conftest import classifier
from tests.tools import fuzz_files


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def test_bfloat16_is_read_as_float32(path):
    model = classifier(2, 3)
    halves = {"0.weight": np.arange(6, dtype=np.uint16).reshape(2, 3) + 0x3F80, "0.bias": np.full(3, 0xC049, np.uint16)}
    shapes = {"0.weight": ([2, 3], [0, 12]), "0.bias": ([3], [12, 18])}
    header = {name: {"dtype": "BF16", "shape": s, "data_offsets": place} for name, (s, place) in shapes.items()}
    path.write_bytes(fuzz_files.join_file(header, b"".join(x.tobytes() for x in halves.values())))
    state = model.load(path).state_dict()
    np.testing.assert_array_equal(state["0.weight"], 1 + np.arange(6).reshape(2, 3) / 128)
    np.testing.assert_array_equal(state["0.bias"], [-3.140625] * 3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_float16_is_read_exactly(dtype, path):
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    halves = {"0.weight": every[np.isfinite(every)].reshape(2, -1), "0.bias": np.full(31744, 0.1, np.float16)}
    safetensors.numpy.save_file(halves, path)
    state = cl.Model([cl.Linear(2, 31744)], dtype=dtype).load(path).state_dict()
    for name, values in halves.items():
        np.testing.assert_array_equal(state[name], values.astype(dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("half", ["F16", "BF16"])
def test_halves_in_a_file_with_a_structure_become_the_models_dtype(half, dtype, path):
    model = cl.Model([cl.Linear(2, 3), cl.BatchNorm(3)], dtype=dtype, seed=0)
    model.functions[0].weight.data = expected = np.arange(6).reshape(2, 3) / 4 - 1
    model.save(path)
    with File(path) as file:
        arrays, texts = file.arrays(file.specs), file.texts
    assert {x.dtype for x in arrays.values()} == {np.dtype(dtype)}
    header, contents = {"__metadata__": texts}, b""
    for name, array in arrays.items():
        upper_halves = (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        encoded = array.astype(np.float16).tobytes() if half == "F16" else upper_halves.tobytes()
        places = [len(contents), len(contents) + len(encoded)]
        header[name] = {"dtype": half, "shape": array.shape, "data_offsets": places}
        contents += encoded
    path.write_bytes(fuzz_files.join_file(header, contents))
    loaded = cl.load(path)
    assert loaded.dtype == dtype
    np.testing.assert_array_equal(loaded.functions[0].weight.data, expected)
    assert {name: x.dtype for name, x in loaded.state_dict().items()} == {name: x.dtype for name, x in arrays.items()}
