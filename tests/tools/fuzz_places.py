"""Places where the programs of fuzz_programs.py keep their state, as text."""

HEADER = """\
import array, collections, contextvars, copy, dataclasses, functools, itertools, math, operator, os, random
import sys, threading, types, weakref
import numpy as np
import caffelite as cl

class Settings:
    def __init__(self, **values):
        self.__dict__.update(values)

def f_tanh(h, w=1.0):
    return h.tanh() * w

def f_double(h, w=2.0):
    return h * w

def f_sigmoid(h, w=1.0):
    return h.sigmoid() * w

def f_shift(h, w=0.25):
    return h + w

class Wildcard:
    def __init__(self, w):
        self.w = w
    def __eq__(self, other):
        return True
    def __hash__(self):
        return 1

def put_or_delete(o, v):
    if v % 3 == 0 and "w" in vars(o):
        del o.w
    else:
        o.w = v

def compose(h, *fs):
    for f in fs:
        h = f(h)
    return h

def fall(depth, v):
    return v if depth == 0 else fall(depth - 1, v)

def fail(v):
    raise KeyError(v)

def put_key(d, v):
    d.clear()
    d[str(v)] = v

def put_member(s, v):
    s.clear()
    s.add(v)

def run_in_thread(f):
    thread = threading.Thread(target=f)
    thread.start()
    thread.join()
"""

FUNCTIONS = ["f_tanh", "f_double", "f_sigmoid", "f_shift"]

