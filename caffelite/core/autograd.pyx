"""The graph and back-propagation, compiled because this code runs at every operation on Tensors.

`Node` has a Tensor's attributes. `call` applies a Function and adds it to the graph. `propagate` is back-propagation.
"""
cimport cython
cimport numpy as cnp

import functools
import operator

import numpy as np

from caffelite import _kernels as kernels
from caffelite._kernels.launch cimport round_products, rounds_products
from caffelite._kernels.record cimport is_recording
from caffelite.core.arrays import as_real
from caffelite.core.inputs import cast_gradient, cast_input

cnp.import_array()

cdef extern from *:
    """
    static _Thread_local int this_thread_records_graph = 1, this_thread_is_training = 1;  /* its modes */
    """
    int this_thread_records_graph, this_thread_is_training

cdef extern from *:
    """
    /* Numbers that all threads draw. Also without Python's lock, no number comes twice, and a later one is larger. */
    static _Atomic Py_ssize_t parameters_made = 0, leaves_made = 0, serial_number = 0, walks = 0;

    static Py_ssize_t draw_number(_Atomic Py_ssize_t *counter) { return ++*counter; } /* atomic */
    """
    Py_ssize_t parameters_made, leaves_made, serial_number, walks
    Py_ssize_t draw_number(Py_ssize_t* counter) noexcept nogil

cdef type SparseMatrix = kernels.SparseMatrix
cdef object ndarray = np.ndarray, RecordedArray = kernels.RecordedArray, add = kernels.add
cdef object Tensor = None                 # the class of results


cdef class Mode:
    """The modes of this thread: whether to record a graph, and whether Functions behave as in training.

    `state` has both, and the precision of products. Set it to have the modes of another time or thread.
    """

    @property
    def state(self):
        return this_thread_records_graph, this_thread_is_training, rounds_products()

    @state.setter
    def state(self, tuple modes):
        global this_thread_records_graph, this_thread_is_training
        this_thread_records_graph, this_thread_is_training, rounds = modes
        round_products(rounds)

    @property
    def records_graph(self):
        return this_thread_records_graph != 0

    @records_graph.setter
    def records_graph(self, bint value):
        global this_thread_records_graph
        this_thread_records_graph = value

    @property
    def training(self):
        return this_thread_is_training != 0

    @training.setter
    def training(self, bint value):
        global this_thread_is_training
        this_thread_is_training = value


cdef class no_grad:
    """`with no_grad():` record no graph inside, in this thread. `@no_grad()` does so inside a function."""
    cdef bint before

    # (Compiled code: a Ctrl-C cannot interrupt it halfway.)
    def __enter__(self):
        global this_thread_records_graph
        self.before, this_thread_records_graph = this_thread_records_graph, False

    def __exit__(self, *exception):
        global this_thread_records_graph
        this_thread_records_graph = self.before

    def __call__(self, function):
        @functools.wraps(function)
        def inside(*arguments, **options):
            with type(self)():
                return function(*arguments, **options)
        return inside


cdef class inference(no_grad):
    """Like `no_grad`, and Functions behave as in use, not as in training."""
    cdef bint was_training

    def __enter__(self):
        global this_thread_is_training
        no_grad.__enter__(self)
        self.was_training, this_thread_is_training = this_thread_is_training, False

    def __exit__(self, *exception):
        global this_thread_is_training
        this_thread_is_training = self.was_training
        no_grad.__exit__(self)


cdef bint records_graph() noexcept nogil:
    return this_thread_records_graph


cdef bint is_training() noexcept nogil:
    return this_thread_is_training


# ---- Tensors -------------------------------------------------------------------------------------------------------

def parameter_count():
    """Return how many Tensors became parameters by `requires_grad`. If it grows, a model looks for new ones."""
    return parameters_made


def leaf_count():
    """Return how many leaves have required a gradient so far. A larger `_leaf_number` is of a later one."""
    return leaves_made


