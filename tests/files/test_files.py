"""Files: what is saved is loaded as it was, by others too; what is no such file is refused before it costs anything."""

import contextlib
import copy
import json
import os
import pickle
import subprocess
import sys
import tracemalloc
import weakref
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import caffelite as cl
from caffelite import functions
from caffelite.core.arrays import FLOATS
from caffelite.core.modes import meta_init
from caffelite.files import structure
from caffelite.files.safetensors import DTYPES, max_header_bytes, write_arrays
from caffelite.files.state import make_texts, state_arrays
from caffelite.training import inputs
from tests.cases import FAMILIES, both_dtypes, make_params
from tests.cases.case import as_tuple
from tests.conftest import bits, classifier, train
from tests.files.conftest import assert_same_state
from tests.tools import fuzz_files

every_case = pytest.mark.parametrize("case", make_params("listed"))
some_cases = pytest.mark.parametrize(
    "case", [pytest.param(f.build(*x), id=f"{kind.__name__}-{x}") for kind, f in FAMILIES.items() for x in f.listed[:2]]
)
UNWRITABLE = (functions.Index, functions.Penalized)


class Scale(cl.Function):
    """A user's Function, with a parameter of its own."""

    def __init__(self, factor=2.0):
        self.factor = factor
        self.weight = cl.Tensor(np.full(1, factor, np.float32), requires_grad=True, name="weight")

    def parameters(self):
        return [self.weight]

    def forward(self, x):
        return x * self.weight.data

    def backward(self, dy):
        return dy * self.weight.data


class GatedNet(cl.Model):
    """A user's model, which keeps its size under another name."""

    def __init__(self, size, seed=None):
        super().__init__(seed=seed)
        self.f, self.g = cl.Linear(size, size), cl.MLP(size, [4, size])
        self.width = size

    def call(self, x):
        return self.f(x) * self.g(x).sigmoid()


class DescribedNet(GatedNet):
    """One that says what it was made with."""

    def arguments(self):
        return {"size": self.width}


# ---- round trips ----------------------------------------------------------------------------------------------------


@every_case
def test_every_function_is_made_again_with_its_arguments(case):
    function = case.make()
    if isinstance(function, UNWRITABLE):
        with pytest.raises(structure.UnwritableError):
            structure.describe(function)
        return
    entries = json.loads(structure.to_json(structure.describe(function)))
    other = structure.build(entries, {})
    assert type(other) is type(function)
    assert repr(other) == repr(function)
    with meta_init():
        blank = structure.build(entries, {})
    assert [p.shape for p in blank.parameters()] == [p.shape for p in function.parameters()]
    assert {k: x.shape for k, x in blank.buffers().items()} == {k: x.shape for k, x in function.buffers().items()}


@some_cases
@both_dtypes
def test_a_model_of_every_function_comes_back_to_the_bit(case, dtype, path):
    function = case.function(dtype)
    if isinstance(function, UNWRITABLE) or len(case.inputs(dtype)) > 1 or case.inputs(dtype)[0].ndim == 0:
        return
    try:
        model = cl.Model([function], seed=3, dtype=dtype)
    except TypeError:
        return  # an operator that takes more than one input
    model.save(path)
    other = cl.load(path)
    assert (repr(other), other.dtype) == (repr(model), dtype)
    assert_same_state(model, other)
    (x,) = case.inputs(dtype)
    if x.size:
        for y, same in zip(as_tuple(other.predict(x)), as_tuple(model.predict(x)), strict=True):
            assert y.tobytes() == same.tobytes()


def test_a_loaded_model_trains_like_the_saved_one(path):
    (x, y), _ = cl.datasets.digits()
    layers = [cl.Flatten(), cl.Linear(64, 20), cl.BatchNorm(20), cl.ReLU(), cl.Dropout(0.2), cl.Linear(20, 10)]
    model = cl.Model(layers, seed=0)

    def fit(model):
        optimizer = cl.Adam(model.parameters())
        model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=2, seed=1, verbose=0)

    fit(model)
    model.save(path)
    other = cl.load(path)
    fit(model)
    fit(other)
    assert_same_state(model, other)


