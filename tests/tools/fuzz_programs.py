"""Random programs of a user: state in any place, read and changed anywhere. `fit` trains as the loop by hand.

    python tests/tools/fuzz.py 10000 --kind programs              # the programs of the seeds 0 to 9,999
    python tests/tools/fuzz.py --kind programs --case 4711        # one of them, with its source

Design
------
(a) A program is the source of a module: a net, a loss, a callback, a metric, and code between two batches. It keeps
    numbers in places (PLACES), functions in others (FUNCTION_PLACES), and draws from streams (STREAMS).
(b) The source is executed twice, and each module is trained by the same plan: one by the loop by hand, one by `fit`.
    Parameters must be equal to the bit, and so must the state that the programs leave.
(c) At most one warning for each `fit` says that the step runs in Python.
"""

import contextlib
import random
import sys
import types
import warnings
from typing import NamedTuple

import numpy as np

import caffelite as cl
from tests.tools.fuzz_calls import Wrong, kind
from tests.tools.fuzz_places import FUNCTION_PLACES, FUNCTIONS, HEADER, PLACES, STREAMS, UNWATCHED

ROWS = 24
X = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(ROWS, 1)).astype(np.float32)


class Plan(NamedTuple):
    """How the programs are trained."""

    drive: str  # "fit", "epochs" (a fit for each), "batches" (of a generator), "steps" (a callback between steps),
    # "sizes" (a fit for each epoch, with two sizes of batches in turn), "many" (three models at once),
    # "capture" (no training: a Program of the loss)
    batch_size: int
    epochs: int
    momentum: float
    has_callback: bool
    has_metric: bool
    predicts: bool  # whether the callback predicts
    evaluates: bool  # whether it evaluates
    validates: bool  # whether the training has validation data


DRIVES = ["fit", "fit", "epochs", "batches", "steps", "sizes", "many", "capture"]


# State outside of the user's module, which all runs share.
SHARED = {"module", "imported module", "library", "environment", "context variable", "function in module"}
SHARED |= {"function in library", *(name for name in STREAMS if name.startswith(("random.", "numpy.")))}


