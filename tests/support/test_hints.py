"""What caffelite says of the names that Keras and PyTorch have."""

import inspect
import pickle
import re
import subprocess
import sys
import traceback

import numpy as np
import pytest

import caffelite as cl
from caffelite._support.hints import ARGUMENTS, ATTRIBUTES, NAMES, REQUIRED

MODEL = cl.Model([cl.Linear(3, 2)], seed=0)
LOSS = cl.SoftmaxLoss()
SGD = cl.SGD(MODEL.parameters(), lr=0.1)
X, Y = np.ones((4, 3), "float32"), np.array([0, 1, 1, 0])


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("Dense", "cl.Linear"),
        ("SparseCategoricalCrossentropy", "cl.SoftmaxLoss"),
        ("BCEWithLogitsLoss", "cl.SigmoidLoss"),
        ("BCELoss", "cl.SigmoidLoss"),
        ("NLLLoss", "cl.SoftmaxLoss"),
        ("cross_entropy", "cl.SoftmaxLoss"),
        ("binary_cross_entropy_with_logits", "cl.SigmoidLoss"),
        ("mse_loss", "cl.MSELoss"),
        ("spmm", "a @ b"),
        ("GlobalAveragePooling1D", r"cl.GlobalAvgPool\(axis=1\)"),
        ("Sequential", "cl.Model"),
        ("nn", "cl.Linear"),
        ("optim", "cl.SGD"),
        ("Module", "cl.Model"),
        ("keras", "cl.Model"),
        ("tensor", "cl.Tensor"),
        ("Conv2D", "cl.Conv2d"),
        ("MaxPooling2D", "cl.MaxPool2d"),
        ("BatchNormalization", "cl.BatchNorm"),
        ("BatchNorm2d", "cl.BatchNorm"),
        ("LayerNormalization", "cl.LayerNorm"),
        ("L1Loss", "cl.MAELoss"),
        ("SmoothL1Loss", "cl.HuberLoss"),
        ("RMSprop", "cl.RMSProp"),
        ("utils", r"cl.Model\(seed=0\), and integer labels without to_categorical"),
        ("timeseries_dataset_from_array", r"cl.Windows\(.*whose y follows the window: do not shift it"),
        ("Input", r"call\(self, a, b\)"),
        ("Precision", r"metrics="),
        ("ExponentialDecay", "cl.schedules.exponential"),
        ("PolynomialDecay", "cl.schedules"),
        ("PiecewiseConstantDecay", "a callback that sets optimizer.lr"),
        ("CosineDecayRestarts", "a callback that sets optimizer.lr"),
        ("TerminateOnNaN", "cl.TrainingDiverged"),
        ("BackupAndRestore", "cl.callbacks.Checkpoint"),
        ("clone_model", "copy.deepcopy"),
        ("Subtract", "operators"),
        ("GaussianDropout", "cl.Dropout"),
        ("Permute", r"cl.functions.Transpose\(0, 2, 1\)"),
    ],
)
def test_a_name_of_keras_or_pytorch_is_an_error_that_says_caffelites(name, here):
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'; caffelite has .*{here}"):
        getattr(cl, name)


@pytest.mark.parametrize(("name", "here"), [("Relu", "ReLU"), ("RELU", "ReLU"), ("linear", "Linear"), ("rElu", "relu")])
def test_a_name_in_other_letters_is_an_error_that_says_caffelites(name, here):
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'; caffelite has cl\.{here}$") as caught:
        getattr(cl, name)
    printed = "".join(traceback.format_exception(caught.value))
    assert "Did you mean" not in printed  # Python's own guess would be another one


@pytest.mark.parametrize(
    ("name", "here"),
    [("ModelCheckpoint", "Checkpoint"), ("CSVLogger", "CSVLog"), ("earlystopping", "EarlyStopping")],
)
def test_a_callback_of_keras_is_an_error_that_says_caffelites(name, here):
    with pytest.raises(AttributeError, match=rf"'{name}'; caffelite has cl\.callbacks\.{here}$"):
        getattr(cl.callbacks, name)


@pytest.mark.parametrize("module", [cl, cl.callbacks])
def test_other_names_are_plain_errors(module):
    with pytest.raises(AttributeError, match=r"^module 'caffelite[.a-z]*' has no attribute 'nonsense'$"):
        _ = module.nonsense


@pytest.mark.parametrize("name", NAMES)
def test_a_hint_is_for_what_is_not_here_and_names_what_is(name):
    assert name not in cl.__all__
    for path in re.findall(r"cl\.(\w+(?:\.\w+)*)", NAMES[name]):
        found = cl
        for part in path.split("."):
            found = getattr(found, part)