def test_shared_functions_stay_shared_and_models_stay_nested(path):
    layer = cl.Linear(3, 3, initializer=cl.initializers.normal(0.1))
    inner = cl.Model([layer, cl.Tanh()])
    model = cl.Model([layer, inner, cl.Residual(inner), cl.Parallel([inner, layer], axis=1)], seed=0)
    model.save(path)
    other = cl.load(path)
    a, b, c, d = other.functions
    assert b.functions[0] is a
    assert c.function is b
    assert d.functions == [b, a]
    assert a.initializer.std == 0.1
    assert_same_state(model, other)


def test_custom_classes_and_initializers_are_given_by_name(path):
    def halves(shape, rng):
        return np.full(shape, 0.5)

    model = cl.Model([cl.Linear(3, 3, initializer=halves), Scale(5.0), DescribedNet(3), cl.Linear(3, 2)], seed=0)
    model.save(path)
    custom = {"halves": halves, "Scale": Scale, "DescribedNet": DescribedNet}
    other = cl.load(path, custom=custom)
    assert [type(f) for f in other.functions] == [cl.Linear, Scale, DescribedNet, cl.Linear]
    assert other.functions[1].factor == 5.0
    assert_same_state(model, other)
    for name in custom:
        with pytest.raises(ValueError, match=rf"there is a {name} in it, which you have to give: load\(…, custom="):
            cl.load(path, custom={other: x for other, x in custom.items() if other != name})
    with pytest.raises(TypeError, match="custom: expected classes by name"):
        cl.load(path, custom={"Scale": 1})
    with pytest.raises(TypeError, match="custom: expected classes by name"):
        cl.load(path, custom=Scale)


def test_frozen_parameters_stay_frozen_in_a_file(path):
    model = classifier(2, 3, 3)
    model.functions[0].requires_grad = False
    model.functions[-1].bias.requires_grad = False
    model.save(path)
    frozen = [not p.requires_grad for p in cl.load(path).parameters()]
    assert frozen == [True, True, False, True]
    other = classifier(2, 3, 3)
    assert other.load(path).requires_grad  # which takes values alone
    assert all(p.requires_grad for p in other.parameters())


@pytest.mark.parametrize("frozen", ["1", '{"0.weight": 1}', "[1]", "[[]]", '["1.weight"]', "[", '"0.weight"'])
def test_a_list_of_frozen_parameters_that_is_wrong_raises(frozen, path):
    model = classifier(2, 3)
    write_arrays(path, state_arrays(model), make_texts(model) | {"caffelite.frozen": frozen})
    assert_refused(path, "frozen|JSON|Expecting")


def test_a_name_of_caffelites_does_not_stand_for_a_users_class(path):
    other = type("ReLU", (Scale,), {})
    cl.Model([other()]).save(path)
    with pytest.raises(ValueError, match="there is a ReLU in it, which you have to give"):
        cl.load(path)
    assert type(cl.load(path, custom={"ReLU": other}).functions[0]) is other


class Starting(cl.Model):
    """One that is made with an array, and does not keep it."""

    def __init__(self, weight, seed=None):
        super().__init__(seed=seed)
        self.linear = cl.Linear(*weight.shape)
        self.linear.weight.data = weight

    def call(self, x):
        return self.linear(x)


def test_a_model_that_cannot_say_how_it_was_made_warns_and_saves_its_parameters(path):
    model = Starting(np.ones((2, 3)))
    with pytest.warns(
        UserWarning, match=r"can't make the model from it: Starting.__init__ takes weight, .* `arguments\(\)`"
    ):
        model.save(path)
    with pytest.raises(ValueError, match=r"no structure \(Starting.__init__ takes weight, and .* needs `arguments"):
        cl.load(path, custom={"Starting": Starting})
    other = Starting(np.zeros((2, 3)))
    assert other.load(path) is other
    assert_same_state(model, other)


