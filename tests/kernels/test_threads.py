"""Every number of threads gives the same bits."""

import itertools

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from tests.kernels.arguments import steps_for, uniform
from tests.reference import assert_same_bits

DTYPES = [np.float32, np.float64]
both_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)


@pytest.mark.usefixtures("restored_threads")
@both_dtypes
def test_every_number_of_threads_gives_the_same_bits(dtype):
    a, b, long = uniform(300, 600, dtype=dtype), uniform(600, 130, dtype=dtype), uniform(1000, 1001, dtype=dtype)
    labels, steps = np.arange(1000) % 1001, np.array([[9, 1.0, 0.5], [long.size - 9, 2.0, 0.25]])

    def everything():
        updated, out = [], np.ones((300, 130), dtype)
        for name, rule in kernels.bindings.RULES.items():
            for rows, last in itertools.product(range(rule.least_state, rule.most_state + 1), (0.0, 0.5)):
                w, state, hyper = long.ravel().copy(), np.ones((rows, long.size), dtype), np.full(rule.hyper, 0.1)
                hyper[-1] = last
                own = state if rows > 0 else None, hyper, steps_for(rule, steps)
                kernels.update(name, w, long[::-1].ravel(), *own)
                updated += [w, state]
        kernels.matmul(a, b, out, accumulate=True)
        losses, p = kernels.softmax_loss(long, labels)
        loss = kernels.sum(losses)
        products = [kernels.matmul(a, b), kernels.matmul(b.T, a.T), out]
        products += [kernels.matmul_stack(a.reshape(30, 10, 600), np.broadcast_to(b, (30, *b.shape)))]
        sums = [kernels.sum(long, axis) for axis in (0, 1, None)]
        numbers = (100 * long).astype(np.int16)
        others = [kernels.add(long, long[0]), kernels.add(long.T, long.T), kernels.relu(long), kernels.power(long, 3)]
        others += [*kernels.largest(long, 0), *kernels.smallest(long, 1), kernels.where(long, long[0], long[::-1])]
        others += [kernels.softmax(long), kernels.log_softmax(long, 0), kernels.log_softmax_grad(long, long)]
        others += [kernels.take_grad(long, np.arange(1000) % 7, 9), kernels.take(long, np.arange(999, -1, -1))]
        others += [kernels.convert(numbers, dtype), kernels.convert(numbers.T, np.float64)]
        for axis in (0, 1):
            line = long[0] if axis == 0 else long[:, 0]
            others += [kernels.cumsum(long, axis), kernels.prod(long, axis), kernels.prod_grad(line, long, axis)]
            others += [kernels.variance(long, axis, scale=0.1), kernels.variance_grad(line, long, axis, scale=0.1)]
            others += [kernels.logsumexp(long, axis), kernels.logsumexp_grad(line, long, axis)]
        others += [kernels.softmax_grad(long, p), kernels.extreme_grad(long[0], np.arange(1001), (1001, 1001), 0)]
        others += [*kernels.dropout(long, np.array([7, 3]), 0.3), kernels.dropout_grad(long.T, np.array([7, 3]), 0.9)]
        for x in (long, long.reshape(40, 143, 175)):
            scale = x[0, :, 0] if x.ndim > 2 else x[0]
            y, of_features = kernels.batch_norm(x, scale, scale, 1e-5)
            others += [y, of_features, *kernels.batch_norm_grad(y, x, scale, of_features)]
            others += [kernels.batch_norm_fixed(x, scale, scale, of_features)]
        images = long[:, :1000].reshape(40, 25, 25, 40)
        for x in (images, images.transpose(1, 3, 2, 0), images.transpose(3, 0, 1, 2)):
            y, places = kernels.max_pool(x, (3, 3), (2, 2), (1, 1))
            others += [y, places, kernels.max_pool_grad(y, places, x, (3, 3), (2, 2), (1, 1))]
            y = kernels.average_pool(x, (3, 3), (2, 2), (1, 1))
            others += [y, kernels.average_pool_grad(y, x, (3, 3), (2, 2), (1, 1))]
            y = kernels.upsample(x, (2, 2))
            others += [y, kernels.upsample_grad(y, x, (2, 2))]
        y, of_rows = kernels.layer_norm(long, long[0], long[1], 1e-5)
        others += [y, kernels.layer_norm_grad(y, long, long[0], of_rows), *kernels.layer_norm_sums(y, long, of_rows)]
        return [*updated, loss, p, kernels.softmax_loss_grad(p, labels, loss), *products, *sums, *others]

    cl.set_num_threads(1)
    expected = everything()
    for n in (2, 3, 8):
        cl.set_num_threads(n)
        for array, same in zip(everything(), expected, strict=True):
            assert_same_bits(array, same)