def test_hints_are_not_imported_before_somebody_needs_one():
    code = "import sys, caffelite; print('caffelite._support.hints' in sys.modules, hasattr(caffelite, 'nn'))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["False", "False"]


@pytest.mark.parametrize(
    ("make", "here"),
    [
        (lambda: cl.GRU(3, 4, num_layers=2), "layers=2"),
        (lambda: cl.LSTM(input_size=3, hidden=4), "in_features="),
        (lambda: cl.LSTM(3, 4, return_sequences=True), "sequences=True"),
        (lambda: cl.Embedding(10, 4, padding_idx=0), "masks of attention"),
        (lambda: cl.TransformerBlock(8, 2, norm_first=True), "the norm comes first"),
        (lambda: cl.MultiHeadAttention(8, num_heads=2), "heads="),
        (lambda: cl.Conv2d(3, 4, 3, strides=2), "stride="),
        (lambda: cl.MaxPool2d(pool_size=2), "kernel_size="),
        (lambda: cl.Linear(3, 4, activation="relu"), r"cl\.ReLU"),
        (lambda: cl.BatchNorm(3, epsilon=1e-3), "eps="),
        (lambda: cl.Dropout(rate=0.5), "p="),
        (lambda: cl.Linear(units=10), r"the size of the input first, such as cl\.Linear\(inputs, 10\)"),
        (
            lambda: cl.Conv2d(filters=16, kernel_size=3),
            r"the channels of the input first, such as cl\.Conv2d\(inputs, 16,",
        ),
        (lambda: cl.LSTM(3, 4, activation="relu"), "recurrent layers always have tanh and sigmoid"),
        (lambda: cl.GRU(3, 4, stateful=True), r"gru\(x, h0\)"),
        (
            lambda: cl.Conv2d(3, 4, 3, kernel_regularizer="l2"),
            r"cl\.Penalized\(loss, parameters, l2=…\), or weight_decay",
        ),
        (lambda: cl.Conv2d(3, 4, 3, data_format="channels_last"), "channels first"),
        (lambda: cl.Linear(3, 4, bias_initializer="zeros"), "biases begin at 0"),
        (lambda: cl.BatchNorm(3, center=False), "scale and shift always"),
        (lambda: cl.SoftmaxLoss(from_logits=True), "scores as inputs"),
        (lambda: cl.Model(inputs=1, outputs=2), r"a subclass of cl\.Model that writes call\(self, a, b\)"),
        (lambda: cl.Adam([], use_ema=True), "AverageWeights"),
        (lambda: cl.Adam([], gradient_accumulation_steps=4), "accumulate=4"),
        (lambda: cl.callbacks.Checkpoint("net", save_freq=2), "every="),
        (lambda: cl.SGD([], learning_rate=0.1), "lr="),
        (lambda: cl.Adam([], lr=0.1, beta_1=0.9), "betas="),
        (lambda: cl.Model([cl.ReLU()], name="net"), "names of attributes"),
        (lambda: cl.callbacks.EarlyStopping(restore_best_weights=True), "restore_best=True"),
        (lambda: cl.callbacks.ReduceLROnPlateau(cooldown=2), "only monitor, factor"),
        (lambda: cl.callbacks.TensorBoard(log_dir="logs"), "folder="),
        (lambda: cl.callbacks.Checkpoint("net", save_best_only=True), "monitor='val_loss'"),
        (lambda: MODEL.fit(X, Y, loss=LOSS, optimizer=SGD, steps_per_epoch=5), "itertools.islice"),
        (lambda: MODEL.fit(X, Y, loss=LOSS, optimizer=SGD, initial_epoch=5), "resume=path"),
        (lambda: MODEL.evaluate(X, Y, loss=LOSS, verbose=0), "verbose only in fit"),
        (lambda: MODEL.evaluate(X, Y, loss=LOSS, return_dict=True), "a dict"),
        (lambda: cl.Model([cl.Linear(3, 4)])(cl.Tensor([[1, 2, 3]]), training=True), r"cl\.inference"),
        (lambda: cl.Model([cl.GRU(3, 4)])(cl.Tensor([[[1, 2, 3]]]), lengths=[1]), "call takes x and lengths"),
    ],
)
def test_an_argument_of_keras_or_pytorch_is_an_error_that_says_caffelites(make, here):
    with pytest.raises(TypeError, match=rf"got an unexpected keyword argument '\w+'; caffelite has .*{here}"):
        make()