class Mentions(cl.Model):
    """One whose layers have the names of its arguments."""

    def __init__(self, words, size=16, scale=1, bias=True, body=None, seed=None):
        super().__init__(seed=seed)
        self.words = [cl.Embedding(words, size), body or cl.ReLU()]
        self.size = size * 2
        self.bias = cl.Linear(size, 2, bias)
        self.scale = scale

    def call(self, words):
        return self.scale * self.bias(self.words[1](self.words[0](words)))


@pytest.mark.parametrize(
    "copied", [lambda model: model, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))]
)
@pytest.mark.parametrize("bias", [True, False])
def test_a_model_is_made_again_with_what_it_was_given_if_no_attribute_has_it(copied, bias, path):
    model = copied(Mentions(10, size=4, scale=2, bias=bias, body=cl.Tanh(), seed=0))
    model.save(path)
    other = cl.load(path, custom={"Mentions": Mentions})
    assert_same_state(model, other)
    assert repr(other) == repr(model)
    assert {**other.arguments(), "body": repr(other.arguments()["body"])} == {
        "words": 10,
        "size": 4,
        "scale": 2,
        "bias": bias,
        "body": "Tanh()",
    }


def test_a_changed_attribute_is_saved_as_its_argument(path):
    model = Mentions(10, scale=2, seed=0)
    model.scale = 3
    model.save(path)
    assert cl.load(path, custom={"Mentions": Mentions}).scale == 3


def test_the_arguments_of_a_model_do_not_keep_its_data_alive():
    weight = np.ones((2, 3))
    model, alive = Starting(weight), weakref.ref(weight)
    del weight
    assert alive() is None
    assert model.linear.weight.shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("axis", float("nan"), "no structure .Softmax's axis, float, is not a value of JSON"),
        ("axis", cl.functions.Index(slice(2)), "no structure .an Index takes slices and arrays, which are not JSON"),
        ("axis", {"#": 1}, "no structure .Softmax's axis, dict, is not a value of JSON"),
        ("axis", np.ones(2), "no structure .Softmax's axis, ndarray, is not a value of JSON"),
        ("axis", lambda: 1, "there is a <lambda> in it, which you have to give"),
    ],
)
def test_attributes_that_are_not_json_raise_when_the_model_is_loaded(name, value, message, path):
    softmax = cl.Softmax()
    setattr(softmax, name, value)
    with (
        pytest.warns(UserWarning, match="can't make the model")
        if "no structure" in message
        else contextlib.nullcontext()
    ):
        cl.Model([softmax]).save(path)
    with pytest.raises(ValueError, match=message):
        cl.load(path)


def test_a_loop_of_functions_is_not_written():
    residual = cl.Residual(cl.ReLU())
    residual.function = residual
    with pytest.raises(structure.UnwritableError, match="Residual is among its own arguments"):
        structure.describe(residual)


# ---- state alone ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"0.weight": (2, 3)}, "has no 0.bias, which the model has"),
        ({"0.weight": (2, 3), "0.bias": (3,), "1.bias": (3,)}, "has 1.bias, which the model does not have"),
        ({"0.weight": (3, 2), "0.bias": (3,)}, r"0.weight has shape \(3, 2\); the model's has \(2, 3\)"),
    ],
)
def test_model_load_refuses_other_names_and_shapes_before_it_writes(state, message, path):
    model = cl.Model([cl.Linear(2, 3)], seed=0)
    before = bits(model)
    safetensors.numpy.save_file({name: np.ones(shape, np.float32) for name, shape in state.items()}, path)
    with pytest.raises(ValueError, match=message):
        model.load(path)
    assert bits(model) == before


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.uint8])
def test_model_load_refuses_other_kinds_of_numbers(dtype, path):
    model = cl.Model([cl.Linear(2, 3, bias=False)], seed=0)
    safetensors.numpy.save_file({"0.weight": np.ones((2, 3), dtype)}, path)
    with pytest.raises(ValueError, match=f"0.weight is {np.dtype(dtype)}; the model's is float32"):
        model.load(path)