class Writer:
    """Write a random program."""

    def __init__(self, rng):
        self.rng = rng
        self.setup, self.attributes, self.globals = [], [], []
        self.numbers, self.watched_numbers, self.functions, self.streams, self.tags = [], [], [], [], []
        for k in range(rng.choice([1, 1, 2, 3, 5])):
            self.add_place(k)
        self.plan = self.make_plan()

    def make_plan(self):
        rng = self.rng
        drive, epochs = self.pick(DRIVES), int(rng.integers(2, 7))
        flags = [bool(rng.integers(n) == 0) for n in (2, 4, 4, 4, 4)]
        if drive == "many":
            flags = [False] * 5
            drive = "fit" if SHARED & set(self.tags) or not self.tags else drive
        epochs = epochs if rng.integers(16) else 30
        return Plan(drive, int(self.pick([6, 8, 8, 10, 24])), epochs, self.pick([0.0, 0.9]), *flags)

    def pick(self, items):
        return items[self.rng.integers(len(items))]

    def add_place(self, k):
        which, v = self.rng.integers(6), int(self.rng.integers(1, 6))
        if which == 0:
            name = self.pick(list(FUNCTION_PLACES))
            setup, call, write = FUNCTION_PLACES[name]
            f0 = self.pick(FUNCTIONS)
            self.setup.append(setup.format(k=k, f0=f0))
            self.functions.append((call.format(k=k), write.replace("{k}", str(k))))
            if "net" in name:
                self.attributes.append(
                    ("class f{k} = staticmethod({f0})" if "class" in name else "self.f{k} = {f0}").format(k=k, f0=f0)
                )
            self.tags.append("function in " + name)
        elif which == 1:
            name = self.pick(list(STREAMS))
            setup, draw = STREAMS[name]
            self.setup.append(setup.format(k=k, v=v))
            self.streams.append(draw.format(k=k))
            self.tags.append(name)
        else:
            name = self.pick(list(PLACES))
            setup, read, write = PLACES[name]
            if name == "global":
                self.globals.append(f"g{k}")
            if "net" in name:
                self.attributes.append(f"self.d{k} = {{'a': {v}}}" if "dict" in name else f"self.w{k} = {v}")
            self.setup.append(setup.format(k=k, v=v))
            self.numbers.append((read.format(k=k, v=v), write.replace("{k}", str(k)).replace("{v}", str(v))))
            if name not in UNWATCHED:
                self.watched_numbers.append(self.numbers[-1])
            self.tags.append(name)

    # ---- expressions and statements -------------------------------------------------------------------------------

    def number(self):
        """Return an expression of a whole number that is not negative."""
        which = self.rng.integers(4)
        if self.streams and (which == 0 or not self.numbers):
            return f"int(abs({self.pick(self.streams)}) * 7) % 11"
        if not self.numbers:
            return str(self.rng.integers(5))
        read = self.pick(self.numbers)[0]
        if which == 1:
            return self.pick(["int({a} > {c})", "int({a} % {c} == 1)", "({a} // {c})", "(({a} >> 1) + {c})"]).format(
                a=read, c=self.rng.integers(2, 9)
            )
        if which == 2:
            return f"({read} + {self.pick(self.numbers)[0]})"
        return read

    def write(self, numbers):
        """Return a line that changes the state: one of these numbers, a function or a stream."""
        if self.functions and (self.rng.integers(3) == 0 or not numbers):
            return self.pick(self.functions)[1].format(f=self.pick(FUNCTIONS))
        if not numbers and SHARED.isdisjoint(self.tags):
            return "pass"
        if not numbers:
            return self.pick(["random.seed({n})", "np.random.seed({n})"]).format(n=self.number())
        read, write = self.pick(numbers)
        new = self.pick(["{a} + 1", "({a} + 1) % 9", "({a} * 3 + 1) % 17", "({a} + {b}) % 13", "{c}", "({a} ^ 1)"])
        return write.format(new=new.format(a=read, b=self.number(), c=self.rng.integers(1, 6)))

    def statement(self, place, depth=0):
        """Return lines of a step: they change h, or the state."""
        which = self.rng.integers(22)
        n = self.number()
        if which < 3 and depth < 2:
            condition = self.pick(
                [f"{n} % 2 == 0", f"{n} > {self.rng.integers(1, 12)}", f"{n} % 3 == 1", f"{n} in (1, 4, 9)"]
            )
            lines = [f"if {condition}:", *indent(self.block(place, depth + 1))]
            return lines + (["else:", *indent(self.block(place, depth + 1))] if self.rng.integers(2) else [])
        if which == 3:
            return [f"for _ in range({n} % 3):", *indent(self.block(place, 2))]
        if which == 4:
            return [f"h = h + cl.Tensor(np.full(h.shape, 0.1 * ({n} % 5), np.float32))"]
        if which == 5:
            return [f"h = h * np.linspace(0.5, 0.5 + {n} % 4 * 0.25, h.shape[1], dtype=np.float32)"]
        if which == 6 and self.functions:
            return [f"h = {self.pick(self.functions)[0]}"]
        if which == 7 and place == "call":
            return [f"h = self.layers[{n} % 2](h)"]
        if which == 8:
            return [f"k = 1 + {n} % 3", "h = cl.concatenate([h[:k] * 0.5, h[k:]], axis=0)"]
        if which == 9:
            return [f"if float(h.data.mean()) > {self.pick([-0.2, 0.0, 0.2])}:", *indent(self.block(place, 2))]
        if which in (10, 11):
            return [self.write(self.watched_numbers)]
        if which == 12:
            return [
                self.pick(["h = h + h.detach() * 0.5", "h = h.tanh()", "h = -h", "h = h + {n} % 3 * 0.1"]).format(n=n)
            ]
        if which == 14:
            return [
                "try:",
                f"    fail({n})",
                "except KeyError as error:",
                "    h = h * (0.5 + error.args[0] % 3 * 0.25)",
            ]
        if which == 15:
            return [f"h = h * (0.5 + sum(fall(2, {n}) for _ in range(2)) % 4 * 0.25)"]
        if which == 16:
            return [f"if net.hidden.bias.data[0] > {self.pick([0.0, 0.01])}:", *indent(self.block(place, 2))]
        if which == 17:
            return [f"if len(h) {self.pick(['== 8', '> 8', '% 4 == 0'])}:", *indent(self.block(place, 2))]
        if which == 18:
            return [f"h = compose(h, *[f_tanh, f_shift, f_double][: {n} % 4])"]
        if which == 19:
            return [f"h = cl.where(np.arange(h.shape[1]) < {n} % 4, h, h * 0.5)"]
        if which == 20:
            return [f"h = h + np.random.RandomState({n}).rand(1, h.shape[1]).astype(np.float32)"]
        return [f"h = h * (0.5 + 0.1 * ({n} % 10))"]

    def block(self, place, depth=0):
        lines = []
        for _ in range(self.rng.integers(1, 3 if depth else 5)):
            lines += self.statement(place, depth)
        return lines

    def writes(self):
        """Return lines of a callback: they change the state, at times in a thread or under a condition."""
        lines = []
        for _ in range(self.rng.integers(3)):
            write = self.write(self.numbers)
            which = self.rng.integers(4)
            if which == 0:
                lines += [
                    f"if i {self.pick(['== 1', '% 2 == 0', '> 1', f'== {self.number()} % 4'])}:",
                    *indent([write]),
                ]
            elif which == 1:
                lines += ["def change():", *indent([self.declaration(), write]), "run_in_thread(change)"]
            else:
                lines += [write]
        return lines or ["pass"]

    def declaration(self):
        return f"global {', '.join(self.globals)}" if self.globals else "pass"

    def function(self, head, lines, end=()):
        return [head, *indent([self.declaration(), *lines, *end]), ""]

    def source(self):
        attributes = [line for line in self.attributes if not line.startswith("class ")]
        class_lines = [line.removeprefix("class ") for line in self.attributes if line.startswith("class ")]
        init = ["super().__init__(seed=0)", "self.hidden, self.out = cl.Linear(4, 3), cl.Linear(3, 1)",
                "self.layers = [cl.Linear(3, 3), cl.Tanh()]", *attributes]  # fmt: skip
        helper = self.function("def help_step(self, h):", self.block("call", 1), ["return h"])
        places = self.pick([("call",), ("loss",), ("call", "loss")])
        call = ["h = self.hidden(x).tanh()"]
        call += self.block("call") if "call" in places else []
        call += ["h = help_step(self, h)"] if "call" in places and self.rng.integers(2) else []
        loss = ["h = o - y", *(self.block("loss") if "loss" in places else [])]
        state = ", ".join([read for read, _ in self.numbers] + self.streams)
        lines = [HEADER, "def g_set(name, value):", "    globals()[name] = value", "", *self.setup, *helper]
        lines += ["class Net(cl.Model):", *indent(class_lines), *indent(self.function("def __init__(self):", init))]
        lines += indent(self.function("def call(self, x):", call, ["return self.out(h)"]))
        lines += ["net = Net()", ""]
        lines += self.loss(loss)
        lines += self.function("def callback(i):", self.writes())
        lines += self.function("def between(i):", self.writes())
        lines += self.function("def metric(o, y):", self.writes_without_index(), ["return 0.0"])
        lines += self.function("def state():", [f"return [{state}]"])
        return "\n".join(lines) + "\n"

    def writes_without_index(self):
        return ["i = 1", *self.writes()]

    def loss(self, lines):
        """Return a loss in one of many forms."""
        end, which = ["return (h * h).mean()"], self.rng.integers(6)
        if which == 0:
            return ["class Loss:", *indent(self.function("def __call__(self, o, y):", lines, end)), "loss = Loss()", ""]
        if which == 1:
            body = self.function("def inner(o, y):", lines, end)
            return ["def make_loss():", *indent([*body, "return inner"]), "loss = make_loss()", ""]
        if which == 2:
            return [*self.function("def inner(w, o, y):", lines, end), "loss = functools.partial(inner, 1)", ""]
        if which == 3:
            return [
                "class Loss(cl.Model):",
                *indent(self.function("def call(self, o, y):", lines, end)),
                "loss = Loss()",
                "",
            ]
        if which == 4:
            return ["class Loss:", *indent(self.function("def f(self, o, y):", lines, end)), "loss = Loss().f", ""]
        return self.function("def loss(o, y):", lines, end)


