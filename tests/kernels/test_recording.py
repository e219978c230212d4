"""Recorded kernels: run again on other values they give the bits of eager code."""

import functools
import threading

import numpy as np
import pytest

from caffelite import _kernels as kernels
from caffelite.core.sparse import Nonzeros, make_sparse_rows
from caffelite.program.recording import Recording
from tests import reference
from tests.kernels.arguments import (
    ELEMENTWISE,
    LEVELS,
    SERIES,
    TURNED,
    cursor_at,
    num_required,
    refuse,
    steps_for,
    to_arrays,
    uniform,
)
from tests.reference import assert_same_bits

LABELS = np.array([2, 0, 1, 1])
PLACES = (np.arange(72, dtype=np.int32) % 30).reshape(3, 3, 2, 4).transpose(3, 0, 1, 2)

# Arguments that recordings are made with; the same kernel then runs again on other values in the same memory.
# An elementwise kernel that takes only arrays needs no entry.
SPARSE, OUTSIDE = (
    make_sparse_rows(
        Nonzeros(uniform(6), np.array([1, 3, 0, 1, last, 2]), None), np.array([0, 2, 2, 5]), np.array([2, 0, 3, 1]), 40
    )
    for last in (2, 40)
)
RECORDED = {
    "add": (uniform(4, 5), uniform(5)),
    "subtract": (uniform(4, 5), uniform(4, 1)),
    "multiply": (uniform(4, 5), uniform(4, 5)[::-1]),
    "where": (uniform(4, 5) + 2, uniform(5), uniform(4, 1)),
    "clip": (uniform(4, 5), -0.5, 0.5),
    "clip_grad": (uniform(4, 5), uniform(4, 5), -0.5, 0.5),
    "leaky_relu": (uniform(4, 5), 0.25),
    "leaky_relu_grad": (uniform(4, 5), uniform(4, 5), 0.25),
    "elu_grad": (uniform(4, 5), uniform(4, 5), 0.25),
    "copy": (uniform(2, 3, 2, 3, 2, 3).transpose(5, 3, 1, 4, 2, 0),),
    "negative": (uniform(4, 5).T,),
    "relu": (uniform(600, 1000),),
    "tanh": (uniform(4, 5).T,),
    "elu": (reference.images_last(uniform(3, 4, 5, 6)), 0.25),
    "gelu": (reference.channels_last(uniform(3, 4, 5, 6)),),
    "matmul": (uniform(40, 30).T, uniform(40, 50)),
    "matmul_stack": (uniform(3, 7, 9).transpose(0, 2, 1), uniform(3, 7, 5)),
    "maximum_grad": (uniform(4, 5), uniform(4, 5), uniform(5, seed=1), True),
    "minimum_grad": (uniform(4, 5), uniform(4, 5), uniform(4, 1, seed=1), False),
    "sum": (uniform(4, 5, 6), (0, 2)),
    "cumsum": (uniform(4, 5, 6), 1, True),
    "prod": (uniform(4, 5, 6), (0, 2)),
    "prod_grad": (uniform(5), uniform(4, 5, 6), (0, 2)),
    "variance": (uniform(4, 5, 6), (0, 2)),
    "variance_grad": (uniform(4, 6), uniform(4, 5, 6), 1),
    "logsumexp": (uniform(4, 5, 6), (1, 2)),
    "logsumexp_grad": (uniform(5), uniform(4, 5, 6), (0, 2)),
    "largest": (uniform(4, 5, 6), (0, 2)),
    "smallest": (uniform(4, 5, 6), 1),
    "follow": (uniform(4, dtype=np.float64), uniform(3, dtype=np.float64), np.array([1])),
    "ema": (uniform(40), uniform(40, seed=1), 0.9),
    "norm": (uniform(40), uniform(1, dtype=np.float64)),
    "limit_norm": (uniform(40), uniform(1, dtype=np.float64) ** 2 + 2, 1.5),
    "extreme_grad": (uniform(4, 6), np.arange(24).reshape(4, 6) % 5, (4, 5, 6), 1),
    "softmax": (uniform(4, 5, 6), 1),
    "softmax_grad": (uniform(4, 5), uniform(4, 5)),
    "log_softmax": (uniform(4, 5).T,),
    "log_softmax_grad": (uniform(4, 5), uniform(4, 5), 0),
    "soft_loss": (uniform(4, 3), uniform(4, 3), 0.1),
    "standardize": (uniform(4, 3, dtype=np.float64), np.zeros(3), np.ones(3), np.array([2]), 3.0, np.float32),
    "piecewise": (uniform(4, 2, dtype=np.float64), np.array([-1.0, 0, 1, -1, 1])),
    "piecewise_grad": (uniform(4, 3), uniform(4, 2, dtype=np.float64), np.array([-1.0, 0, 1, -1, 1])),
    "places": (uniform(4, 2, dtype=np.float64), np.array([-1.0, 0, 1, -1, 1])),
    "splines": (uniform(9, 40), uniform(40), uniform(6, 2), None),
    "splines_of_codes": (uniform(9, 40), uniform(40), uniform(6, 1), np.arange(6).reshape(6, 1) % 3),
    "splines_grad": (uniform(6, 40), uniform(6, 2), None),
    "splines_of_codes_grad": (uniform(6, 40), uniform(6, 1), np.arange(6).reshape(6, 1) % 3),
    "splines_input_grad": (uniform(6, 40), uniform(9, 40), uniform(6, 2)),
    "spline_table": (uniform(7, 40), uniform(2, 40), uniform(2), np.arange(7.0)),
    "spline_table_grad": (uniform(9, 40), uniform(7, 40), uniform(2, 40), uniform(2), np.arange(7.0)),
    "standardize_grad": (uniform(4, 4), uniform(4, 3, dtype=np.float64), np.zeros(3), np.ones(3), 3.0),
    "soft_loss_grad": (uniform(4, 3), uniform(4, 3), np.array(0.5, np.float32), uniform(4), 0.1),
    "hinge_loss": (uniform(4, 3), LABELS, 1.0),
    "hinge_loss_grad": (uniform(4, 3), LABELS, np.array(0.5, np.float32), 1.0, uniform(4)),
    "mse_loss": (uniform(4, 3), uniform(4, 3)),
    "mse_loss_grad": (uniform(4, 3), uniform(4, 3), np.array(0.5, np.float32)),
    "mae_loss": (uniform(4, 3), uniform(4, 3)),
    "mae_loss_grad": (uniform(4, 3), uniform(4, 3), np.array(0.5, np.float32)),
    "huber_loss": (uniform(4, 3), uniform(4, 3), 0.5),
    "huber_loss_grad": (uniform(4, 3), uniform(4, 3), np.array(0.5, np.float32), 0.5, uniform(4)),
    "sigmoid_loss": (uniform(4, 3), uniform(4, 3), LEVELS),
    "sigmoid_loss_grad": (uniform(4, 3), uniform(4, 3), np.array(0.5, np.float32), LEVELS),
    "quantile_loss": (uniform(4, 3), uniform(4, 3), LEVELS),
    "quantile_loss_grad": (uniform(4, 3), uniform(4, 3), np.array(0.5, np.float32), LEVELS, uniform(4)),
    "poisson_loss": (uniform(4, 3), uniform(4, 3)),
    "poisson_loss_grad": (uniform(4, 3), uniform(4, 3), np.array(0.5, np.float32)),
    "gaussian_loss": (uniform(4, 6), uniform(4, 3)),
    "gaussian_loss_grad": (uniform(4, 6), uniform(4, 3), np.array(0.5, np.float32), uniform(4)),
    "focal": (uniform(4, 3), 2.0),
    "weighted_mean": (uniform(8), uniform(4) + 2, np.array([0, 1, -1, 2, 0, -1, -1, 1]), -1),
    "check_probabilities": (uniform(4, 3) + 2, 4.0, 100.0),
    "penalty": (uniform(4, 5), 0.1, 0.2),
    "penalty_grad": (np.array(0.5, np.float32), uniform(4, 5), 0.1, 0.2),
    "softmax_loss": (uniform(4, 3).copy(order="F"), LABELS),
    "softmax_loss_grad": (uniform(4, 3), LABELS, np.array(0.5, np.float32)),
    "layer_norm": (uniform(4, 5), uniform(5), uniform(5), 1e-5),
    "layer_norm_grad": (uniform(4, 5), uniform(4, 5), uniform(5), uniform(2, 4, dtype=np.float64)),
    "layer_norm_sums": (uniform(4, 5), uniform(4, 5), uniform(2, 4, dtype=np.float64)),
    "batch_norm": (reference.images_last(uniform(4, 5, 3)), uniform(5), uniform(5), 1e-5),
    "batch_norm_fixed": (uniform(4, 5), uniform(5), uniform(5), uniform(3, 5, dtype=np.float64)),
    "batch_norm_grad": (
        *(uniform(5, 4, 3), reference.channels_last(uniform(5, 4, 3))),
        *(uniform(4), uniform(3, 4, dtype=np.float64)),
    ),
    "feature_sums": (reference.channels_last(uniform(4, 5, 3)),),
    "merge_moments": (uniform(2, 3, 5, dtype=np.float64), 1e-5),
    "batch_norm_sums": (uniform(4, 5, 3), uniform(4, 5, 3), uniform(3, 5, dtype=np.float64)),
    "batch_norm_grad_of_sums": (
        *(uniform(4, 5, 3), uniform(4, 5, 3), uniform(5), uniform(3, 5, dtype=np.float64)),
        *(uniform(2, 5, dtype=np.float64), uniform(2, 5, dtype=np.float64), 20),
    ),
    "update_moments": (uniform(5), uniform(5), uniform(3, 5, dtype=np.float64), 7, 0.1),
    "running_moments": (uniform(5), uniform(5) ** 2, 1e-5),
    "max_pool": (uniform(4, 3, 6, 5), (2, 2), (2, 2), (0, 0)),
    "max_pool_grad": (uniform(4, 3, 3, 2), PLACES, uniform(4, 3, 6, 5), (2, 2), (2, 2), (0, 0)),
    "average_pool": (uniform(3, 6, 5, 4).transpose(3, 0, 1, 2), (3, 3), (2, 2), (1, 1)),
    "average_pool_grad": (uniform(4, 3, 3, 3), uniform(4, 3, 6, 5), (3, 3), (2, 2), (1, 1)),
    "upsample": (uniform(4, 3, 5), (1, 3)),
    "upsample_grad": (uniform(4, 3, 6, 5), uniform(4, 3, 3, 5), (2, 1)),
    "convolution": (uniform(5, 4, 7, 6), uniform(6, 2, 3, 3), (4, 3), uniform(6)),
    "transposed_convolution": (reference.images_last(uniform(5, 40, 4)), uniform(40, 3, 3), (8,), uniform(3)),
    "convolution_weight_grad": (uniform(5, 34, 6), reference.channels_last(uniform(5, 15, 6)), uniform(15, 34, 3)),
    "depthwise": (uniform(5, 33, 7, 6), uniform(33, 1, 3, 3), (7, 6), uniform(33)),
    "transposed_depthwise": (uniform(5, 33, 7, 6), uniform(33, 1, 3, 3), (7, 6)),
    "depthwise_weight_grad": (uniform(5, 33, 7, 6), uniform(5, 33, 7, 6, seed=1), uniform(33, 1, 3, 3)),
    "winograd_weights": (uniform(5, 17, 7), uniform(17, 18, 3), (7,), uniform(18)),
    "winograd_convolution": (uniform(5, 17, 7, 6), uniform(18, 17, 3, 3), (7, 6), uniform(18)),
    "winograd_sums": (uniform(5, 17, 7), uniform(5, 18, 7), uniform(18, 17, 5)),
    "winograd_weight_grad": (uniform(5, 17, 7, 6), uniform(5, 18, 7, 6), uniform(18, 17, 3, 3)),
    "rnn": (uniform(3, 4, 5), uniform(5, 5), uniform(5), uniform(3, 5), np.array([4, 1, 3])),
    "gru": (uniform(3, 4, 15), uniform(15, 5), uniform(15), uniform(3, 5), np.array([4, 1, 3]), True),
    "lstm": (uniform(3, 4, 20), uniform(20, 5), uniform(20), uniform(3, 5), uniform(3, 5), np.array([4, 1, 3]), True),
    "rnn_grad": (uniform(3, 4, 5), uniform(5, 5), uniform(3, 4, 5), uniform(3, 5), np.array([4, 1, 3])),
    "gru_grad": (
        *(uniform(3, 4, 15), uniform(15, 5), uniform(3, 4, 5), uniform(3, 4, 5)),
        *(uniform(3, 4, 5), uniform(3, 5), np.array([4, 1, 3])),
    ),
    "lstm_grad": (
        *(uniform(3, 4, 20), uniform(20, 5), uniform(3, 4, 5), uniform(3, 5)),
        *(uniform(3, 4, 5), uniform(3, 5), uniform(3, 5), np.array([4, 1, 3])),
    ),
    "pack": (uniform(96, 30).T,),  # strips that are filled
    "cut": (uniform(3, 4, 5).swapaxes(1, 2), np.array([5, 1, 3])),
    "next_draw": (np.array([7, 3]),),
    "shift": (uniform(20, 2, 4, 5), np.array([7, 3, 1]), 2),
    "flip": (uniform(20, 5, 4).swapaxes(1, 2), np.array([7, 3, 1])),
    "cutout": (uniform(20, 4, 5), np.array([7, 3, 1]), 3),
    "crop": (uniform(20, 2, 4, 5), np.array([7, 3, 1]), 3, 6, 1),
    "affine": (uniform(20, 2, 4, 5), np.tile(TURNED, (20, 1, 1))),
    "rotary": (uniform(2, 5, 8), 2, 3),
    "attention": (uniform(2, 5, 6), uniform(2, 7, 6), uniform(2, 7, 6), 2, True, np.arange(14).reshape(2, 7) % 3 > 0),
    "attention_grad": (
        *(uniform(2, 5, 6), uniform(2, 5, 6), uniform(2, 7, 6), uniform(2, 7, 6), uniform(2, 5, 6)),
        *(uniform(2, 2, 2, 5), 2, True, None, np.array([7, 3]), 0.5),
    ),
    "dropout": (uniform(20, 10).T, np.array([7, 3]), 0.5),
    "dropout_grad": (uniform(20, 10), np.array([7, 3]), 0.5),
    "count_steps": (np.array([[4, 3], [6, 2]], np.float64),),
    "shuffle": (np.arange(20), np.arange(1, 5, dtype=np.uint64)),
    "group_batches": (np.arange(20), np.arange(1, 5, dtype=np.uint64), np.arange(20) % 3, np.arange(23), 3, 6),
    "ravel_index": ((4, 3, 2), np.array([[2], [-1]]), LABELS, 1),
    "take": (uniform(4, 3), LABELS),
    "take_grad": (uniform(4, 3), LABELS, 3),
    "use_rows": (np.zeros(9, np.int64), LABELS, uniform(4, 3), False),
    "use_all_rows": (np.zeros(9, np.int64),),
    "use_columns": (np.zeros(81, np.int64), SPARSE.rows, uniform(40, 3), False),
    "sparse_matmul": (SPARSE.rows, uniform(40, 5)),
    "sparse_matmul_grad": (SPARSE.rows, uniform(4, 5)),
    "sparse_to_dense": (SPARSE.rows,),
    "all_finite": (uniform(40),),
    "check_labels": (LABELS, 3),
    "convert": (np.arange(20, dtype=np.uint8).reshape(4, 5).T, np.float64),
}
DEPTHWISE = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 33}
BY_KEYWORD = {
    "piecewise": {"starts": np.array([0, 3, 5]), "dtype": np.float32},
    "places": {"starts": np.array([0, 3, 5]), "dtype": np.float32},
    "splines": {"starts": np.array([0, 5, 9])},
    "splines_of_codes": {"starts": np.array([0, 5, 9])},
    "splines_grad": {"starts": np.array([0, 5, 9])},
    "splines_of_codes_grad": {"starts": np.array([0, 5, 9])},
    "splines_input_grad": {
        "starts": np.array([0, 5, 9]),
        "edges": np.arange(7.0),
        "edge_starts": np.array([0, 4, 7]),
    },
    "spline_table": {"starts": np.array([0, 4, 7])},
    "spline_table_grad": {"starts": np.array([0, 4, 7])},
    "piecewise_grad": {"starts": np.array([0, 3, 5])},
    "depthwise": DEPTHWISE,
    "transposed_depthwise": DEPTHWISE,
    "depthwise_weight_grad": DEPTHWISE,
    "variance": {"scale": 0.5},
    "variance_grad": {"scale": 0.5},
    "convolution": {"stride": (2, 2), "padding": (1, 1), "dilation": (1, 1), "groups": 2},
    "transposed_convolution": {"stride": (2,), "padding": (1,), "dilation": (1,)},
    "convolution_weight_grad": SERIES,
    "winograd_weights": {"stride": (1,), "padding": (1,), "dilation": (1,)},
    "winograd_convolution": {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)},
    "winograd_sums": {"stride": (1,), "padding": (2,), "dilation": (1,)},
    "winograd_weight_grad": {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)},
}
MADE_BY = {
    "splines_of_codes": kernels.splines,
    "splines_of_codes_grad": kernels.splines_grad,
    "depthwise": kernels.convolution,
    "transposed_depthwise": kernels.transposed_convolution,
    "depthwise_weight_grad": kernels.convolution_weight_grad,
    "winograd_weights": kernels.transposed_convolution,
    "winograd_convolution": kernels.convolution,
    "winograd_sums": kernels.convolution_weight_grad,
    "winograd_weight_grad": kernels.convolution_weight_grad,
}
THROUGH_A_CURSOR = {"take_batch", "put_batch", "advance", "add_mean", "add_weighted_mean", "add_correct"}
for kernel in ELEMENTWISE:
    if kernel.name not in RECORDED:
        RECORDED[kernel.name] = tuple(uniform(4, 5, seed=i) + 2 for i in range(num_required(kernel)))