def test_model_load_converts_floats_and_load_does_not(path):
    model = cl.Model([cl.Linear(2, 3)], seed=0, dtype=np.float64)
    model.save(path)
    single = cl.Model([cl.Linear(2, 3)])
    single.load(path)
    assert single.functions[0].weight.data.tobytes() == model.functions[0].weight.data.astype(np.float32).tobytes()
    content = path.read_bytes()
    path.write_bytes(content.replace(b'\\"dtype\\":\\"float64\\"', b'\\"dtype\\":\\"float32\\"'))
    with pytest.raises(ValueError, match=r"0.weight is float64; the model's is float32"):
        cl.load(path)


# ---- others ---------------------------------------------------------------------------------------------------------


def test_the_safetensors_package_reads_what_is_saved(path):
    model = cl.Model([cl.Linear(4, 3), cl.BatchNorm(3), cl.Dropout()], seed=0)
    model.save(str(path))
    theirs = safetensors.numpy.load_file(path)
    mine = model.state_dict()
    assert theirs.keys() == mine.keys()
    for name, array in mine.items():
        assert theirs[name].dtype == array.dtype
        np.testing.assert_array_equal(theirs[name], array)


def test_pytorch_reads_what_is_saved_and_what_it_saves_is_loaded(path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    model = cl.Model([cl.Conv2d(2, 4, 3), cl.ReLU(), cl.Conv2d(4, 2, 1)], seed=0)
    model.save(path)
    theirs = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 1))
    theirs.load_state_dict(load_file(path))
    x = np.random.default_rng(0).normal(size=(2, 2, 6, 6)).astype(np.float32)
    np.testing.assert_allclose(theirs(torch.tensor(x)).detach().numpy(), model.predict(x), 1e-4, 1e-5)
    save_file({name: 2 * p for name, p in theirs.state_dict().items()}, path)
    before = model.state_dict()
    model.load(path)
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(array, 2 * before[name])
    with pytest.raises(ValueError, match="has parameters and no structure"):
        cl.load(path)


# ---- what files hold ------------------------------------------------------------------------------------------------


class Means(cl.Function):
    """y = x, and means in a dict, a list and a tuple of a list."""

    def __init__(self, size):
        self.size = size
        self.named, self.listed, self.nested = {"a": np.ones(size)}, [np.full(size, 2.0)], ([np.full(size, 3.0)], 4)
        self.named["itself"] = self.named

    def buffers(self):
        return {"a": self.named["a"], "b": self.listed[0], "c": self.nested[0][0]}

    def forward(self, x):
        return x

    def backward(self, dy):
        return dy


@both_dtypes
def test_buffers_in_lists_and_dicts_have_the_models_dtype_and_come_back(dtype, path):
    means = Means(3)
    listed = means.listed
    model = cl.Model([means, cl.Linear(3, 2)], seed=0, dtype=dtype)
    assert means.listed is listed
    assert {array.dtype for array in model.buffers().values()} == {np.dtype(dtype)}
    model.save(path)
    assert_same_state(cl.load(path, custom={"Means": Means}), model)


class Scalars(cl.Function):
    """y = t x, and a number of each dtype that a file has."""

    def __init__(self):
        self.t = cl.Tensor(np.float32(2.0), requires_grad=True, name="t")
        self.numbers = {str(dtype): np.array(1, dtype) for dtype in DTYPES.values() if dtype not in FLOATS}

    def arguments(self):
        return {}

    def parameters(self):
        return [self.t]

    def buffers(self):
        return dict(self.numbers)

    def forward(self, x):
        self.x = x
        return x * self.t.data

    def backward(self, dy):
        self.t.add_grad((dy * self.x).sum())
        return dy * self.t.data


@pytest.mark.filterwarnings("ignore::caffelite.NotRecorded")
def test_numbers_without_axes_stay_so_in_files(path):
    model = cl.Model([cl.Linear(2, 2), Scalars()], seed=0)
    train(model, np.ones((2, 2)), [0, 1], callbacks=[cl.callbacks.Checkpoint(path)])
    assert safetensors.numpy.load_file(path)["1.t"].shape == ()
    assert_same_state(cl.load(path, custom={"Scalars": Scalars}), model)
    again = cl.Model([cl.Linear(2, 2), Scalars()], seed=0)
    assert_same_state(again.load(path), model)
    train(cl.Model([cl.Linear(2, 2), Scalars()], seed=0), np.ones((2, 2)), [0, 1], epochs=2, resume=path)
    safetensors.numpy.save_file(model.state_dict(), path)
    assert_same_state(again.load(path), model)


