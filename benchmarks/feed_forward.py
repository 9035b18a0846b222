"""Forms of the feed-forward network at the size of ViT-B/16: (8, 197, 768), hidden width 3072.

    python benchmarks/feed_forward.py [--rounds 30] [--out benchmarks/results]
    KERAS_BACKEND=jax python benchmarks/feed_forward.py

The measurement behind `keras_vit.layers.Mlp`: the products on tokens of rank 3, or laid out as a matrix
(B * N, D), which lets TensorFlow fuse bias and GELU into them; with the GELU of this package or of
Keras; "none" is the time of the products alone. Expected time on two CPU cores: 2 minutes.
"""

import functools
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import measuring
import numpy as np
from keras import ops

from keras_vit.layers.feed_forward import gelu, gelu_tanh

BATCH, TOKENS, WIDTH, HIDDEN = 8, 197, 768, 3072
ACTIVATIONS = {
    "none": lambda x: x,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "keras.ops.gelu": functools.partial(ops.gelu, approximate=False),
    "keras.ops.gelu, tanh": functools.partial(ops.gelu, approximate=True),
}


def rank_3(activation, x, hidden, hidden_bias, output, output_bias):
    x = activation(ops.add(ops.matmul(x, hidden), hidden_bias))
    return ops.add(ops.matmul(x, output), output_bias)


def matrix(activation, x, *weights):
    return ops.reshape(rank_3(activation, ops.reshape(x, (-1, WIDTH)), *weights), x.shape)


def functions(dtype):
    """The forms, each without arguments, by (layout, activation)."""
    rng = np.random.default_rng(0)

    def tensor(*shape):
        return ops.convert_to_tensor(rng.standard_normal(shape) / WIDTH**0.5, dtype)

    x = tensor(BATCH, TOKENS, WIDTH)
    weights = (tensor(WIDTH, HIDDEN), tensor(HIDDEN), tensor(HIDDEN, WIDTH), tensor(WIDTH))
    return {
        (layout.__name__, name): functools.partial(
            measuring.compiled(functools.partial(layout, activation)), x, *weights
        )
        for layout in (rank_3, matrix)
        for name, activation in ACTIVATIONS.items()
    }


def main():
    arguments = measuring.parser(__doc__, rounds=30).parse_args()
    sections = {}
    for dtype in ("float32", "bfloat16"):
        seconds = measuring.minima(functions(dtype), arguments.rounds)
        fastest = min(seconds.values())
        sections[dtype] = [
            {"layout": layout, "activation": name, "ms": 1000 * s, "time / fastest": s / fastest}
            for (layout, name), s in seconds.items()
        ]
    backend = keras.backend.backend()
    title = (
        f"Feed-forward network, (8, 197, 768), hidden width 3072 ({backend}, {measuring.device()})"
    )
    measuring.write(arguments.out, f"feed_forward_{backend}", title, sections, arguments.rounds)


if __name__ == "__main__":
    main()