def indent(lines):
    return ["    " + part for line in lines for part in line.split("\n") if part]


# ---- training -------------------------------------------------------------------------------------------------------


class Run:
    """A fresh module of a program, and a training of its net."""

    def __init__(self, code, plan):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        self.module = types.ModuleType("users_program")
        self.module.__file__ = code.co_filename
        sys.modules["users_program"] = self.module
        exec(code, vars(self.module))
        self.plan, self.net, self.loss = plan, self.module.net, self.module.loss
        self.optimizer = cl.SGD(self.net.parameters(), lr=0.05, momentum=plan.momentum)
        self.module.optimizer = self.optimizer
        self.predictions, self.warnings = [], 0

    def batch_size(self, epoch):
        return self.plan.batch_size // (1 + (self.plan.drive == "sizes" and epoch % 2))

    def call_back(self, epoch, predict, evaluate):
        if self.plan.has_callback:
            self.module.callback(epoch)
            if self.plan.predicts:
                self.predictions.append(predict(X))
            if self.plan.evaluates:
                self.predictions.append(np.array([evaluate()]))

    # ---- by hand ----

    def train_by_hand(self):
        """Train as `fit`: a callback between two steps comes, after an epoch's last step, behind the metric."""
        steps, plan = 0, self.plan
        for epoch in range(plan.epochs):
            outputs, size = [], self.batch_size(epoch)
            for i in range(0, ROWS, size):
                if plan.drive == "batches" or (plan.drive == "steps" and i > 0):
                    self.module.between(steps)
                    steps += 1
                self.optimizer.zero_grad()
                outputs.append(self.net(X[i : i + size]))
                self.loss(outputs[-1], Y[i : i + size]).backward()
                self.optimizer.step()
            if plan.has_metric:
                self.module.metric(np.concatenate([o.data for o in outputs]), Y)
            if plan.validates:
                self.evaluate_by_hand(has_metric=plan.has_metric)
            if plan.drive == "steps":
                self.module.between(steps)
                steps += 1
            self.call_back(epoch, self.predict_by_hand, self.evaluate_by_hand)

    def predict_by_hand(self, x):
        with cl.no_grad():
            return self.net(x).data.copy()

    def evaluate_by_hand(self, has_metric=False):
        with cl.no_grad():
            outputs = self.net(X[:20])
            loss = self.loss(outputs, Y[:20]).item()
        if has_metric:
            self.module.metric(outputs.data, Y[:20])
        return loss

    # ---- by fit ----

    def fit(self, epochs, callbacks, x=X, y=Y, size=None):
        options = {} if y is None else {"batch_size": size or self.plan.batch_size, "shuffle": False}
        options |= {"validation_data": (X[:20], Y[:20])} if self.plan.validates else {}
        options |= {"metrics": [self.module.metric]} if self.plan.has_metric else {}
        with self.note_warnings():
            self.net.fit(
                x, y, loss=self.loss, optimizer=self.optimizer, epochs=epochs, callbacks=callbacks, verbose=0, **options
            )

    @contextlib.contextmanager
    def note_warnings(self):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", cl.NotRecorded)
            yield
        self.warnings = max(self.warnings, len(caught))

    def call_back_by_fit(self, epoch):
        self.call_back(epoch, self.net.predict, lambda: self.net.evaluate(X[:20], Y[:20], loss=self.loss)["loss"])

    def train_by_fit(self):
        plan = self.plan
        callbacks = [lambda epoch, history: self.call_back_by_fit(epoch)] if plan.has_callback else []
        if plan.drive in ("epochs", "sizes"):
            for epoch in range(plan.epochs):
                self.fit(1, [], size=self.batch_size(epoch))
                with self.note_warnings():
                    self.call_back_by_fit(epoch)
        elif plan.drive == "batches":
            self.fit(plan.epochs, callbacks, x=Batches(self), y=None)
        elif plan.drive == "steps":
            steps = iter(range(10**6))
            between = cl.callbacks.Each(1, lambda step, training: self.module.between(next(steps)))
            self.fit(plan.epochs, [between, *callbacks])
        else:
            self.fit(plan.epochs, callbacks)


