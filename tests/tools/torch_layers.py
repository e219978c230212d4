"""PyTorch's functional layers, activations and losses, as in torch_operators.py."""

import math

import numpy as np

import caffelite as cl
from tests.tools.torch_operators import along, axes, chunk, require, swap


def linear(x, weight, bias=None):
    y = x @ (weight.T if weight.ndim > 1 else weight)
    return y if bias is None else y + bias


def in_batch(x, ndim):
    """x with a batch axis if it has none, and whether that was so."""
    return (x.reshape(1, *x.shape), True) if x.ndim == ndim else (x, False)


def convolution(kind, window):
    """Return a layer whose weights are the given Tensors."""

    def apply(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
        x, alone = in_batch(x, window + 1)
        if padding == "valid":
            padding = 0
        if padding == "same":
            require(stride=(stride, 1))
        stride, dilation = _alike(stride), _alike(dilation)
        padding = padding if isinstance(padding, str) else _alike(padding)
        options = {"stride": stride, "padding": padding, "groups": groups, "dilation": dilation}
        layer = kind(weight.shape[1] * groups, weight.shape[0], weight.shape[2:], bias=bias is not None, **options)
        return _unbatch(apply_layer(layer, x, weight=weight, bias=bias), alone)

    return apply


def _alike(value):
    return tuple(value) if isinstance(value, list | tuple) and len(value) > 1 else np.ravel(value).tolist()[0]


def _unbatch(y, alone):
    return y.reshape(*y.shape[1:]) if alone else y


def apply_layer(layer, x, **parameters):
    """Return the layer's result. Gradients of its parameters are noted on the Tensors that were given for them."""
    for name, value in parameters.items():
        if value is not None:
            setattr(layer, name, value)
    return layer(x)


def transposed_convolution(kind, window):
    def apply(x, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
        x, alone = in_batch(x, window + 1)
        options = {"stride": _alike(stride), "padding": _alike(padding), "output_padding": _alike(output_padding)}
        options |= {"groups": groups, "dilation": _alike(dilation)}
        layer = kind(weight.shape[0], weight.shape[1] * groups, weight.shape[2:], bias=bias is not None, **options)
        return _unbatch(apply_layer(layer, x, weight=weight, bias=bias), alone)

    return apply


def pool_by_places(x, kernel, stride, padding, dilation, ceil_mode, return_indices):
    """Return the largest element of each window, taken by its places among the pixels; behind the last pixel
    is −inf.
    """
    lengths, places, counts = x.shape[2:], np.zeros((1, 1), int), ()
    outside = np.zeros((1, 1), bool)
    for n, k, s, p, d in zip(lengths, kernel, stride, padding, dilation, strict=True):
        count = (n + 2 * p - d * (k - 1) - 1 + (s - 1) * ceil_mode) // s + 1
        count -= ceil_mode and (count - 1) * s >= n + p
        along = np.arange(count)[:, None] * s - p + d * np.arange(k)
        is_outside = (along < 0) | (along >= n)
        places = (places[:, None, :, None] * n + along[None, :, None, :]).reshape(len(places) * count, -1)
        outside = (outside[:, None, :, None] | is_outside[None, :, None, :]).reshape(places.shape)
        counts += (count,)
    places[outside] = math.prod(lengths)
    pad = np.full((*x.shape[:2], 1), -np.inf)
    windows = cl.concatenate([x.reshape(*x.shape[:2], math.prod(lengths)), pad], 2)[:, :, places]
    y = windows.max(-1).reshape(*x.shape[:2], *counts)
    if not return_indices:
        return y
    return y, places[np.arange(len(places)), windows.argmax(-1)].reshape(y.shape)


def max_pool(kind, window):
    def apply(x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
        x, alone = in_batch(x, window + 1)
        stride = kernel_size if stride is None or np.size(stride) == 0 else stride
        options = [np.broadcast_to(n, window).tolist() for n in (kernel_size, stride, padding, dilation)]
        if ceil_mode or return_indices or max(options[3]) > 1:
            y = pool_by_places(x, *options, ceil_mode, return_indices)
        else:
            y = kind(*[_alike(n) for n in options[:3]])(x)
        return tuple([_unbatch(part, alone) for part in y]) if return_indices else _unbatch(y, alone)

    return apply


def average_pool(kind, window):
    def apply(x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
        padded_at_all = np.any(np.ravel(padding) != 0)
        require(ceil_mode=(ceil_mode, False), divisor=(divisor_override, None))
        require(count_include_pad=(count_include_pad or not padded_at_all, True))
        x, alone = in_batch(x, window + 1)
        stride = None if stride is None or (isinstance(stride, list | tuple) and not stride) else _alike(stride)
        return _unbatch(kind(_alike(kernel_size), stride, _alike(padding))(x), alone)

    return apply


def layer_norm(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    axis = tuple(range(-len(normalized_shape), 0))
    y = (x - x.mean(axis, True)) / (x.var(axis, True) + eps).sqrt()
    return _affine(y, weight, bias)


def _affine(y, weight, bias):
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def by_channel(x, p):
    return None if p is None else p.reshape(-1, *(1,) * (x.ndim - 2))


def batch_norm(x, mean, variance, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    if training:
        axis = (0, *range(2, x.ndim))
        mean, variance = x.mean(axis, True), x.var(axis, True)
    else:
        mean, variance = by_channel(x, mean), by_channel(x, variance)
    return _affine((x - mean) / (variance + eps).sqrt(), by_channel(x, weight), by_channel(x, bias))


def group_norm(x, num_groups, weight=None, bias=None, eps=1e-5):
    grouped = x.reshape(x.shape[0], num_groups, math.prod(x.shape[1:]) // num_groups)
    y = layer_norm(grouped, grouped.shape[-1:], eps=eps).reshape(*x.shape)
    return _affine(y, by_channel(x, weight), by_channel(x, bias))


def instance_norm(x, running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=True, **options):
    if not use_input_stats:
        return batch_norm(x, running_mean, running_var, weight, bias, **options)
    eps, axis = options.get("eps", 1e-5), tuple(range(2, x.ndim))
    y = (x - x.mean(axis, True)) / (x.var(axis, True) + eps).sqrt()
    return _affine(y, by_channel(x, weight), by_channel(x, bias))


def rms_norm(x, normalized_shape, weight=None, eps=None):
    eps = np.finfo(x.dtype).eps if eps is None else eps
    y = x / ((x * x).mean(tuple(range(-len(normalized_shape), 0)), True) + eps).sqrt()
    return y if weight is None else y * weight


def normalize(x, p=2.0, dim=1, eps=1e-12):
    require(p=(p, 2.0))
    return x / cl.maximum((x * x).sum(axes(x, dim), True).sqrt(), eps)


def embedding(weight, x, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False):
    require(max_norm=(max_norm, None), scale_grad_by_freq=(scale_grad_by_freq, False), padding_idx=(padding_idx, None))
    return weight[x]


def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    require(dropout_p=(dropout_p, 0.0), enable_gqa=(enable_gqa, False))
    scores = q @ swap(k, -1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = np.tri(*scores.shape[-2:], dtype=bool)
    if attn_mask is not None and attn_mask.dtype == np.bool_:
        scores = cl.where(attn_mask, scores, -np.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax() @ v


def reduce_loss(y, reduction="mean"):
    return {"mean": cl.mean, "sum": cl.sum, "none": lambda y: y}[reduction](y)


def difference_loss(function):
    """Return a loss of two inputs that may both have a gradient, with operators."""

    def apply(x, target, size_average=None, reduce=None, reduction="mean", **options):
        require(size_average=(size_average, None), reduce=(reduce, None))
        return reduce_loss(function(x - target, **options), reduction)

    return apply


def huber(d, delta=1.0):
    a = d.abs()
    return cl.where(a.data < delta, 0.5 * d * d, delta * (a - 0.5 * delta))


def smooth_l1(d, beta=1.0):
    return d.abs() if beta == 0 else huber(d, beta) / beta


def cross_entropy_of_sigmoid(x, target, weight=None, reduction="mean", pos_weight=None):
    of_positive = target * cl.softplus(-x)
    y = (of_positive if pos_weight is None else of_positive * pos_weight) + (1 - target) * cl.softplus(x)
    return reduce_loss(y if weight is None else y * weight, reduction)


def cross_entropy(x, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    axis = 1 if x.ndim > 1 else 0
    logs, classes = cl.log_softmax(x, axis), x.shape[axis]
    if isinstance(target, np.ndarray):
        return nll_loss(logs, target, weight, ignore_index, reduction, label_smoothing)
    target = target * (1 - label_smoothing) + label_smoothing / classes
    y = logs * target
    y = y if weight is None else y * weight.reshape(-1, *(1,) * (x.ndim - 1 - axis))
    rows = -y.sum(axis)
    return rows.sum() / max(rows.size, 1) if reduction == "mean" else reduce_loss(rows, reduction)


def nll_loss(logs, target, weight=None, ignore_index=-100, reduction="mean", smoothing=0.0):
    axis = 1 if logs.ndim > 1 else 0
    counted = target != ignore_index
    hot = np.moveaxis(np.eye(logs.shape[axis])[np.where(counted, target, 0)], -1, axis)
    of_class = hot if weight is None else hot * weight.data.reshape(-1, *(1,) * (logs.ndim - 1 - axis))
    shares = of_class * (1 - smoothing)
    if smoothing:
        each = 1.0 if weight is None else weight.data.reshape(-1, *(1,) * (logs.ndim - 1 - axis))
        shares = shares + smoothing / logs.shape[axis] * each
    rows = -(logs * (shares * np.expand_dims(counted, axis))).sum(axis)
    if reduction != "mean":
        return reduce_loss(rows, reduction)
    return rows.sum() / float((of_class.sum(axis) * counted).sum())


def glu(x, dim=-1):
    a, gate = chunk(x, 2, dim)
    return a * gate.sigmoid()


def softplus(x, beta=1, threshold=20):
    return cl.where(x.data * beta > threshold, x, (x * beta).softplus() / beta)


def elu(x, alpha=1.0, inplace=False):
    return cl.elu(x, alpha)


def prelu(x, weight):
    weight = weight.reshape(()) if weight.size == 1 else by_channel(x, weight)
    return cl.where(x.data > 0, x, x * weight)


def cosine(x1, x2, dim=1, eps=1e-8):
    x1, x2 = x1 + x2 * 0, x2 + x1 * 0  # broadcast
    a, b = [cl.maximum((x * x).sum(dim).sqrt(), eps) for x in (x1, x2)]
    return (x1 * x2).sum(dim) / (a * b)


def alone(function):
    """Return an activation, which takes further arguments only with their usual values."""
    return lambda x, inplace=False: function(x)


SELU = (1.0507009873554804934193349852946, 1.6732632423543772848170429916717)

LAYERS = {
    # activations
    "nn.functional.relu": alone(cl.relu),
    "nn.functional.relu6": alone(lambda x: x.clip(0, 6)),
    "nn.functional.leaky_relu": lambda x, negative_slope=0.01, inplace=False: cl.leaky_relu(x, negative_slope),
    "nn.functional.elu": elu,
    "nn.functional.celu": lambda x, alpha=1.0, inplace=False: alpha * cl.elu(x / alpha),
    "nn.functional.selu": alone(lambda x: SELU[0] * cl.elu(x, SELU[1])),
    "nn.functional.gelu": lambda x, approximate="none": cl.gelu(x, approximate == "tanh"),
    "nn.functional.silu": alone(cl.silu),
    "nn.functional.mish": alone(cl.mish),
    "nn.functional.softplus": softplus,
    "nn.functional.softsign": lambda x: x / (1 + x.abs()),
    "nn.functional.logsigmoid": lambda x: -(-x).softplus(),
    "nn.functional.tanhshrink": lambda x: x - x.tanh(),
    "nn.functional.hardtanh": lambda x, min_val=-1.0, max_val=1.0, inplace=False: x.clip(min_val, max_val),
    "nn.functional.hardsigmoid": alone(lambda x: (x / 6 + 0.5).clip(0, 1)),
    "nn.functional.hardswish": alone(lambda x: x * (x / 6 + 0.5).clip(0, 1)),
    "nn.functional.threshold": lambda x, threshold, value, inplace=False: cl.where(x.data > threshold, x, value),
    "nn.functional.prelu": prelu,
    "nn.functional.glu": glu,
    "softmax": along(cl.softmax),
    "log_softmax": along(cl.log_softmax),
    "nn.functional.softmin": along(lambda x, dim: cl.softmax(-x, dim)),
    # layers
    "nn.functional.linear": linear,
    "nn.functional.conv1d": convolution(cl.Conv1d, 1),
    "nn.functional.conv2d": convolution(cl.Conv2d, 2),
    "nn.functional.conv_transpose2d": transposed_convolution(cl.ConvTranspose2d, 2),
    "nn.functional.max_pool1d": max_pool(cl.MaxPool1d, 1),
    "nn.functional.max_pool2d": max_pool(cl.MaxPool2d, 2),
    "nn.functional.avg_pool1d": average_pool(cl.AvgPool1d, 1),
    "nn.functional.avg_pool2d": average_pool(cl.AvgPool2d, 2),
    "nn.functional.layer_norm": layer_norm,
    "nn.functional.batch_norm": batch_norm,
    "nn.functional.group_norm": group_norm,
    "nn.functional.instance_norm": instance_norm,
    "nn.functional.rms_norm": rms_norm,
    "nn.functional.normalize": normalize,
    "nn.functional.cosine_similarity": cosine,
    "nn.functional.embedding": embedding,
    "nn.functional.scaled_dot_product_attention": attention,
    # losses
    "nn.functional.mse_loss": difference_loss(lambda d: d * d),
    "nn.functional.l1_loss": difference_loss(cl.abs),
    "nn.functional.huber_loss": difference_loss(huber),
    "nn.functional.smooth_l1_loss": difference_loss(smooth_l1),
    "nn.functional.binary_cross_entropy_with_logits": cross_entropy_of_sigmoid,
    "nn.functional.cross_entropy": cross_entropy,
    "nn.functional.nll_loss": nll_loss,
}
