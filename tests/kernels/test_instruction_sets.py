"""Every instruction set agrees with float64, and unknown ones are refused."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from caffelite import _kernels as kernels
from tests.kernels.arguments import BEST, OTHERS, run_python

every_instruction_set = pytest.mark.parametrize("isa", [BEST, *OTHERS])
ALL_KERNELS = """
    import numpy as np
    from caffelite import _kernels as k

    def everything(dtype):
        rng = np.random.default_rng(0)
        a, b, c = rng.uniform(0.5, 2, (33, 70)), rng.uniform(-1, 1, (70, 51)), rng.uniform(-2, 2, (33, 70))
        a, b, c = a.astype(dtype), b.astype(dtype), c.astype(dtype)
        labels = rng.integers(0, 70, 33)
        w, v, hyper = a.ravel().copy(), c.ravel().copy(), np.array([0.1, 0.9, 0.01, 1.0])
        k.update("sgd", w, b.ravel()[: w.size], v[None], hyper)
        x, moments, adam = a.ravel().copy(), np.array([c.ravel(), a.ravel()]), np.array([0.01, 0.9, 0.999, 1e-8, 0.1])
        k.update("adam", x, b.ravel()[: x.size], moments, adam, np.array([[x.size, 3.0]]))
        losses, p = k.softmax_loss(c, labels)
        loss = k.sum(losses)
        y, of_rows = k.layer_norm(c, a[0], c[0], 1e-5)
        dscale, dshift = k.layer_norm_sums(a, c, of_rows)
        of_features = k.batch_norm(c, a[0], c[0], 1e-5)[1]
        images = c.reshape(3, 11, 70)
        of_images = k.batch_norm(images, a[:11, 0], c[:11, 0], 1e-5)[1]
        heads, hidden = (a.reshape(3, 11, 70), images, b.T[:33].reshape(3, 11, 70)), rng.random((3, 11)) < 0.8
        h, norms, drawn = k.attention(*heads, 5, True, hidden, np.array([7, 3]), 0.2)
        of_heads = k.attention_grad(images[::-1], *heads, h, norms, 5, True, hidden, drawn, 0.2)
        mean, variance = c[0].copy(), a[0].copy()
        k.update_moments(mean, variance, of_features, 33, 0.1)
        convolutions = {}
        few, many = ((5, 3, 6, 1), (5, 2, 3, 2), (19, 1, 1, 5)), ((5, 3, 37, 1), (19, 34, 2, 2), (5, 1, 1, 35))
        for n, into, of, groups in few + many:
            x = rng.uniform(-1, 1, (n, into * groups, 7, 9)).astype(dtype)
            weights = rng.uniform(-1, 1, (of * groups, into, 3, 2)).astype(dtype)
            window = {"stride": (2, 1), "padding": (1, 1), "dilation": (1, 2), "groups": groups}
            dy = rng.uniform(-1, 1, (n, of * groups, 4, 9)).astype(dtype)
            y_of_it = k.convolution(x, weights, (4, 9), a[0, : of * groups], **window)
            dx = k.transposed_convolution(dy, weights, (7, 9), c[0, : into * groups], **window)
            dw = k.convolution_weight_grad(x, dy, np.empty_like(weights), **window)
            for name, result in (("convolution", y_of_it), ("transposed", dx), ("weights", dw)):
                convolutions[f"{name} {n} {into} {of} {groups}"] = result
        recurrences = {}
        for count, forward, backward in ((1, k.rnn, k.rnn_grad), (3, k.gru, k.gru_grad), (4, k.lstm, k.lstm_grad)):
            gates, weights = (rng.uniform(-1, 1, (n, count * 17)).astype(dtype) for n in (11 * 5, 17))
            gates, weights, last = gates.reshape(11, 5, -1), weights.T / 9, c[:11, :17]
            states, lengths, dy = [last] * (1 + (count == 4)), np.arange(11) % 5 + 1, c.ravel()[: 11 * 5 * 17]
            found = forward(gates, weights, c.ravel()[: count * 17], *states, lengths)
            kept = [] if count == 1 else [found[0], found[2]] if count == 3 else [found[2], last]
            found += backward(gates, weights, *kept, dy.reshape(11, 5, 17), *states, lengths)
            recurrences |= {f"{count} {i}": a for i, a in enumerate([gates, *found]) if a is not None}
        return {
            **convolutions, **recurrences, "attention": h, **dict(zip(("dq", "dk", "dv"), of_heads, strict=True)),
            "layer_norm": y, "layer_norm_grad": k.layer_norm_grad(a, c, a[0], of_rows),
            "batch_norm": k.batch_norm(c, a[0], c[0], 1e-5)[0],
            "of images": k.batch_norm(images, a[:11, 0], c[:11, 0], 1e-5)[0],
            "fixed": k.batch_norm_fixed(c, a[0], c[0], k.running_moments(mean, variance, 1e-5)), "mean": mean,
            "variance": variance, "of_features": of_features, "of_images": of_images,
            **dict(zip("abc", k.batch_norm_grad(a, c, a[0], of_features), strict=True)),
            **dict(zip("def", k.batch_norm_grad(a.reshape(3, 11, 70), images, a[:11, 0], of_images), strict=True)),
            "shift": k.shift(images, np.array([2**62 + 7, 3, 1]), 9), "flip": k.flip(images, np.array([7, 3, 1])),
            "cutout": k.cutout(images, np.array([7, 2**40, 1]), 5),
            "crop": k.crop(images, np.array([7, 3, 1]), 5, 9, 3),
            "affine": k.affine(images, np.tile([[0.8, 0.5], [-0.4, 1.1]], (len(images), 1, 1))),
            "dscale": dscale, "dshift": dshift, "dropout": k.dropout_grad(c, np.array([2**62 + 7, 3]), 0.3),
            "matmul": k.matmul(c, b, bias=b[0]),
            "sum0": k.sum(c, 0), "sum1": k.sum(c, 1), "sum": k.sum(c),
            "max0": k.largest(c, 0)[0], "max1": k.largest(c, 1)[0], "min0": k.smallest(c, 0)[0],
            "softmax": k.softmax(c), "softmax0": k.softmax(c, 0), "log_softmax": k.log_softmax(c),
            "softmax_grad": k.softmax_grad(a, p), "log_softmax_grad": k.log_softmax_grad(a, k.log_softmax(c)),
            "maximum": k.maximum(a, c), "minimum": k.minimum(a, c), "where": k.where(k.relu(c), a, c[0]),
            "abs": k.abs(c), "abs_grad": k.abs_grad(a, c), "sqrt": k.sqrt(a), "sqrt_grad": k.sqrt_grad(c, a),
            "add": k.add(a, c[0]), "subtract": k.subtract(a, c), "multiply": k.multiply(a, c),
            "divide": k.divide(c, a), "power": k.power(a, c), "negative": k.negative(c),
            "relu": k.relu(c), "relu_grad": k.relu_grad(a, c),
            "base": k.power_grad_base(a, a, c), "exponent": k.power_grad_exponent(a, a, c),
            "exp": k.exp(c), "log": k.log(a), "tanh": k.tanh(c), "sigmoid": k.sigmoid(c),
            "sin": k.sin(c), "cos": k.cos(c), "sin_grad": k.sin_grad(a, c), "cos_grad": k.cos_grad(a, c),
            "maximum_grad": k.maximum_grad(a, a, c, False), "minimum_grad": k.minimum_grad(a, a, c, True),
            "cumsum0": k.cumsum(c, 0), "cumsum1": k.cumsum(c, 1, reverse=True),
            "prod0": k.prod(c[:5], 0), "prod1": k.prod(c[:, :5], 1),
            "prod_grad0": k.prod_grad(c[0], a[:5], 0), "prod_grad1": k.prod_grad(c[:, 0], a[:, :5], 1),
            "variance0": k.variance(c, 0, scale=0.1), "variance1": k.variance(c, 1, scale=0.1),
            "variance_grad0": k.variance_grad(c[0], a, 0, scale=0.1),
            "variance_grad1": k.variance_grad(c[:, 0], a, 1, scale=0.1),
            "logsumexp0": k.logsumexp(c, 0), "logsumexp1": k.logsumexp(c, 1),
            "logsumexp_grad0": k.logsumexp_grad(c[0], a, 0), "logsumexp_grad1": k.logsumexp_grad(c[:, 0], a, 1),
            "tanh_grad": k.tanh_grad(c, k.tanh(c)), "sigmoid_grad": k.sigmoid_grad(c, k.sigmoid(c)),
            "few columns": k.matmul(c, b[:, :3]), "few rows": k.matmul(c[:2], b), "transposed": k.matmul(b.T, c.T),
            "loss": loss, "p": p, "ds": k.softmax_loss_grad(p, labels, loss), "w": w, "v": v,
            "x": x, "moments": moments, "norm": k.norm(c.ravel()),
        }