def fit_at_once(runs, plan):
    """Train the nets of three modules at once."""
    with runs[0].note_warnings():
        cl.fit_many(
            [run.net for run in runs], X, Y, loss=[run.loss for run in runs],
            optimizers=[run.optimizer for run in runs], epochs=plan.epochs, batch_size=plan.batch_size, shuffle=False,
            verbose=0,
        )  # fmt: skip


class Batches:
    """Batches that the user's generator makes, with code between them."""

    def __init__(self, run):
        self.run, self.steps = run, 0

    def __iter__(self):
        for i in range(0, ROWS, self.run.plan.batch_size):
            self.run.module.between(self.steps)
            self.steps += 1
            yield X[i : i + self.run.plan.batch_size], Y[i : i + self.run.plan.batch_size]


FILES = ["/home/user/program.py", "/home/user/program.py", "/usr/lib/python3/site-packages/program.py"]


@kind(4)
def programs(rng):
    writer = Writer(rng)
    source, plan = writer.source(), writer.plan
    file = writer.pick(FILES)
    code = compile(source, file, "exec")
    if plan.drive == "many" and "local of a thread" in writer.tags:  # each model trains on a thread of its own
        return
    by_hand = Run(code, plan)
    if plan.drive == "capture":
        fault = check_capture(code, plan)
        raise_fault(fault, "", writer, file, source)
        return
    try:
        by_hand.train_by_hand()
    except (cl.TrainingDiverged, StopIteration):  # an iterator of the program may end
        return
    truth = by_hand.module.state()
    runs = [Run(code, plan) for _ in range(3 if plan.drive == "many" else 1)]
    try:
        if plan.drive == "many":
            fit_at_once(runs, plan)
        else:
            runs[0].train_by_fit()
        structures = 2 if "order of layers" in writer.tags else 1  # of the model, each with its Programs
        faults = [find_difference(by_hand, run, truth, structures) for run in runs]
    except Exception as error:
        faults = [f"{type(error).__name__}: {error}"]
    fault = next(filter(None, faults), "")
    raise_fault(fault, ", with a warning" if runs[0].warnings else ", without a warning", writer, file, source)