# Places for a whole number: the code that makes one, reads it, and writes it. {k} is the place's number.
PLACES = {
    "global": ("g{k} = {v}", "g{k}", "g{k} = {new}"),
    "object": ("o{k} = Settings(w={v})", "o{k}.w", "o{k}.w = {new}"),
    "new object": ("o{k} = Settings(w={v})", "o{k}.w", "g_set('o{k}', Settings(w={new}))"),
    "nested object": ("o{k} = Settings(a=Settings(b=[Settings(w={v})]))", "o{k}.a.b[0].w", "o{k}.a.b[0].w = {new}"),
    "namespace": ("o{k} = types.SimpleNamespace(w={v})", "o{k}.w", "vars(o{k}).update(w={new})"),
    "computed name": (
        "o{k} = Settings(w{v}={v})",
        "getattr(o{k}, 'w' + str({v}))",
        "setattr(o{k}, 'w' + str({v}), {new})",
    ),
    "slots": (
        "class S{k}:\n    __slots__ = ('w',)\no{k} = S{k}()\no{k}.w = {v}",
        "o{k}.w",
        "o{k}.w = {new}",
    ),
    "class": ("class C{k}:\n    w = {v}", "C{k}.w", "C{k}.w = {new}"),
    "base class": ("class B{k}:\n    w = {v}\nclass C{k}(B{k}):\n    pass\no{k} = C{k}()", "o{k}.w", "B{k}.w = {new}"),
    "class of type": ("C{k} = type('C{k}', (), {{'w': {v}}})", "C{k}.w", "C{k}.w = {new}"),
    "metaclass": (
        "class M{k}(type):\n    w = {v}\nclass C{k}(metaclass=M{k}):\n    pass",
        "C{k}.w",
        "M{k}.w = {new}",
    ),
    "property": (
        "class P{k}:\n    def __init__(self):\n        self.hidden = {v}\n    @property\n    def w(self):\n"
        "        return self.hidden\n    @w.setter\n    def w(self, v):\n        self.hidden = v\no{k} = P{k}()",
        "o{k}.w",
        "o{k}.w = {new}",
    ),
    "replaced property": (
        "class P{k}:\n    w = property(lambda self: {v})\no{k} = P{k}()",
        "o{k}.w",
        "P{k}.w = property(functools.partial(lambda value, self: value, {new}))",
    ),
    "replaced method": (
        "class P{k}:\n    def w(self):\n        return {v}\no{k} = P{k}()",
        "o{k}.w()",
        "P{k}.w = functools.partialmethod(lambda self, value: value, {new})",
    ),
    "getattr": (
        "class P{k}:\n    store = {{'w': {v}}}\n    def __getattr__(self, name):\n        return self.store[name]\n"
        "o{k} = P{k}()",
        "o{k}.w",
        "P{k}.store['w'] = {new}",
    ),
    "indexing": (
        "class P{k}:\n    w = {v}\n    def __getitem__(self, i):\n        return self.w + i\no{k} = P{k}()",
        "o{k}[0]",
        "o{k}.w = {new}",
    ),
    "descriptor": (
        "class D{k}:\n    w = {v}\n    def __get__(self, owner, kind):\n        return self.w\nd{k} = D{k}()\n"
        "class P{k}:\n    w = d{k}\no{k} = P{k}()",
        "o{k}.w",
        "d{k}.w = {new}",
    ),
    "dataclass": (
        "@dataclasses.dataclass(frozen=True)\nclass F{k}:\n    w: int\no{k} = Settings(a=F{k}({v}))",
        "o{k}.a.w",
        "o{k}.a = dataclasses.replace(o{k}.a, w={new})",
    ),
    "tuple": ("o{k} = Settings(a=({v}, 1))", "o{k}.a[0]", "o{k}.a = ({new}, 1)"),
    "list": ("l{k} = [{v}, 1]", "l{k}[0]", "l{k}[0] = {new}"),
    "length": ("l{k} = [0] * {v}", "len(l{k})", "l{k}[:] = [0] * ({new})"),
    "long list": ("l{k} = [{v}] * 2000", "l{k}[1999]", "l{k}[1999] = {new}"),
    "many objects": ("l{k} = [Settings(w={v}) for _ in range(1200)]", "l{k}[1150].w", "l{k}[1150].w = {new}"),
    "dict": ("d{k} = {{'a': {v}}}", "d{k}['a']", "d{k}['a'] = {new}"),
    "keys": ("d{k} = {{'a': {v}}}", "next(iter(d{k}.values()))", "put_key(d{k}, {new})"),
    "nested dict": ("d{k} = {{'a': {{'b': [{v}]}}}}", "d{k}['a']['b'][0]", "d{k}['a']['b'][0] = {new}"),
    "set": ("s{k} = {{{v}}}", "max(s{k})", "put_member(s{k}, {new})"),
    "deque": ("q{k} = collections.deque([{v}], maxlen=3)", "q{k}[-1]", "q{k}.append({new})"),
    "counter": ("d{k} = collections.Counter(a={v})", "d{k}['a']", "d{k}['a'] = {new}"),
    "default dict": ("d{k} = collections.defaultdict(lambda: {v})", "d{k}['a']", "d{k}['a'] = {new}"),
    "chain map": ("d{k} = collections.ChainMap({{}}, {{'a': {v}}})", "d{k}['a']", "d{k}['a'] = {new}"),
    "user dict": ("d{k} = collections.UserDict(a={v})", "d{k}['a']", "d{k}['a'] = {new}"),
    "subclass of dict": (
        "class E{k}(dict):\n    pass\nd{k} = E{k}(a={v})\nd{k}.w = 1",
        "d{k}['a'] * d{k}.w",
        "d{k}['a'] = {new}",
    ),
    "attribute of a list": ("class E{k}(list):\n    w = {v}\nl{k} = E{k}()", "l{k}.w", "l{k}.w = {new}"),
    "array": ("a{k} = np.array([{v}, 0])", "int(a{k}[0])", "a{k}[0] = {new}"),
    "new array": ("a{k} = np.array([{v}, 0])", "int(a{k}[0])", "g_set('a{k}', a{k} * 0 + ({new}))"),
    "new array in a list": ("l{k} = [np.array({v})]", "int(l{k}[0])", "l{k}[0] = np.array({new})"),
    "long array": ("a{k} = np.zeros(500) + {v}", "int(a{k}[400])", "a{k}[400] = {new}"),
    "array of objects": ("a{k} = np.array([{v}, None], object)", "a{k}[0]", "a{k}[0] = {new}"),
    "masked array": ("a{k} = np.ma.array([{v}, 0])", "int(a{k}[0])", "a{k}[0] = {new}"),
    "array module": ("a{k} = array.array('q', [{v}])", "a{k}[0]", "a{k}[0] = {new}"),
    "bytearray": ("a{k} = bytearray([{v}])", "a{k}[0]", "a{k}[0] = ({new}) % 200"),
    "text": ("t{k} = 'a' * {v}", "len(t{k})", "g_set('t{k}', 'a' * ({new}))"),
    "closure": (
        "def make_{k}():\n    w = {v}\n    def get():\n        return w\n    def put(v):\n"
        "        nonlocal w\n        w = v\n"
        "    return get, put\nget_{k}, put_{k} = make_{k}()",
        "get_{k}()",
        "put_{k}({new})",
    ),
    "default": ("def get_{k}(w=[{v}]):\n    return w[0]", "get_{k}()", "get_{k}.__defaults__[0][0] = {new}"),
    "new default": ("def get_{k}(w={v}):\n    return w", "get_{k}()", "get_{k}.__defaults__ = ({new},)"),
    "keyword default": ("def get_{k}(*, w={v}):\n    return w", "get_{k}()", "get_{k}.__kwdefaults__ = dict(w={new})"),
    "function": ("def get_{k}():\n    return get_{k}.w\nget_{k}.w = {v}", "get_{k}()", "get_{k}.w = {new}"),
    "partial": (
        "def same_{k}(v):\n    return v\nget_{k} = functools.partial(same_{k}, {v})",
        "get_{k}()",
        "g_set('get_{k}', functools.partial(same_{k}, {new}))",
    ),
    "module": (
        "m{k} = sys.modules['users_module_{k}'] = types.ModuleType('users_module_{k}')\nm{k}.__file__ = 'm{k}.py'\n"
        "m{k}.w = {v}",
        "m{k}.w",
        "m{k}.w = {new}",
    ),
    "imported module": (
        "m{k} = sys.modules['users_module_{k}'] = types.ModuleType('users_module_{k}')\nm{k}.w = {v}\n"
        "def get_{k}():\n    import users_module_{k}\n    return users_module_{k}.w",
        "get_{k}()",
        "m{k}.w = {new}",
    ),
    "library": ("operator.users_w_{k} = {v}", "operator.users_w_{k}", "operator.users_w_{k} = {new}"),
    "context variable": (
        "v{k} = contextvars.ContextVar('v', default=2)\nv{k}.set({v})",
        "v{k}.get()",
        "v{k}.set({new})",
    ),
    "environment": (
        "os.environ['USERS_{k}'] = '{v}'",
        "int(os.environ['USERS_{k}'])",
        "os.environ['USERS_{k}'] = str({new})",
    ),
    "weak reference": ("o{k} = Settings(w={v})\nr{k} = weakref.ref(o{k})", "r{k}().w", "o{k}.w = {new}"),
    "weak key": (
        "o{k} = Settings()\nd{k} = weakref.WeakKeyDictionary({{o{k}: {v}}})",
        "d{k}[o{k}]",
        "d{k}[o{k}] = {new}",
    ),
    "attribute of the net": ("", "net.w{k}", "net.w{k} = {new}"),
    "dict of the net": ("", "net.d{k}['a']", "net.d{k}['a'] = {new}"),
    "cache": (
        "@functools.lru_cache\ndef get_{k}():\n    return o{k}.w\no{k} = Settings(w={v})",
        "get_{k}()",
        "o{k}.w = {new}; get_{k}.cache_clear()",
    ),
    "vectorize": (
        "o{k} = Settings(w={v})\nf{k} = np.vectorize(lambda i: o{k}.w, otypes=[int])",
        "int(f{k}(0))",
        "o{k}.w = {new}",
    ),
    "methodcaller": (
        "class P{k}:\n    w = {v}\n    def go(self):\n        return self.w\n"
        "o{k} = P{k}()\nf{k} = operator.methodcaller('go')",
        "f{k}(o{k})",
        "o{k}.w = {new}",
    ),
    "attrgetter": (
        "o{k} = Settings(a=Settings(w={v}))\nf{k} = operator.attrgetter('a.w')",
        "f{k}(o{k})",
        "o{k}.a.w = {new}",
    ),
    "deep copy": ("o{k} = Settings(a=Settings(w={v}))", "copy.deepcopy(o{k}.a).w", "o{k}.a.w = {new}"),
    "evaluated": ("t{k} = '{v}'", "eval(t{k})", "g_set('t{k}', str({new}))"),
    "coroutine": (
        "def receive_{k}():\n    w = {v}\n    while True:\n        new = yield w\n"
        "        w = w if new is None else new\n"
        "c{k} = receive_{k}()\nnext(c{k})",
        "c{k}.send(None)",
        "c{k}.send({new})",
    ),
    "structured array": (
        "a{k} = np.array([({v}, 0.5)], [('a', int), ('b', float)])",
        "int(a{k}['a'][0])",
        "a{k}['a'][0] = {new}",
    ),
    "object in two places": (
        "o{k} = Settings(w={v})\nl{k} = [o{k}]\nd{k} = {{'a': l{k}}}",
        "d{k}['a'][0].w",
        "l{k}[0].w = {new}",
    ),
    "new class": (
        "class C{k}:\n    w = {v}\no{k} = Settings(kind=C{k})",
        "o{k}.kind.w",
        "o{k}.kind = type('New', (), dict(w={new}))",
    ),
    "changed class": (
        "class C{k}:\n    w = {v}\no{k} = C{k}()",
        "o{k}.w",
        "o{k}.__class__ = type('New', (C{k},), dict(w={new}))",
    ),
    "new dict of an object": ("o{k} = Settings(w={v})", "o{k}.w", "o{k}.__dict__ = dict(w={new})"),
    "missing attribute": ("class C{k}:\n    w = {v}\no{k} = C{k}()", "o{k}.w", "o{k}.w = {new}"),
    "user list": ("l{k} = collections.UserList([{v}])", "l{k}[0]", "l{k}[0] = {new}"),
    "memoryview": ("a{k} = memoryview(bytearray([{v}]))", "a{k}[0]", "a{k}[0] = ({new}) % 200"),
    "local of a thread": ("o{k} = threading.local()\no{k}.w = {v}", "getattr(o{k}, 'w', 5)", "o{k}.w = {new}"),
    "singledispatch": (
        "o{k} = Settings(w={v})\n@functools.singledispatch\ndef get_{k}(i):\n    return 0\n"
        "@get_{k}.register\ndef _(i: int):\n"
        "    return o{k}.w",
        "get_{k}(1)",
        "o{k}.w = {new}",
    ),
}