"""


@every_instruction_set
def test_every_instruction_set_agrees_with_float64_within_tolerance(isa, tmp_path):
    path = str(tmp_path / "results.npz")
    run_python(
        ALL_KERNELS
        + f"""
    assert k.ISA == {isa!r}, k.ISA
    results = {{}}
    for dtype in ("float32", "float64"):
        results |= {{f"{{dtype}}.{{name}}": array for name, array in everything(dtype).items()}}
    np.savez({path!r}, **results)
        """,
        CAFFELITE_ISA=isa,
    )
    namespace = {}
    exec(textwrap.dedent(ALL_KERNELS), namespace)
    truth = namespace["everything"]("float64")
    with np.load(path) as results:
        assert len(results) == 2 * len(truth)
        for name in results:
            dtype, kernel = name.split(".")
            np.testing.assert_allclose(
                results[name], truth[kernel], *((5e-6, 2e-5) if dtype == "float32" else (1e-12, 1e-12)), err_msg=name
            )


@every_instruction_set
def test_a_part_of_an_update_has_the_bits_of_the_whole(isa):
    """Wherever threads cut it: its elements may be the last ones of a loop, which vectors don't fill."""
    run_python(
        """
        import numpy as np
        from caffelite import _kernels as k

        def updated(dtype, a, b):
            results, (g, start, *states) = [], np.random.default_rng(0).uniform(0.1, 1, (4, 67)).astype(dtype)[:, a:b]
            for name, rule in k.bindings.RULES.items():
                steps = np.array([[b - a, 3.0, 0.5]])[:, : rule.steps].copy() if rule.steps else None
                for rows in range(rule.least_state, rule.most_state + 1):
                    for last in (0.0, 0.3):
                        w, state, hyper = start.copy(), np.array(states[:rows]), np.linspace(0.1, 0.01, rule.hyper)
                        hyper[-1] = last
                        k.update(name, w, g, state if rows > 0 else None, hyper, steps)
                        results += [w, *state]
            return np.array(results)

        for dtype in (np.float32, np.float64):
            whole = updated(dtype, 0, 67)
            for a in range(67):
                for b in range(a + 1, 68):
                    assert (updated(dtype, a, b) == whole[:, a:b]).all(), (dtype, a, b)
        """,
        CAFFELITE_ISA=isa,
    )


def test_an_unknown_instruction_set_raises_at_import():
    result = subprocess.run(
        [sys.executable, "-c", "import caffelite"],
        env={**os.environ, "CAFFELITE_ISA": "z80"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode != 0
    assert "CAFFELITE_ISA is 'z80'" in result.stderr
    assert kernels.available_instruction_sets()[0] in result.stderr