def raise_fault(fault, silence, writer, file, source):
    """Raise Wrong if there is a fault."""
    if fault:
        listing = source.removeprefix(HEADER)
        raise Wrong(f"{fault}{silence}; {', '.join(writer.tags)}; {writer.plan}; {file}\n{listing}")


CALLS = 12


def check_capture(code, plan):
    """Return what is wrong with the numbers of a captured loss. It may be traced up to two times before the first."""
    run, numbers = Run(code, plan), []
    try:
        program = cl.capture(lambda x: run.loss(run.net(x), Y[:8]), X[:8])
        for i in range(CALLS):
            numbers.append(float(np.asarray(program(X[:8]))))
            run.module.between(i)
    except TypeError:
        pass
    truths = [compute_losses(Run(code, plan), traces) for traces in range(3)]
    if any(np.allclose(numbers, truth[: len(numbers)], rtol=1e-5) for truth in truths):
        return ""
    return f"captured losses are {numbers}, by hand {truths}"


def compute_losses(run, traces):
    losses = []
    for i in range(-traces, CALLS):
        losses.append(run.loss(run.net(X[:8]), Y[:8]).item())
        if i >= 0:
            run.module.between(i)
    return losses[traces:]


def find_difference(by_hand, by_fit, truth, structures):
    """Return what differs, or an empty text."""
    for p, q in zip(by_hand.net.parameters(), by_fit.net.parameters(), strict=True):
        if not np.array_equal(p.data, q.data):
            return f"a parameter is {q.data.ravel()[0]!r}, by hand {p.data.ravel()[0]!r}"
    for i, (a, b) in enumerate(zip(by_hand.predictions, by_fit.predictions, strict=True)):
        if not np.allclose(a, b, rtol=1e-5, atol=1e-6):
            return f"prediction {i} is {b.ravel()[0]!r}, by hand {a.ravel()[0]!r}"
    if repr(state := by_fit.module.state()) != repr(truth):
        return f"the state is {state}, by hand {truth}"
    plan = by_fit.plan
    most = 1 + plan.predicts + plan.evaluates + plan.validates  # each of them, in each model, for each size of batch
    most *= (3 if plan.drive == "many" else 1) * (1 if ROWS % plan.batch_size == 0 else 2)
    most *= structures
    return f"{by_fit.warnings} warnings" if by_fit.warnings > most else ""