for name, rule in kernels.bindings.RULES.items():
    steps = steps_for(rule, np.array([[4, 3, 0.5], [6, 2, 0.25]]))
    own = uniform(rule.most_state, 10) ** 2, np.linspace(0.1, 0.9, rule.hyper)
    RECORDED[name] = (uniform(10), uniform(10), *own, steps)


def new_values(argument, seed):
    """Other values of the same shape, in the same memory layout."""
    if not isinstance(argument, np.ndarray):
        return argument
    rng, fresh = np.random.default_rng(seed), np.empty_like(argument)
    if argument.shape in ((2, 2), (2, 3)) and argument.dtype == np.float64:  # steps, which speak of all elements
        fresh[...] = argument + np.array([[seed, 0, 0], [-seed, seed, 0]])[:, : argument.shape[1]]
    elif argument.dtype.kind == "f":
        fresh[...] = rng.uniform(0.1, 1, argument.shape)
    else:
        fresh[...] = rng.permutation(argument)
    return fresh


def copy_arguments(arguments):
    return [np.copy(a, order="K") if isinstance(a, np.ndarray) else a for a in arguments]


def test_every_kernel_is_tried_in_a_recording():
    assert set(kernels.KERNELS) - {"full", "rotary_table"} - THROUGH_A_CURSOR == set(RECORDED)


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_kernel_run_again_on_other_values_gives_eager_bits(name):
    kernel = MADE_BY.get(name) or getattr(kernels, name, None) or functools.partial(kernels.update, name)
    kernel, arguments = functools.partial(kernel, **BY_KEYWORD.get(name, {})), copy_arguments(RECORDED[name])
    with Recording() as recording:
        result = kernel(*arguments)
    assert name in [call.name for call in recording.entries]
    for seed in (1, 2):
        fresh = [new_values(a, seed) for a in arguments]
        for argument, values in zip(arguments, fresh, strict=True):
            if isinstance(argument, np.ndarray):
                argument[...] = values
        for array in to_arrays(result):
            if array.ndim > 0:
                array.fill(-77)
        assert kernels.Replay(recording.entries).run() is None
        expected = kernel(*fresh)
        for array, same in zip(to_arrays(result), to_arrays(expected), strict=True):
            assert_same_bits(array, same)
        for argument, same in zip(arguments, fresh, strict=True):
            assert_same_bits(argument, same)