@cython.auto_pickle(False)
cdef class Node:
    """The attributes of a Tensor; autograd.pxd explains them."""

    def __cinit__(self):
        self.inputs = self._versions = ()

    @property
    def requires_grad(self):
        """Return whether `backward` computes a gradient for this Tensor. Set it to False to freeze a parameter."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, bint value):
        if value and self.function is None and not self._owns_data:
            self._data, self._version, self._owns_data = kernels.copy(self._data), [0], True
            draw_number(&parameters_made)
        if value and self.function is None and not self._leaf_number:
            self._leaf_number = draw_number(&leaves_made)
        self._requires_grad = value
        self._has_gradient = self._has_gradient and value

    @property
    def shape(self):
        return self._data.shape

    @property
    def ndim(self):
        return self._data.ndim

    @property
    def size(self):
        return self._data.size

    @property
    def dtype(self):
        return self._data.dtype


def set_tensor_class(type tensor_class):
    """Set the class of results."""
    global Tensor
    Tensor = tensor_class


cdef inline bint same_type(a, cnp.ndarray b):
    """Return whether a is an array of b's shape and dtype."""
    return (isinstance(a, cnp.ndarray) and cnp.PyArray_SAMESHAPE(a, b)
            and ((<cnp.ndarray> a).descr is b.descr or cnp.PyArray_EquivTypes((<cnp.ndarray> a).descr, b.descr)))


def matches_shape(tuple shape, tuple required):
    """Return whether a shape is the required one. None is any length; in `required`, ... is any number of axes."""
    cdef Py_ssize_t n = len(shape), m, i = 0, j
    if required is None:
        return True
    m = len(required)
    for j in range(m):
        if required[j] is Ellipsis:       # the lengths after it are the last axes
            if n - (m - 1 - j) < i:
                return False
            i = n - (m - 1 - j)
            continue
        if i == n or not (required[j] is None or shape[i] is None or required[j] == shape[i]):
            return False
        i += 1
    return i == n


@cython.binding(True)                     # a method of Function
def check_input(function, x, Node weight=None, weight_shape=None):
    """Return x as an array of the Function's `required_input_shape` and of its weight's dtype.

    A list becomes an array, a sparse matrix becomes SparseRows, and another byte order the native one. Without a
    weight, x may be float32 or float64. Raise ValueError if the shape is another one, or the weight's shape is not
    `weight_shape`. Raise TypeError if the dtype is another one.
    """
    cdef bint is_alike = False
    if isinstance(x, cnp.ndarray):
        is_alike = is_float(x) and (weight is None or cnp.PyArray_TYPE(x) == cnp.PyArray_TYPE(weight._data))
    elif isinstance(x, SparseMatrix) and weight is not None:
        is_alike = x.dtype == weight._data.dtype
    if (is_alike and matches_shape(x.shape, function.required_input_shape)
            and (weight_shape is None or weight._data.shape == weight_shape)):
        return x
    return cast_input(function, x, weight, weight_shape)


# ---- applying Functions --------------------------------------------------------------------------------------------

cpdef bint is_parameter(value):
    """Return whether a value is a parameter: a leaf Tensor that requires a gradient, or did before it was frozen."""
    return isinstance(value, Node) and (<Node> value)._owns_data and (<Node> value).function is None


def is_childless(dict attributes, frozenset leaves):
    """Return whether no attribute can have a Function in it: all are Tensors, leaves, or tuples of these."""
    for value in attributes.values():
        if type(value) not in leaves and not isinstance(value, Node):
            if type(value) is not tuple:
                return False
            for item in <tuple> value:
                if type(item) not in leaves and not isinstance(item, Node):
                    return False
    return True


def collect_parameters(dict attributes, frozenset leaves):
    """Return the parameters among the attributes, each once; None if Functions or containers may have more."""
    cdef list parameters = []
    for name, value in attributes.items():
        if isinstance(value, Node):
            if is_parameter(value):
                for p in parameters:
                    if p is value:
                        break
                else:
                    parameters.append(value)
        elif type(value) not in leaves and name != "_applied_inputs":
            return None
    return parameters


@cython.binding(True)                     # a method of Function
def call(function, *inputs, **named):
    """Apply a copy of this Function to Tensors, arrays or numbers, and record it in the graph.

    You may give inputs by the names that `forward` has for them. Return a Tensor, or a tuple of Tensors if `forward`
    returns a tuple.

    The first input may be a list. It becomes an array of the parameters' dtype, or of float32 without parameters; but a
    user's `forward` gets the list itself. The first input may also be a sparse matrix if the Function `takes_sparse`.
    A tuple of Tensors, such as the outputs of a model, is one input: `forward` gets a tuple of arrays for it.
    """
    if named:
        inputs = function._order_inputs(inputs, named)
    if inputs and not isinstance(inputs[0], (Node, cnp.ndarray)):
        inputs = (function._convert_first_input(inputs[0]), *inputs[1:])
    applied = function.copy()
    return apply(applied, inputs, applied.parameters())