@pytest.mark.parametrize(
    ("make", "here"),
    [
        (lambda: MODEL.fit(X, Y, loss=LOSS, optimizer=SGD, epoch=5), "epochs"),
        (lambda: MODEL.evaluate(X, Y, loss=LOSS, metric=["accuracy"]), "metrics"),
        (lambda: cl.SGD(MODEL.parameters(), lr=0.1, momentun=0.9), "momentum"),
        (lambda: cl.GRU(3, 4, layer=2), "layers"),
        (lambda: cl.DataGenerator(X, Y, batchsize=2), "batch_size"),
    ],
)
def test_an_argument_that_is_almost_right_is_an_error_that_says_the_right_one(make, here):
    with pytest.raises(TypeError, match=rf"got an unexpected keyword argument '\w+'; did you mean '{here}'\?$"):
        make()


def test_fit_without_a_loss_or_optimizer_raises_and_suggests_one():
    loss = r"; give loss=cl\.SoftmaxLoss\(\) for classes or loss=cl\.MSELoss\(\) for numbers"
    with pytest.raises(TypeError, match=rf"missing 1 required .* 'loss'{loss}$"):
        MODEL.evaluate(X, Y)
    with pytest.raises(TypeError, match=rf"{loss}, and optimizer=cl\.Adam\(model\.parameters\(\)\)$"):
        MODEL.fit(X, Y)


@pytest.mark.parametrize(
    ("make", "here"),
    [
        (lambda: cl.Linear(10), r"the size of the input first, such as cl\.Linear\(inputs, 10\)"),
        (lambda: cl.LSTM(32), r"the size of the input first, such as cl\.LSTM\(inputs, 32\)"),
        (lambda: cl.Conv2d(16, 3), r"a kernel size, such as cl\.Conv2d\(inputs, 16, 3\)"),
        (lambda: cl.Adam(lr=0.1), r"the parameters, such as cl\.Adam\(model\.parameters\(\)\)"),
    ],
)
def test_an_argument_that_keras_does_not_take_is_an_error_with_an_example(make, here):
    with pytest.raises(TypeError, match=rf"missing 1 required positional argument: '\w+'; give {here}"):
        make()


@pytest.mark.parametrize("argument", [{"widht": 3}, {"self": 3}])
def test_other_arguments_are_plain_errors(argument):
    with pytest.raises(TypeError) as caught:
        cl.Linear(3, 4, **argument)
    assert "caffelite has" not in str(caught.value)


def test_errors_from_inside_of_a_constructor_stay_as_they_are():
    def initializer(shape, rng):
        return cl.GRU(3, 4, num_layers=2)

    with pytest.raises(TypeError, match=r"'num_layers'; caffelite has layers=2$"):
        cl.Linear(3, 4, initializer=initializer)


@pytest.mark.parametrize("hint", [*ARGUMENTS.values(), *ATTRIBUTES.values(), *REQUIRED.values()])
def test_a_hint_names_what_is_here(hint):
    for path in re.findall(r"cl\.(\w+(?:\.\w+)*)", hint):
        found = cl
        for part in path.split("."):
            assert hasattr(found, part), path
            found = getattr(found, part)


@pytest.mark.parametrize("kind", [cl.Linear, cl.Conv2d, cl.MaxPool2d, cl.GRU, cl.Embedding, cl.SGD, cl.Model])
def test_signatures_are_those_that_were_written(kind):
    assert "options" not in inspect.signature(kind).parameters
    assert "epochs" in inspect.signature(cl.Model.fit).parameters
    assert "hinting" not in kind.__init__.__qualname__


# ---- attributes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("compile", "loss="),
        ("get_weights", "state_dict"),
        ("set_weights", "load_state_dict"),
        ("save_weights", "save"),
        ("load_weights", "load"),
        ("count_params", "p.size"),
        ("train_on_batch", "backward"),
        ("add_loss", "cl.Penalized"),
        ("add_metric", "metrics="),
        ("weights", r"named_parameters\(\) and buffers\(\)"),
        ("get_layer", r"model\[0\] of a sequence"),
        ("get_config", r"repr\(model\)"),
        ("to_json", r"save\(path\)"),
        ("fit_generator", r"fit\(batches"),
        ("predict_classes", r"argmax\(axis=1\)"),
    ],
)
def test_a_method_of_a_keras_model_is_an_error_that_says_caffelites(name, here):
    with pytest.raises(AttributeError, match=rf"^'Model' object has no attribute '{name}'; caffelite has .*{here}"):
        getattr(MODEL, name)
    assert not hasattr(MODEL, name)
    assert name not in dir(MODEL)