def test_the_first_bytes_of_rows_are_taken_and_put_with_zeros_behind_them():
    x, kept, order = np.arange(40).reshape(10, 4), np.full((10, 4), -1), np.random.default_rng(0).permutation(10)
    cursor, _held = cursor_at(x, kept, order=order, sums=np.zeros((1, 2)))
    batch = np.empty((5, 3), np.int64)
    with Recording() as recording:
        kernels.take_batch(cursor, 0, batch, 32)
        kernels.put_batch(cursor, 1, batch, 32)
        kernels.advance(cursor, 5)
    assert_same_bits(batch, x[order[:5], :3])
    kernels.Replay(recording.entries).run()
    assert_same_bits(batch, x[order[5:], :3])
    assert_same_bits(kept, x[order] * [1, 1, 1, 0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_recorded_batch_is_found_and_measured_through_the_cursor(dtype):
    x, y, w = uniform(10, 3, dtype=dtype), np.arange(10) % 3, uniform(10, dtype=dtype)
    order, sums, kept = np.random.default_rng(0).permutation(10), np.zeros((3, 2)), np.zeros((10, 3), dtype)
    cursor, _held = cursor_at(x, y, w, kept, order=order, sums=sums)
    batch, labels, weights = np.empty((4, 3), dtype), np.empty(4, np.int64), np.empty(4, dtype)
    with Recording() as recording:
        kernels.take_batch(cursor, 0, batch)
        kernels.take_batch(cursor, 1, labels)
        kernels.take_batch(cursor, 2, weights)
        kernels.add_mean(cursor, 0, batch[0, :1], 4)
        kernels.add_correct(cursor, 1, batch, labels)
        kernels.add_weighted_mean(cursor, 2, batch[0, :1], weights)
        kernels.put_batch(cursor, 3, batch)
        kernels.advance(cursor, 4)
    assert_same_bits(batch, x[order[:4]])
    kernels.Replay(recording.entries).run()
    assert_same_bits(batch, x[order[4:8]])
    assert_same_bits(labels, y[order[4:8]])
    assert_same_bits(kept, np.append(x[order[:8]], np.zeros((2, 3), dtype), axis=0))
    correct = (x.argmax(axis=1) == y)[order[:8]].sum()
    first, second = float(x[order[0], 0]), float(x[order[4], 0])
    assert sums[:2].tolist() == [[4 * first + 4 * second, 8], [correct, 8]]
    weight = w[order].astype(np.float64)
    expected = [weight[:4].sum() * first + weight[4:8].sum() * second, weight[:8].sum()]
    np.testing.assert_allclose(sums[2], expected, rtol=1e-14)
    assert cursor["position"] == cursor["measured"] == 8


def test_something_other_than_a_cursor_raises():
    for cursor in (np.zeros(5, np.int64), None, np.zeros(2, kernels.CURSOR)):
        with pytest.raises(TypeError, match="cursor"):
            kernels.advance(cursor, 1)


NUMBERS = {
    "bool": [False, True, True],
    "float16": [-0.0, 0.1, 65504, -np.inf, np.nan],
    "float32": [-0.0, 0.1, 1e-40, 3e38, -np.inf, np.nan],
    "float64": [-0.0, 0.1, 1e-40, 1e-300, 1e300, 1 + 2**-24, -np.inf, np.nan],
}
for integers in ("int8", "int16", "int32", "int64", "longlong", "uint8", "uint16", "uint32", "uint64"):
    info = np.iinfo(integers)
    halves = [2**24 + 1, 2**53 + 1, 2**62 + 2**38 + 1, 2**63 + 2**39 + 1]  # between two numbers of float32 or float64
    NUMBERS[integers] = [0, 1, 100, info.max - 1, info.max, info.min, *[x for x in halves if x < info.max]]


@pytest.mark.parametrize("target", ["float32", "float64", "int64"])
@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_of_every_type_are_converted_as_numpy_converts_them(kind, target):
    if target == "int64" and "int" not in kind and kind != "longlong":
        return
    numbers = np.array(NUMBERS[kind], kind)
    wide = np.resize(numbers, (3, 1, 5, 2, 7, 3, 2))
    swapped = numbers.astype(numbers.dtype.newbyteorder())
    views = [numbers[::-1], numbers[:0], numbers[1, ...], np.repeat(numbers, 2)[::2]]
    for array in (numbers, swapped, *views, wide, wide.T, wide[::-1, :, ::2, ..., ::3, ::-1]):
        with np.errstate(over="ignore"):
            expected = array.astype(target, order="C")
        assert_same_bits(kernels.convert(array, target), expected)


def test_every_byte_of_a_bool_array_but_0_is_true():
    bools = np.arange(4, dtype=np.uint8).view(np.bool_)
    assert kernels.convert(bools, np.float32).tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("dtype", ["float16", ">f4", ">i2"])
def test_a_conversion_that_only_numpy_makes_raises_in_a_recorded_step(dtype):
    array = np.ones(3, dtype)
    with Recording(), pytest.raises(TypeError, match=rf"{dtype}.*a step that is being recorded can't convert it"):
        kernels.convert(array, np.float32)


@pytest.mark.parametrize("k", [30, 300])
def test_a_recorded_accumulation_adds_again(k):
    a, b, out, sums = uniform(20, k), uniform(k, 10), np.zeros((20, 10), np.float32), np.zeros(k, np.float32)
    with Recording() as recording:
        kernels.matmul(a, b, out, accumulate=True)
        kernels.sum(a, 0, out=sums, accumulate=True)
    kernels.Replay(recording.entries).run()
    assert_same_bits(out, 2 * kernels.matmul(a, b))
    assert_same_bits(sums, 2 * kernels.sum(a, 0))


def test_a_recorded_check_says_when_to_stop():
    a, labels, rows = uniform(40), LABELS.copy(), uniform(4, 3)
    with Recording() as recording:
        kernels.all_finite(a)
        kernels.check_labels(labels, 3)
        kernels.take(rows, labels)
    assert kernels.Replay(recording.entries).run() is None
    labels[2] = 4
    assert kernels.Replay(recording.entries).run() is recording.entries[1]
    a[17] = np.nan
    assert kernels.Replay(recording.entries).run() is recording.entries[0]


STOPPED = {  # a kernel that may stop a step, its arguments, which of them goes bad, and the bad value
    "take": ((np.arange(12.0).reshape(4, 3), LABELS), 1, 4),
    "take_grad": ((np.ones((4, 3)), LABELS, 4), 1, -1),
    "cut": ((np.ones((4, 3)), LABELS + 1), 1, 4),
    "use_rows": ((np.zeros(9, np.int64), LABELS, np.ones((4, 3)), True), 1, 4),
    "use_columns": ((np.zeros(81, np.int64), SPARSE.rows, np.ones((40, 3)), True), 1, OUTSIDE.rows[2]),
    "sparse_matmul": ((SPARSE.rows, uniform(40, 5)), 0, OUTSIDE.rows[2]),
    "sparse_matmul_grad": ((SPARSE.rows, uniform(4, 5)), 0, OUTSIDE.rows[2]),
    "sparse_to_dense": ((SPARSE.rows,), 0, OUTSIDE.rows[2]),
    "ravel_index": (((3, 4), LABELS, 1), 1, 3),
    "group_batches": ((np.arange(4), np.arange(1, 5, dtype=np.uint64), np.arange(4) % 2, np.arange(6), 1, 4), 2, 2),
    "softmax_loss": ((np.ones((4, 3)), LABELS), 1, 3),
    "softmax_loss_grad": ((np.ones((4, 3)) / 3, LABELS, np.ones(1)), 1, -1),
    "hinge_loss": ((np.ones((4, 3)), LABELS, 1.0), 1, 3),
    "hinge_loss_grad": ((np.ones((4, 3)), LABELS, np.ones(1), 1.0), 1, -1),
    "weighted_mean": ((np.ones(4), np.ones(4), None, None, lambda weights: refuse(weights)), 1, -1),
    "check_probabilities": ((np.ones((4, 1)), 1.0, 1e-3, lambda rows: refuse(rows)), 0, 0.5),
    "extreme_grad": ((np.ones(4), LABELS, (3, 4), 0), 1, 3),
    "check_labels": ((LABELS, 3, lambda labels: refuse(labels)), 0, 5),
    "splines_of_codes": (
        (np.zeros((9, 4)), np.zeros(4), np.zeros((3, 1)), np.zeros((3, 1), int), np.array([0, 5, 9])),
        3,
        4,
    ),
    "splines_of_codes_grad": ((np.zeros((3, 4)), np.zeros((3, 1)), np.zeros((3, 1), int), np.array([0, 5, 9])), 2, 4),
    "norm": ((np.ones(5), None, lambda values: refuse(values)), 0, np.nan),
    "all_finite": ((np.ones(5), lambda values: refuse(values)), 0, np.nan),
}


def test_every_kernel_that_may_stop_a_step_is_tried():
    may_stop = {name for name, kernel in kernels.KERNELS.items() if kernel.may_stop}
    assert may_stop == set(STOPPED)


@pytest.mark.parametrize("name", STOPPED)
def test_a_kernel_that_stops_a_replay_raises_what_it_raises_eagerly(name):
    kernel = MADE_BY.get(name) or getattr(kernels, name)
    arguments, bad, value = STOPPED[name]
    arguments = copy_arguments(arguments)
    with Recording() as recording:
        kernel(*arguments)
    replay = kernels.Replay(recording.entries)
    assert replay.run() is None
    arguments[bad][2] = value
    with pytest.raises((IndexError, ArithmeticError)) as eager:
        kernel(*arguments)
    stopped = replay.run()
    assert stopped is not None
    with pytest.raises(type(eager.value)) as replayed:
        stopped.raise_error()
    assert str(replayed.value) == str(eager.value)


def test_recorded_kernels_have_their_names():
    a = uniform(3, 3)
    with Recording() as recording:
        kernels.relu(kernels.matmul(a, a))
    assert [kernel.name for kernel in recording.entries] == ["matmul", "relu"]
    assert repr(recording.entries[0]).startswith("matmul")
    assert all(isinstance(call, kernels.RecordedCall) for call in recording.entries)


def test_a_recording_keeps_its_arrays_alive():
    with Recording() as recording:
        result = kernels.add(uniform(1000), uniform(1000, seed=1))
    expected = result.copy()
    junk = [np.full(1000, np.nan, np.float32) for _ in range(100)]
    kernels.Replay(recording.entries).run()
    assert_same_bits(result, expected)
    assert len(junk) == 100


def test_kernels_outside_a_recording_are_not_recorded():
    a = uniform(3)
    kernels.relu(a)
    with Recording() as recording:
        kernels.relu(a)
    kernels.negative(a)
    assert [kernel.name for kernel in recording.entries] == ["relu"]


def test_a_second_recording_in_the_same_thread_raises_and_leaves_the_first_alone():
    a = uniform(3)
    with Recording() as recording:
        with pytest.raises(RuntimeError, match="recording"), Recording():
            pass
        kernels.relu(a)
    assert [kernel.name for kernel in recording.entries] == ["relu"]


def test_an_exception_ends_a_recording():
    with pytest.raises(ZeroDivisionError), Recording():
        raise ZeroDivisionError
    with Recording() as recording:
        kernels.relu(uniform(3))
    assert len(recording.entries) == 1


def test_a_recording_is_its_threads_own():
    a, in_thread = uniform(3), []
    started, recorded = threading.Barrier(2, timeout=10), threading.Barrier(2, timeout=10)

    def other():
        with Recording() as recording:
            started.wait()
            kernels.negative(a)
            recorded.wait()
        in_thread.extend(kernel.name for kernel in recording.entries)

    thread = threading.Thread(target=other)
    thread.start()
    with Recording() as recording:
        started.wait()
        kernels.relu(a)
        recorded.wait()
    thread.join()
    assert [kernel.name for kernel in recording.entries] == ["relu"]
    assert in_thread == ["negative"]


def test_a_recorder_raises_for_what_a_replay_would_not_repeat():
    x = np.ones(3).view(kernels.RecordedArray)
    with kernels.Recorder(), pytest.raises(TypeError, match=r"numpy\.exp was used on an array of a step"):
        np.exp(x)
