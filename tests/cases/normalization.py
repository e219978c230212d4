"""Normalization of rows and features."""

import dataclasses

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np

from caffelite import functions
from tests.cases.case import Case, Family, side


def ones_to_three(shape, rng):
    """Scales and shifts that differ from each other and from 1 and 0."""
    return rng.uniform(1, 3, shape)


def normalize(x, axes, eps):
    """x̂ over these axes, and the function from its gradient to that of x."""
    deviation = np.sqrt(x.var(axes, keepdims=True) + eps)
    y = (x - x.mean(axes, keepdims=True)) / deviation

    def backward(g):
        return (g - g.mean(axes, keepdims=True) - y * (g * y).mean(axes, keepdims=True)) / deviation

    return y, backward


def layer_norm_case(shape, eps, bias):
    def judge(x, scale, shift=0.0):
        y, backward = normalize(x, -1, eps)
        rows = tuple(range(x.ndim - 1))

        def gradients(dy):
            dscale, dshift = (dy * y).sum(rows), dy.sum(rows)
            return (backward(dy * scale), dscale, dshift) if bias else (backward(dy * scale), dscale)

        return y * scale + shift, gradients

    return Case(
        lambda: functions.LayerNorm(shape[-1], eps, bias),
        (shape,),
        judge,
        lambda torch, x, scale, shift=None: torch.nn.functional.layer_norm(x, shape[-1:], scale, shift, eps),
        draw=ones_to_three,
        scale=10.0,
    )