# Values that are equal, or not even equal to themselves, and behave differently.
PLACES |= {
    "negative zero": (
        "o{k} = Settings(w=0.0)",
        "(1 + int(math.copysign(1, o{k}.w)))",
        "o{k}.w = -0.0 if ({new}) % 2 else 0.0",
    ),
    "negative zero in an array": (
        "a{k} = np.zeros(3)",
        "(1 + int(math.copysign(1, a{k}[1])))",
        "a{k}[1] = -0.0 if ({new}) % 2 else 0.0",
    ),
    "type of a number": ("o{k} = Settings(w=1)", "len(str(o{k}.w))", "o{k}.w = (True, 1, 1.0)[({new}) % 3]"),
    "type of NumPy": (
        "o{k} = Settings(w=np.float64(1))",
        "o{k}.w.dtype.itemsize",
        "o{k}.w = (np.float64, np.int16, np.float32)[({new}) % 3](1)",
    ),
    "type in a list": ("l{k} = [1, 2]", "len(str(l{k}[0]))", "l{k}[0] = (True, 1, 1.0)[({new}) % 3]"),
    "not a number": (
        "o{k} = Settings(w={v})",
        "(5 if o{k}.w != o{k}.w else int(o{k}.w))",
        "o{k}.w = math.nan if ({new}) % 3 == 0 else ({new})",
    ),
    "none": ("o{k} = Settings(w=None)", "(o{k}.w or 0)", "o{k}.w = (None, 0, 3, False, 5)[({new}) % 5]"),
    "equal object": ("o{k} = Settings(a=Wildcard({v}))", "o{k}.a.w", "o{k}.a = Wildcard({new})"),
    "equal object in a list": ("l{k} = [Wildcard({v})]", "l{k}[0].w", "l{k}[0] = Wildcard({new})"),
    "equal object as a key": (
        "d{k} = {{Wildcard({v}): 1}}",
        "next(iter(d{k})).w",
        "g_set('d{k}', {{Wildcard({new}): 1}})",
    ),
    "order of a dict": (
        "d{k} = dict(a={v}, b=0, c=4)",
        "next(iter(d{k}.values()))",
        "d{k}.update(z=d{k}.pop(min(d{k}))) if ({new}) % 2 else d{k}.update(a=d{k}.pop('z', 3))",
    ),
    "dtype of an array": (
        "a{k} = np.ones(2, np.int8)",
        "a{k}.itemsize",
        "g_set('a{k}', a{k}.astype(('i1', 'i4', 'f8')[({new}) % 3]))",
    ),
    "shape of an array": ("a{k} = np.ones({v})", "a{k}.size", "g_set('a{k}', np.ones(1 + ({new}) % 7))"),
    "strides of an array": (
        "a{k} = np.arange(4).reshape(2, 2)",
        "int(a{k}[0, 1])",
        "g_set('a{k}', a{k}.T if ({new}) % 2 else a{k})",
    ),
    "view of an array": ("b{k} = np.full(9, {v})\na{k} = b{k}[3:5]", "int(a{k}[0])", "b{k}[3] = {new}"),
    "deleted attribute": ("o{k} = Settings(w={v})", "getattr(o{k}, 'w', 5)", "put_or_delete(o{k}, {new})"),
    "attribute over a class": (
        "class C{k}:\n    w = {v}\no{k} = C{k}()",
        "o{k}.w",
        "put_or_delete(o{k}, {new})",
    ),
    "large number": ("o{k} = Settings(w=2**{v})", "o{k}.w.bit_length()", "o{k}.w = 2 ** (63 + ({new}))"),
    "bytes": ("o{k} = Settings(w=bytes({v}))", "len(o{k}.w)", "o{k}.w = bytes(({new}) % 99)"),
    "table": ("l{k} = [1, 4, 2, 8]\no{k} = Settings(w={v})", "l{k}[o{k}.w % 4]", "o{k}.w = {new}"),
    "parent of objects": (
        "o{k} = Settings(w={v})\no{k}.me = o{k}",
        "o{k}.me.me.w",
        "o{k}.me.w = {new}",
    ),
    "local function": (
        "def get_{k}():\n    def inner():\n        return o{k}.w\n    return inner()\no{k} = Settings(w={v})",
        "get_{k}()",
        "o{k}.w = {new}",
    ),
    "generator function": (
        "def all_{k}():\n    yield o{k}.w\no{k} = Settings(w={v})",
        "sum(all_{k}())",
        "o{k}.w = {new}",
    ),
    "context manager": (
        "class P{k}:\n    w = {v}\n    def __enter__(self):\n        return self.w\n    def __exit__(self, *_):\n"
        "        return None\no{k} = P{k}()\ndef get_{k}():\n    with o{k} as w:\n        return w",
        "get_{k}()",
        "o{k}.w = {new}",
    ),
    "rate": ("", "int(optimizer.lr * 100)", "optimizer.lr = 0.01 * (1 + ({new}) % 6)"),
    "attribute of a layer": ("", "getattr(net.hidden, 'users_w', 2)", "net.hidden.users_w = {new}"),
    "order of layers": ("", "int(isinstance(net.layers[0], cl.Tanh))", "net.layers.reverse() if ({new}) % 2 else None"),
}