@cython.binding(True)                     # as is this
def apply_once(function, *inputs, parameters=()):
    """Apply a Function with these parameters without a copy, because it is applied only once."""
    return apply(function, inputs, parameters)


def application_count():
    """Return how many times any Function was applied: the serial number of the last results."""
    return serial_number


cdef object apply(function, tuple inputs, parameters):
    cdef Py_ssize_t number
    cdef list arrays = [], tensors = [], versions = []
    cdef bint recording = is_recording(), recorded = False
    cdef Node node
    for x in inputs:
        if isinstance(x, Node):
            node = <Node> x
            arrays.append(node.data if recording else node._data)
            tensors.append(node)
            add_version(versions, node)
            recorded |= node._requires_grad
        elif type(x) is tuple and has_tensors(<tuple> x):
            return function._apply_tuples(inputs, parameters)
        else:
            arrays.append(x)
            tensors.append(None)
    if len(arrays) == 1:                  # faster than with a list
        y = function.forward(arrays[0])
    elif len(arrays) == 2:
        y = function.forward(arrays[0], arrays[1])
    else:
        y = function.forward(*arrays)
    number = draw_number(&serial_number)
    if type(y) is tuple:
        results = tuple([make_result(function, item, arrays, tensors, parameters, number) for item in <tuple> y])
    else:
        results = (make_result(function, y, arrays, tensors, parameters, number),)
    if this_thread_records_graph:
        for p in parameters:
            add_version(versions, p)
            recorded |= (<Node> p)._requires_grad
        if recorded:
            record_graph(function, tuple(tensors), versions, results)
    if recording:
        kernels.recorder().record_application(function, inputs, results)
    if type(y) is not tuple:
        return results[0]
    for i in range(len(<tuple> results)):
        (<Node> (<tuple> results)[i])._place = (i, len(<tuple> results))
    return results


cdef int record_graph(function, tuple inputs, list versions, tuple results) except -1:
    """Store in each result the Function that made it, and its inputs."""
    cdef Node result
    function._applied_inputs = inputs
    for result in results:
        result.inputs, result.function, result._versions = inputs, function, versions
        result._requires_grad, result._version_made = True, result._version[0]
    return 0


cdef inline int add_version(list versions, Node node) except -1:
    """Add a Tensor, its version counter, and the counter's present value."""
    versions.append(node)
    versions.append(node._version)
    versions.append(node._version[0])
    return 0


cdef Node make_result(function, y, list arrays, list tensors, parameters, Py_ssize_t number):
    """Return a Tensor of forward's result y, with this serial number. A view gets the version counter of its Tensor."""
    cdef Node result
    cdef bint shares
    if type(y) is not ndarray or not is_float(y):
        if y is None:
            raise TypeError(f"{function!r}.forward returned None; it has to return an array")
        y = as_real(y, None, function)
    result = Tensor.__new__(Tensor)
    result._data, result._version, result._serial_number = y, [0], number
    shares = cnp.PyArray_BASE(y) != NULL
    for array in arrays:
        shares |= array is y
    for p in parameters:
        shares |= (<Node> p)._data is y
    if shares:
        for x in (*tensors, *parameters):
            if x is not None and np.may_share_memory((<Node> x)._data, y):
                result._version = (<Node> x)._version
    return result


cdef inline bint is_float(cnp.ndarray y):
    """Return whether an array is float32 or float64 in native byte order."""
    return cnp.PyArray_TYPE(y) in (cnp.NPY_FLOAT32, cnp.NPY_FLOAT64) and cnp.PyArray_ISNOTSWAPPED(y)


def has_tensors(value):
    """Return whether a list or tuple contains a Tensor."""
    for x in value:
        if isinstance(x, Node):
            return True
    return False