def group_norm_case(shape, groups, eps):
    axes, along_features = (0, *range(2, len(shape))), (-1, *[1] * (len(shape) - 2))

    def judge(x, scale, shift):
        grouped, grouped_backward = normalize(x.reshape(len(x), groups, np.prod(shape[1:]) // groups), -1, eps)
        y = grouped.reshape(shape)

        def gradients(dy):
            g = (dy * scale.reshape(along_features)).reshape(grouped.shape)
            return grouped_backward(g).reshape(shape), (dy * y).sum(axes), dy.sum(axes)

        return y * scale.reshape(along_features) + shift.reshape(along_features), gradients

    return Case(
        lambda: functions.GroupNorm(groups, shape[1], eps),
        (shape,),
        judge,
        lambda torch, x, scale, shift: torch.group_norm(x, groups, scale, shift, eps),
        draw=ones_to_three,
        scale=10.0,
    )


def instance_norm_case(shape, eps):
    """Return groups of one channel: PyTorch's instance_norm does not take a single number, or no rows."""
    of_one = group_norm_case(shape, shape[1], eps)
    return dataclasses.replace(of_one, make=lambda: functions.InstanceNorm(shape[1], eps))


def rms_norm_case(shape, eps=None, has_scale=True):
    def judge(x, scale=1):
        root = np.sqrt((x**2).mean(-1, keepdims=True) + (eps or 0))
        y = x / root

        def gradients(dy):
            g = dy * scale
            dx = (g - y * (g * y).mean(-1, keepdims=True)) / root
            return (dx, (dy * y).sum(tuple(range(x.ndim - 1)))) if has_scale else (dx,)

        return y * scale, gradients

    return Case(
        lambda: functions.RMSNorm(shape[-1], eps, has_scale),
        (shape,),
        judge,
        lambda torch, x, scale=None: torch.nn.functional.rms_norm(x, shape[-1:], scale, eps),
        low=0.5,  # a row of numbers near 0 is a steep function of them
        draw=ones_to_three,
        scale=10.0,
    )


class BatchNormCase(Case):
    """A Case of BatchNorm, whose running moments are random numbers of the case's dtype."""

    def function(self, dtype=np.float64):
        function = super().function(dtype)
        rng = np.random.default_rng(0)
        function.mean = rng.uniform(-1, 1, function.mean.shape).astype(dtype)
        function.variance = rng.uniform(0.5, 2, function.mean.shape).astype(dtype)
        return function


def batch_norm_case(shape, eps, training=True):
    axes = (0, *range(2, len(shape)))
    along_features = (-1, *[1] * (len(shape) - 2))

    def judge(x, scale, shift, mean, variance):
        scale, shift = scale.reshape(along_features), shift.reshape(along_features)
        if training:
            y, backward = normalize(x, axes, eps)
        else:
            deviation = np.sqrt(variance.reshape(along_features) + eps)
            y = (x - mean.reshape(along_features)) / deviation

            def backward(g):
                return g / deviation

        return y * scale + shift, lambda dy: (backward(dy * scale), (dy * y).sum(axes), dy.sum(axes))

    def pytorch(torch, x, scale, shift, mean, variance):
        return torch.nn.functional.batch_norm(x, mean, variance, scale, shift, training, eps=eps)

    return BatchNormCase(
        lambda: functions.BatchNorm(shape[1], eps=eps),
        (shape,),
        judge,
        pytorch,
        draw=ones_to_three,
        saved=lambda function: {"mean": function.mean, "variance": function.variance},
        training=training,
        scale=10.0,
    )


# A row of numbers that lie close together is a steep function of them, unless ε is beside it.
eps = st.sampled_from([0.1, 0.5])
few = st.integers(1, 6)

CASES = [
    Family(
        layer_norm_case,
        listed=[
            *[((4, 3), 0.1, True), ((70, 130), 1e-5, True), ((2, 3, 5), 0.1, False), ((8,), 0.1, True)],
            ((3, 1), 0.1, True),
        ],
        empty=[((0, 3), 1e-5, True), ((2, 0, 3), 1e-5, False)],
        random=st.tuples(hnp.array_shapes(max_dims=4, max_side=4), side).flatmap(
            lambda drawn: st.tuples(st.just((*drawn[0], drawn[1])), eps, st.booleans())
        ),
        special=lambda dtype: [
            (((4, 3), 1e-5, True), [[[np.nan, 1, 2], [np.inf, 1, 2], [1, 1, 1], [1e4, 1e4 + 1, 1e4 + 2]]])
        ],
    ),
    Family(
        group_norm_case,
        listed=[
            *[((4, 6), 2, 0.1), ((3, 4, 5), 4, 1e-5), ((2, 6, 3, 3), 3, 0.1), ((1, 3, 2), 1, 0.1)],
            *[((40, 8, 9), 2, 1e-5), ((2, 3), 3, 0.1)],
        ],
        empty=[((0, 4), 2, 1e-5), ((0, 4, 3), 2, 1e-5)],
        # Few numbers, for each has its difference quotient.
        random=st.tuples(few, few, hnp.array_shapes(min_dims=0, max_dims=2, max_side=4), few, eps).map(
            lambda drawn: ((drawn[3], drawn[0] * drawn[1], *drawn[2]), drawn[0], drawn[4])
        ),
        special=lambda dtype: [
            (((4, 3), 1, 1e-5), [[[np.nan, 1, 2], [np.inf, 1, 2], [1, 1, 1], [1e4, 1e4 + 1, 1e4 + 2]]])
        ],
    ),
    Family(
        instance_norm_case,
        listed=[((2, 3, 5), 0.1), ((3, 4, 5, 6), 1e-5), ((1, 1, 2), 0.1), ((2, 3, 1), 0.1), ((2, 2, 2, 1, 3), 0.1)],
        empty=[((0, 4, 3), 1e-5)],
        random=st.tuples(hnp.array_shapes(min_dims=3, max_dims=5, max_side=5), eps),
        special=lambda dtype: [
            (((1, 4, 3), 1e-5), [[[[np.nan, 1, 2], [np.inf, 1, 2], [1, 1, 1], [1e4, 1e4 + 1, 1e4 + 2]]]])
        ],
        refused=[
            (
                lambda: functions.InstanceNorm(3),
                (2, 3),
                r"InstanceNorm\(3\) got shape .* expected \(n, 3, …\) with an axis",
            ),
            (lambda: functions.InstanceNorm(3), (2, 4, 5), r"expected \(n, 3, …\)"),
        ],
    ),
    Family(
        rms_norm_case,
        listed=[
            *[((4, 3),), ((70, 130),), ((2, 3, 5), 0.1), ((8,), 0.1), ((3, 1), 0.1), ((2, 4), 0.0)],
            *[((4, 3), None, False), ((2, 3, 5), 0.1, False)],
        ],
        empty=[((0, 3),), ((2, 0, 3), 0.1)],
        random=st.tuples(
            st.tuples(hnp.array_shapes(max_dims=4, max_side=4), side).map(lambda drawn: (*drawn[0], drawn[1])),
            st.none() | eps,
            st.booleans(),
        ),
        special=lambda dtype: [(((4, 3),), [[[np.nan, 1, 2], [np.inf, 1, 2], [1, 1, 1], [1e4, 1e4 + 1, 1e4 + 2]]])],
        refused=[(lambda: functions.RMSNorm(3), (2, 4), r"RMSNorm\(3\) got shape \(., 4\); expected \(…, 3\)")],
    ),
    Family(
        batch_norm_case,
        listed=[
            *[((4, 3), 0.1), ((67, 70), 1e-5), ((2, 3, 5), 0.1), ((2, 1), 0.1), ((1, 3, 2), 0.1), ((3, 2, 2, 9), 0.1)],
            *[((4, 3), 1e-5, False), ((1, 3), 0.1, False), ((2, 3, 5), 0.1, False)],
        ],
        empty=[((0, 3), 1e-5, False), ((2, 3, 0), 1e-5, False)],
        # Numerically, the rounding of a mean adds up over all rows: of some 800 it would be 1e-7.
        random=st.tuples(hnp.array_shapes(min_dims=2, max_dims=4, max_side=5), side, eps, st.booleans()).map(
            lambda drawn: ((1 + drawn[1], *drawn[0][1:]), *drawn[2:])
        ),
        special=lambda dtype: [
            (
                ((3, 5), 1e-5),
                [np.transpose([[np.nan, 1, 2], [np.inf, 1, 2], [1, 1, 1], [1e4, 1e4 + 1, 1e4 + 2], [0, 1, 2]])],
            ),
            (((2, 3), 1e-5, False), [[[np.nan, np.inf, -np.inf], [1, 2, 3]]]),
        ],
    ),
]