# Places that no promise says are watched, or that a step may not write. Only callbacks and the like write them.
UNWATCHED = {
    "long array",
    "array of objects",
    "context variable",
    "environment",
    "library",
    "rate",  # it raises
}

# Places for a function of a Tensor: the code that makes one, calls it, and replaces the function by {f}.
FUNCTION_PLACES = {
    "global": ("f{k} = {f0}", "f{k}(h)", "g_set('f{k}', {f})"),
    "object": ("o{k} = Settings(f={f0})", "o{k}.f(h)", "o{k}.f = {f}"),
    "dict": ("d{k} = {{'f': {f0}}}", "d{k}['f'](h)", "d{k}['f'] = {f}"),
    "list": ("l{k} = [{f0}]", "l{k}[0](h)", "l{k}[0] = {f}"),
    "static method": ("class C{k}:\n    f = staticmethod({f0})", "C{k}.f(h)", "C{k}.f = staticmethod({f})"),
    "method": (
        "class C{k}:\n    def f(self, h):\n        return {f0}(h)\no{k} = C{k}()",
        "o{k}.f(h)",
        "C{k}.f = lambda self, h: {f}(h)",
    ),
    "call": (
        "class C{k}:\n    def __call__(self, h):\n        return {f0}(h)\no{k} = C{k}()",
        "o{k}(h)",
        "C{k}.__call__ = lambda self, h: {f}(h)",
    ),
    "super": (
        "class B{k}:\n    def f(self, h):\n        return {f0}(h)\nclass C{k}(B{k}):\n    def f(self, h):\n"
        "        return super().f(h)\no{k} = C{k}()",
        "o{k}.f(h)",
        "B{k}.f = lambda self, h: {f}(h)",
    ),
    "bound method": (
        "class C{k}:\n    def f_tanh(self, h):\n        return f_tanh(h)\n"
        "    def f_double(self, h):\n        return f_double(h)\n"
        "    def f_sigmoid(self, h):\n        return f_sigmoid(h)\n"
        "    def f_shift(self, h):\n        return f_shift(h)\n"
        "o{k} = C{k}()\no{k}.f = o{k}.{f0}",
        "o{k}.f(h)",
        "o{k}.f = o{k}.{f}",
    ),
    "class": (
        "class C{k}:\n    f = staticmethod({f0})\no{k} = Settings(kind=C{k})",
        "o{k}.kind.f(h)",
        "o{k}.kind = type('New', (), dict(f=staticmethod({f})))",
    ),
    "code": ("def f{k}(h, w=1.5):\n    return {f0}(h)", "f{k}(h)", "f{k}.__code__ = {f}.__code__"),
    "partial": (
        "o{k} = Settings(f=functools.partial({f0}, w=0.5))",
        "o{k}.f(h)",
        "o{k}.f = functools.partial({f}, w=0.5)",
    ),
    "composition": (
        "def compose_{k}(*fs):\n    return lambda h: functools.reduce(lambda h, f: f(h), fs, h)\n"
        "o{k} = Settings(f=compose_{k}({f0}, f_tanh))",
        "o{k}.f(h)",
        "o{k}.f = compose_{k}({f}, f_tanh)",
    ),
    "closure": (
        "def make_{k}():\n    f = {f0}\n    def apply(h):\n        return f(h)\n    def put(g):\n"
        "        nonlocal f\n        f = g\n"
        "    return apply, put\napply_{k}, put_{k} = make_{k}()",
        "apply_{k}(h)",
        "put_{k}({f})",
    ),
    "module": (
        "m{k} = sys.modules['users_module_{k}'] = types.ModuleType('users_module_{k}')\nm{k}.__file__ = 'm{k}.py'\n"
        "m{k}.f = {f0}",
        "m{k}.f(h)",
        "m{k}.f = {f}",
    ),
    "defaults": ("def f{k}(h, g={f0}):\n    return g(h)", "f{k}(h)", "f{k}.__defaults__ = ({f},)"),
    "wrapped": (
        "def decorate_{k}(f):\n    @functools.wraps(f)\n    def apply(h):\n        return f(h)\n    return apply\n"
        "o{k} = Settings(f=decorate_{k}({f0}))",
        "o{k}.f(h)",
        "o{k}.f = decorate_{k}({f})",
    ),
    "library": ("operator.users_f_{k} = {f0}", "operator.users_f_{k}(h)", "operator.users_f_{k} = {f}"),
    "call of the net's class": ("", "Net.f{k}(h)", "Net.f{k} = staticmethod({f})"),
    "attribute of the net": ("", "net.f{k}(h)", "net.f{k} = {f}"),
    "one function of several": ("l{k} = [{f0}, f_tanh, f_shift]", "l{k}[0](h)", "l{k}.insert(0, {f})"),
}