def binary_operator(function, str symbol, operand, bint swapped=False):
    """Return a method for an operator's symbol: it applies the Function to the Tensor and the other operand.

    `operand(other, tensor, symbol)` first converts the other operand, unless it is a float or a Tensor of the same
    dtype.
    """
    @cython.binding(True)                 # a method of Tensor
    def apply_operator(Node self not None, other):
        if type(other) is not float and not (
                isinstance(other, Node)
                and (<cnp.ndarray> self._data).descr is (<cnp.ndarray> (<Node> other)._data).descr):
            other = operand(other, self, symbol)
        return apply(function(), (other, self) if swapped else (self, other), ())

    return apply_operator


# ---- back-propagation ----------------------------------------------------------------------------------------------

class FreedGraph:
    """Replaces the Function of a Tensor when the graph is freed."""
    def __repr__(self):
        return "freed"


cdef object FREED = FreedGraph()
cdef object by_serial_number = operator.attrgetter("_serial_number")


def propagate(dict gradients):
    """Back-propagate from results, given with their gradients, to the leaves, and free the graph."""
    cdef list graph = topological_order(*gradients)
    cdef list dys = []                    # the gradients of a Function's outputs, which follow each other in the graph
    cdef tuple inputs, dxs
    cdef Node node, x
    cdef Py_ssize_t i
    for node in graph:
        if node.function is not None:
            check_versions(node)
    while graph:
        node = graph.pop()                # frees memory early: only the graph may still keep this Tensor
        dy = gradients.pop(node, None)
        function, inputs = node.function, node.inputs
        if dy is not None and (function is None or node._retains_grad):
            node.add_grad(dy)
        if node._place is not None and function is not None:
            place, count = node._place
            dys = dys or [None] * count
            dys[place] = dy
            if graph and (<Node> graph[len(graph) - 1]).function is function:
                node.function, node.inputs, node._versions = FREED, (), ()
                continue
            dy, dys = (None if all([d is None for d in dys]) else tuple(dys)), []
        if dy is None or function is None:
            continue
        node.function, node.inputs, node._versions = FREED, (), ()
        dxs = input_gradients(function, inputs, function.backward(dy))
        for i in range(len(dxs)):
            x, dx = inputs[i], dxs[i]
            if x is None or dx is None or not x._requires_grad:
                continue
            if not same_type(dx, x._data):
                dx = cast_gradient(function, dx, x)
            before = gradients.get(x)
            gradients[x] = dx if before is None else add(before, dx)


def topological_order(*results):
    """Return the Tensors of a graph in the order in which they were made, so each comes after its inputs."""
    cdef list graph = []
    cdef Node node, x
    cdef Py_ssize_t i = 0, walk = draw_number(&walks)
    for node in results:
        if node.walk != walk:
            node.walk = walk
            graph.append(node)
    while i < len(graph):
        node = graph[i]
        i += 1
        if node.function is FREED:
            raise RuntimeError("backward a second time: the graph was freed by the first")
        for x in node.inputs:
            if x is not None and x._requires_grad and x.walk != walk:
                x.walk = walk
                graph.append(x)
    graph.sort(key=by_serial_number)
    return graph


cdef int check_versions(Node node) except -1:
    """Raise RuntimeError if a value that a Tensor's Function kept for its backward has changed since."""
    cdef list versions = node._versions
    cdef Py_ssize_t i
    if node._version[0] != node._version_made:
        node._raise_if_changed(node, node._version)
    for i in range(0, len(versions), 3):
        if (<list> versions[i + 1])[0] != versions[i + 2]:
            node._raise_if_changed(versions[i], versions[i + 1])
    return 0


cdef tuple input_gradients(function, tuple inputs, gradients):
    """Return the gradients from backward as a tuple, one for each input that needs it; None means no gradient."""
    if gradients is None and any_needs_gradient(inputs, 0):
        raise TypeError(f"{function!r}.backward returned None; it has to return the gradient of its input")
    if not isinstance(gradients, tuple):
        gradients = (gradients,)
    cdef Py_ssize_t given = len(<tuple> gradients)
    if given > len(inputs) or (given < len(inputs) and any_needs_gradient(inputs, given)):
        raise ValueError(f"{function!r}.backward returned {given} gradients for {len(inputs)} inputs; "
                         "x.detach() is an input x that needs none")
    return gradients


cdef bint any_needs_gradient(tuple inputs, Py_ssize_t begin):
    """Return whether an input from number `begin` on needs a gradient."""
    cdef Py_ssize_t i
    for i in range(begin, len(inputs)):
        if inputs[i] is not None and (<Node> inputs[i])._requires_grad:
            return True
    return False