def test_attributes_of_other_histories_and_optimizers_raise_and_name_caffelites():
    with pytest.raises(AttributeError, match=r"^'History' object has no attribute 'history'; .*history\['loss'\]"):
        _ = cl.History().history
    with pytest.raises(AttributeError, match=r"^'SGD' object has no attribute 'learning_rate'; caffelite has lr"):
        _ = SGD.learning_rate


@pytest.mark.parametrize(
    ("thing", "name", "here"),
    [
        (MODEL, "trainable", "requires_grad"),
        (MODEL[0], "trainable", "requires_grad"),
        (MODEL, "stop_training", "callbacks that return True"),
        (SGD, "learning_rate", "lr"),
    ],
)
def test_attributes_that_change_a_training_in_keras_cannot_be_set(thing, name, here):
    before = dict(vars(thing))
    with pytest.raises(AttributeError, match=rf"has no attribute '{name}'; caffelite has .*{here}"):
        setattr(thing, name, False)
    assert vars(thing) == before
    assert not hasattr(thing, name)


def test_a_users_class_may_have_attributes_of_these_names():
    class UserModel(cl.Model):
        trainable = True

        def __init__(self):
            super().__init__()
            self.layers = [cl.Linear(3, 2)]
            self.trainable = False

        def compile(self):
            return self.layers[0]

    model = UserModel()
    assert model.compile() is model.layers[0]
    assert not model.trainable
    assert {"layers", "trainable", "compile"} <= set(dir(model))
    assert len(model.parameters()) == 2


def test_a_rule_with_a_learning_rate_of_its_own_is_replayed():
    class UserSGD(cl.SGD):
        @property
        def learning_rate(self):
            return self.lr

        @learning_rate.setter
        def learning_rate(self, value):
            self.lr = value

    optimizer = UserSGD(cl.Linear(3, 2).parameters(), lr=0.1)
    optimizer.learning_rate = 0.2
    assert optimizer.lr == optimizer.learning_rate == 0.2
    assert not UserSGD.runs_in_python


def test_an_error_of_arguments_passes_through_a_method_that_was_patched(monkeypatch):
    fit = cl.Model.fit
    monkeypatch.setattr(cl.Model, "fit", lambda self, *arguments, **options: fit(self, *arguments, **options))
    model = cl.Model([cl.Linear(2, 3)])
    with pytest.raises(TypeError, match="unexpected keyword argument 'los'; did you mean 'loss'"):
        model.fit([[1.0, 2.0]], [0], los=cl.SoftmaxLoss())


# ---- second names ----------------------------------------------------------------------------------------------------


def test_the_cross_entropy_loss_is_the_softmax_loss_and_prints_itself_as_this():
    loss = cl.CrossEntropyLoss(ignore=0)
    assert "CrossEntropyLoss" in dir(cl)
    assert repr(loss) == repr(pickle.loads(pickle.dumps(loss))) == "SoftmaxLoss(ignore=0)"
    assert type(pickle.loads(pickle.dumps(loss))) is cl.SoftmaxLoss is cl.functions.losses.CrossEntropyLoss


class Stack(cl.Model):
    def __init__(self):
        super().__init__(seed=0)
        self.first, self.second = cl.Linear(3, 4), cl.Linear(4, 2)

    def call(self, x):
        return self.second(self.first(x).relu())


class LayerDict(cl.Model):
    def __init__(self):
        super().__init__(seed=0)
        self.layers = {"first": cl.Linear(3, 2)}

    def call(self, x):
        return self.layers["first"](x)


def test_the_layers_of_a_model_are_its_functions():
    model = cl.Model([cl.Linear(3, 2), cl.ReLU()], seed=0)
    assert model.layers is model.functions
    assert cl.Model.layers.__doc__.startswith("Return the container's Functions")
    stack = Stack()
    assert stack.layers == [stack.first, stack.second]
    assert "layers" not in model.state_dict()
    assert "layers" not in repr(model)


def test_a_model_may_have_layers_of_its_own(tmp_path):
    model = LayerDict()
    model.save(tmp_path / "model.safetensors")
    assert [*model.named_parameters()] == ["layers.first.weight", "layers.first.bias"]
    for same in (pickle.loads(pickle.dumps(model)), LayerDict().load(tmp_path / "model.safetensors")):
        np.testing.assert_array_equal(same.predict(X), model.predict(X))
        assert [*same.layers] == ["first"]
