"""The errors of Winograd's convolutions, beside PyTorch's.

For windows of 3 × 3 pixels and of 3 and 5 in a row, and five kinds of images: the largest error of y, dx and dw in
float32, divided by the largest number of the result, in units of 10⁻⁷. The truth is the direct convolution in float64.
x and dy are of the same kind. The weights are drawn as by He.

    python benchmarks/winograd.py            # without PyTorch, caffelite alone
    python benchmarks/winograd.py --quick    # only to see that it works
"""

import argparse

import harness
import numpy as np

SIZES = {  # images, channels of x and of y, height, width
    "3 × 3, 16 to 16, 32 × 32": (8, 16, 16, (32, 32), (3, 3)),
    "3 × 3, 64 to 64, 16 × 16": (16, 64, 64, (16, 16), (3, 3)),
    "3 × 3, 256 to 256, 8 × 8": (16, 256, 256, (8, 8), (3, 3)),
    "3 in a row, 64 to 64, 128": (16, 64, 64, (1, 128), (1, 3)),
    "5 in a row, 64 to 64, 128": (16, 64, 64, (1, 128), (1, 5)),
}
KINDS = ("normal", "behind a ReLU", "mean 100", "one pixel of 1e4", "Cauchy")


def draw_values(rng, kind, shape):
    if kind == "Cauchy":
        return rng.standard_cauchy(shape).astype(np.float32)
    x = rng.standard_normal(shape)
    if kind == "behind a ReLU":
        x = np.maximum(x, 0)
    elif kind == "mean 100":
        x += 100
    elif kind == "one pixel of 1e4":
        x[0, 0, shape[2] // 2, shape[3] // 2] = 1e4
    return x.astype(np.float32)


def caffelite_results(x, w, dy, padding):
    """y, dx and dw."""
    from caffelite import _kernels as kernels

    window = {"stride": (1, 1), "padding": padding, "dilation": (1, 1)}
    y = kernels.convolution(x, w, dy.shape[2:], **window)
    dx = kernels.transposed_convolution(dy, w, x.shape[2:], **window)
    return y, dx, kernels.convolution_weight_grad(x, dy, np.empty_like(w), **window)


def pytorch_results(x, w, dy, padding):
    import torch

    x, w, dy = map(torch.from_numpy, (x, w, dy))
    y = torch.nn.functional.conv2d(x, w, padding=padding)
    dx = torch.nn.grad.conv2d_input(x.shape, w, dy, padding=padding)
    dw = torch.nn.grad.conv2d_weight(x, w.shape, dy, padding=padding)
    return [result.numpy() for result in (y, dx, dw)]


def errors(contestants, kind, n, inputs, outputs, size, window):
    """For y, dx and dw, the error of each contestant."""
    rng = np.random.default_rng(0)
    x, dy = (draw_values(rng, kind, (n, channels, *size)) for channels in (inputs, outputs))
    w = rng.standard_normal((outputs, inputs, *window)) * np.sqrt(2 / (inputs * np.prod(window)))
    arrays, padding = (x, w.astype(np.float32), dy), tuple([k // 2 for k in window])
    truths = caffelite_results(*[a.astype(np.float64) for a in arrays], padding)
    found = [contestant(*arrays, padding) for contestant in contestants]
    return [
        np.abs(result - truth).max() / np.abs(truth).max()
        for truth, *results in zip(truths, *found, strict=True)
        for result in results
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one size: a smoke test")
    options = parser.parse_args()

    contestants = {"caffelite": caffelite_results}
    try:
        import torch  # noqa: F401

        contestants["PyTorch"] = pytorch_results
    except ModuleNotFoundError:
        print("PyTorch is not installed, left out\n")
    header = ["", *[f"{result}, {name}" for result in ("y", "dx", "dw") for name in contestants]]
    rows = []
    for name, size in list(SIZES.items())[: 1 if options.quick else None]:
        for kind in KINDS:
            found = errors(contestants.values(), kind, *size)
            rows.append([f"{name}, {kind}", *[f"{1e7 * error:.1f}" for error in found]])
    print(
        f"{harness.environment('torch')}\n\nThe largest error, divided by the largest number of the result, in 1e-7:\n"
    )
    print(harness.table(header, rows))


if __name__ == "__main__":
    main()