def test_names_of_columns_may_be_long_and_many(path):
    names = [f"column number {i:05}, with a name that is long" for i in range(40_000)]
    model = cl.Model([cl.Linear(len(names), 1)], seed=0)
    inputs.remember_columns(model, [names])
    model.save(path)
    assert cl.load(path)._model_state.column_names == [names]
    assert_same_state(classifier(len(names), 1, seed=1).load(path), model)
    assert safetensors.numpy.load_file(path)["text:caffelite.columns"].dtype == np.uint8


class NamedParameters(cl.Function):
    """y = x, and parameters with names of so many characters in all."""

    def __init__(self, characters):
        self.named = {f"{i}" * (characters // 4): cl.Tensor(np.ones(1), requires_grad=True) for i in range(4)}

    def forward(self, x):
        return x

    def backward(self, dy):
        return dy


def test_names_that_no_file_can_have_raise_before_the_first_step(path):
    model = cl.Model([cl.Linear(2, 2), NamedParameters(2**21)], seed=0)
    before = bits(model)
    with pytest.raises(ValueError, match="6 arrays with their names and structure are too many"):
        train(model, np.ones((2, 2)), [0, 1], callbacks=[cl.callbacks.Checkpoint(path)])
    assert bits(model) == before


@pytest.mark.filterwarnings("ignore:.* gets no gradient:caffelite.TrainingWarning")
def test_a_checkpoint_with_names_that_no_file_can_have_does_not_end_the_training(path):
    """EarlyStopping keeps all parameters once more."""
    model, stopping = (
        cl.Model([cl.Linear(2, 2), NamedParameters(2**20 - 2**12)], seed=0),
        cl.callbacks.EarlyStopping("loss"),
    )
    with pytest.warns(RuntimeWarning, match="no checkpoint was saved: .* too many; the training continues"):
        history = train(
            model, np.ones((2, 2)), [0, 1], epochs=2, callbacks=[cl.callbacks.Checkpoint(path), stopping]
        )  # fmt: skip
    assert history.epochs == 2


def test_a_text_of_more_values_than_the_file_is_large_is_not_read(path):
    text = b"[" + b"[]," * 10**6 + b"[]]"
    safetensors.numpy.save_file({"text:caffelite.structure": np.frombuffer(text, np.uint8)}, path)
    assert_refused(path, "has too many values")
    safetensors.numpy.save_file({"text:caffelite.structure": np.full(9, 255, np.uint8)}, path)
    assert_refused(path, "a text is not UTF-8")


def test_an_array_that_no_file_can_hold_is_named(path):
    with pytest.raises(ValueError, match="z is complex128; a file has F64"):
        write_arrays(path, {"z": np.ones(2, complex)}, {})


def test_a_file_of_pytorchs_says_how_to_copy_it(path):
    model = cl.Model([cl.Linear(4, 4)], seed=0)
    before = model.state_dict()
    safetensors.numpy.save_file(before, path, {"format": "pt"})
    for load in (cl.load, model.load):
        with pytest.raises(ValueError, match=r"is a file of PyTorch.*caffelite.pytorch.load_state_dict"):
            load(path)
    assert_same_state(model, cl.Model([cl.Linear(4, 4)], seed=0))


# ---- hostile files --------------------------------------------------------------------------------------------------


def test_mutated_files_raise_without_doing_anything():
    count = os.environ.get("CAFFELITE_MUTATIONS", "1500")
    script = Path(fuzz_files.__file__)
    done = subprocess.run([sys.executable, script, count], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[:5000] + done.stderr
    assert f"{count} files, seed 0: 0 bad answers" in done.stdout


def with_structure(path, entries, arrays=None):
    """Write a file with this structure."""
    text = entries if isinstance(entries, str) else json.dumps(entries)
    arrays = {"0.weight": np.ones((2, 3), np.float32)} if arrays is None else arrays
    safetensors.numpy.save_file(arrays, path, {"caffelite.structure": text})


def assert_refused(path, message):
    """Check that loading raises an error, and takes less memory than twice the file and what a short header takes,
    nested as deep as
    Python goes."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=message):
            cl.load(path)
        assert tracemalloc.get_traced_memory()[1] < 2 * path.stat().st_size + 2**22
    finally:
        tracemalloc.stop()


@some_cases
def test_no_size_in_a_structure_costs_memory(case, path):
    try:
        (*entries, last) = structure.describe(case.make())
    except structure.UnwritableError:
        return
    for name, value in last["arguments"].items():
        for forged in (10**6, 10**9, 10**30, [10**9, 10**9], -1):
            if type(value) is int or isinstance(value, list):
                entry = {**last, "arguments": {**last["arguments"], name: forged}}
                whole = {"name": "Model", "arguments": {"functions": [{"#": len(entries)}], "dtype": "float32"}}
                with_structure(path, structure.to_json([*entries, entry, whole]))
                assert_refused(path, ".")


LINEAR = {"in_features": 2, "out_features": 3, "bias": False, "initializer": None}


def model_entries(*entries, **arguments):
    """Return the entries of a Model of these Functions."""
    functions = [{"#": i} for i in range(len(entries))]
    return [*entries, {"name": "Model", "arguments": {"functions": functions, "dtype": "float32", **arguments}}]


def linear(**arguments):
    return {"name": "Linear", "arguments": {**LINEAR, **arguments}}


def test_the_structure_that_the_others_differ_from_is_good(path):
    with_structure(path, structure.to_json(model_entries(linear())))
    assert repr(cl.load(path)) == "Model([Linear(2, 3, bias=False)])"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("{", "Expecting property name"),
        ("[" * 10**5, "nested too deeply"),
        ("1", "a structure is a list"),
        ("[]", "a structure is a list"),
        ("[1]", "entry 0 of the structure has no name"),
        ('[{"name": "Model", "name": "Model"}]', "a name comes twice"),
        ('[{"name": "Dropout", "arguments": {"p": NaN}}]', "NaN is not a number in JSON"),
        ('[{"name": "Dropout", "arguments": {"p": 1e999}}]', "Dropout can't be made"),
        ('[{"name": "Dropout", "arguments": {"p": ' + "9" * 5000 + "}}]", "Exceeds the limit|4300|can't be made"),
        (model_entries(linear(in_features=10**9, out_features=10**9)), "can't be made|has shape"),
        (model_entries(linear(in_features=True)), "in_features must be an integer"),
        (model_entries(linear(in_features=2.0)), "in_features must be an integer"),
        (model_entries(linear(in_features=-2)), "in_features must be at least 1"),
        (model_entries(linear(bias=0)), "has another structure"),
        (model_entries(linear(more=1)), "has another structure"),
        (model_entries(linear(bias=True)), "has no 0.bias, which the model has"),
        (model_entries(linear(initializer="he_normal")), "initializer: expected a callable"),
        (
            model_entries({"name": "eval", "arguments": {"source": "1"}}),
            "there is a eval in it, which caffelite does not have",
        ),
        (
            model_entries({"name": "os.system", "arguments": {"command": "true"}}),
            "os.system in it, which caffelite does not have",
        ),
        (model_entries({"custom": "Linear", "arguments": LINEAR}), r"Linear in it, which you have to give"),
        (model_entries({"name": "Loss", "arguments": {}}), "there is a Loss in it, which caffelite does not have"),
        (
            model_entries({"name": "he_normal", "arguments": {"shape": [2], "rng": None}}),
            "is a function, but its entry has arguments",
        ),
        (model_entries({"name": "he_normal"}), "Model.add takes a Function"),
        (model_entries({"name": "Linear"}), "is a class, but its entry has no arguments"),
        (model_entries(linear(), dtype="f4,f4"), "Model has no dtype 'f4,f4'"),
        (model_entries(linear(), dtype="float16"), "Model has no dtype 'float16'"),
        ([linear()], "expected a Model, but its structure is of a Linear"),
        (model_entries({"name": "Index", "arguments": {"index": 1}}), "structure makes has no structure|can't be made"),
        (model_entries(linear(), functions=[{"#": 1}]), "refers to an entry that does not come before it"),
        (model_entries(linear(), functions=[{"#": True}]), "refers to an entry that does not come before it"),
        (model_entries(linear(), functions=[]), "entries that no other entry refers to"),
        ([{"name": "ReLU", "arguments": {}, "module": "os"}], "has other keys than name and arguments"),
        ([{"name": ["Model"], "arguments": {}}], "the name of entry 0 of the structure is not a text"),
    ],
)
def test_a_structure_that_caffelite_would_not_write_raises(entries, message, path):
    with_structure(path, entries if isinstance(entries, str) else structure.to_json(entries))
    assert_refused(path, message)


@pytest.mark.parametrize("kind", ["Model", "Parallel"])
def test_functions_in_functions_cannot_be_multiplied_without_end(kind, path):
    entries = [{"name": "ReLU", "arguments": {}}]
    for i in range(40):
        functions = {"functions": [{"#": i}, {"#": i}]}
        entries.append({"name": kind, "arguments": {**functions, **({"axis": -1} if kind == "Parallel" else {})}})
    with_structure(path, entries)
    assert_refused(path, "more than 10,000 Functions")
    entries = [{"name": "ReLU", "arguments": {}}]
    entries += [{"name": "Residual", "arguments": {"function": {"#": i}}} for i in range(3000)]
    with_structure(path, entries)
    assert_refused(path, "more than 50 deep")


def test_a_structure_that_could_not_be_read_is_not_written(path):
    deep = cl.ReLU()
    for _ in range(60):
        deep = cl.Residual(deep)
    model = cl.Model([cl.Linear(2, 2), deep])
    with pytest.warns(UserWarning, match="can't make the model from it: .*more than 50 deep"):
        model.save(path)
    with pytest.raises(ValueError, match=r"no structure .*more than 50 deep"):
        cl.load(path)
    assert_same_state(model, model.load(path))


def test_a_header_longer_than_any_of_caffelites_is_not_read(path):
    with open(path, "wb") as file:  # sparse
        file.write((10**8).to_bytes(8, "little") + b'{"__metadata__":{"a":"')
        file.truncate(10**8 + 8)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="a header of 100000000 bytes, in a file of 100000008, is too long"):
            cl.load(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    with pytest.raises(ValueError, match="too many"):
        write_arrays(path, {}, {"text": "x" * 2 * max_header_bytes(0)})


@pytest.mark.parametrize("content", [b"", b"\x80\x04K\x01.", b"PK\x03\x04" + bytes(100), bytes(8), b"\xff" * 99])
def test_other_kinds_of_files_raise(content, path):
    path.write_bytes(content)
    for load in (cl.load, classifier(2, 3).load):
        with pytest.raises(ValueError, match=r"model.safetensors: "):
            load(path)


def test_a_path_that_cannot_be_read_is_an_oserror(tmp_path):
    for load in (cl.load, classifier(2, 3).load):
        with pytest.raises(FileNotFoundError):
            load(tmp_path / "missing")
        with pytest.raises(IsADirectoryError):
            load(tmp_path)
    with pytest.raises(ValueError, match="expected a file"):
        cl.load(os.devnull)


@pytest.mark.parametrize("dtype", ["F8_E4M3", "C64"])
def test_a_dtype_that_numpy_has_not_is_named(dtype, path):
    size = {"F8_E4M3": 1, "C64": 8}[dtype]
    header = {"0.weight": {"dtype": dtype, "shape": [2], "data_offsets": [0, 2 * size]}}
    path.write_bytes(fuzz_files.join_file(header, bytes(2 * size)))
    with pytest.raises(ValueError, match=f"0.weight is of dtype {dtype}"):
        classifier(2, 3).load(path)
