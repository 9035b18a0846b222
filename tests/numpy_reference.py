"""The parts of an encoder once more, in plain numpy."""

import math

import numpy as np
from keras import ops


def weights_of(layer):
    """Path below the layer -> array."""
    return {w.path.split(f"{layer.name}/", 1)[1]: ops.convert_to_numpy(w) for w in layer.weights}


def randomise(layer):
    """Gives a built layer or model random weights; variances are positive."""
    rng = np.random.default_rng(1)
    for weight in layer.weights:
        values = rng.normal(size=weight.shape)
        weight.assign(np.abs(values) if weight.name == "moving_variance" else values)
    return layer


def dense(x, weights, name):
    return x @ weights[f"{name}/kernel"] + weights.get(f"{name}/bias", 0.0)


def layer_norm(x, weights, name, epsilon=1e-6):
    centred = x - x.mean(-1, keepdims=True)
    scale = np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    return centred / scale * weights[f"{name}/gamma"] + weights[f"{name}/beta"]


def softmax(x):
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def gelu(x):
    return x * 0.5 * (1.0 + np.vectorize(math.erf)(np.asarray(x, "float64") / math.sqrt(2.0)))


def split(x, heads):
    """(B, N, D) -> (B, heads, N, d)."""
    batch, count, width = x.shape
    return x.reshape(batch, count, heads, width // heads).transpose(0, 2, 1, 3)


def attend(query, key, value, heads):
    """Attention of (B, Q, D) over (B, K, D): outputs (B, Q, D), maps (B, heads, Q, K)."""
    query, key, value = (split(x, heads) for x in (query, key, value))
    maps = softmax(query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1]))
    outputs = (maps @ value).transpose(0, 2, 1, 3)
    return outputs.reshape(*outputs.shape[:2], -1), maps


def attention(x, weights, heads, prefix=""):
    """Multi-head self-attention: outputs (B, N, D), maps (B, heads, N, N)."""
    parts = (dense(x, weights, f"{prefix}{name}") for name in ("query", "key", "value"))
    outputs, maps = attend(*parts, heads)
    return dense(outputs, weights, f"{prefix}output"), maps


def mlp(x, weights, prefix=""):
    return dense(gelu(dense(x, weights, f"{prefix}hidden")), weights, f"{prefix}output")