# Streams: the code that makes one, and an expression that draws a number.
STREAMS = {
    "random.random": ("", "random.random()"),
    "random.gauss": ("", "random.gauss(0, 1)"),
    "random.choice": ("", "random.choice([1, 2, 3])"),
    "numpy.randn": ("", "float(np.random.randn())"),
    "numpy.rand": ("", "float(np.random.rand())"),
    "numpy.normal": ("", "float(np.random.normal(size=3).sum())"),
    "RandomState": ("r{k} = np.random.RandomState({v})", "float(r{k}.normal())"),
    "Generator": ("r{k} = np.random.default_rng({v})", "float(r{k}.random())"),
    "Generator.integers": ("r{k} = np.random.default_rng({v})", "int(r{k}.integers(5))"),
    "method": ("r{k} = np.random.default_rng({v}).standard_normal", "float(r{k}())"),
    "Random": ("r{k} = random.Random({v})", "r{k}.gauss(0, 1)"),
    "Random in a list": ("r{k} = [random.Random({v})]", "r{k}[0].random()"),
    "count": ("i{k} = itertools.count({v})", "next(i{k})"),
    "cycle": ("i{k} = itertools.cycle([1, 3, 2])", "next(i{k})"),
    "generator": ("i{k} = (n * n for n in itertools.count({v}))", "next(i{k})"),
    "iterator of a list": ("i{k} = iter(list(range(1000)))", "next(i{k})"),
    "zip": ("i{k} = zip(itertools.count(), itertools.count(2))", "sum(next(i{k}))"),
    "bound method": ("i{k} = itertools.count({v}).__next__", "i{k}()"),
    "pop": ("l{k} = list(range(1000))", "l{k}.pop()"),
    "popleft": ("q{k} = collections.deque(range(1000))", "q{k}.popleft()"),
    "rotation": ("q{k} = collections.deque([1, 2, 3])", "(q{k}.rotate(1), q{k}[0])[1]"),
    "popitem": ("d{k} = dict.fromkeys(range(1000))", "d{k}.popitem()[0]"),
}
