"""Forms of self-attention at the size of ViT-B/16: (8, 197, 768), 12 heads.

    python benchmarks/attention.py [--rounds 30] [--out benchmarks/results]
    KERAS_BACKEND=jax python benchmarks/attention.py

The measurement behind `keras_vit.layers.MultiHeadSelfAttention`: query, key and value from three dense
layers or from one of three times the width, and the two products by `matmul` of transposed heads, by
`einsum`, or by `dot_product_attention`. The query is scaled before the product in every form, as
half precision needs it. Expected time on two CPU cores: 1 minute.
"""

import functools
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import measuring
import numpy as np
from keras import ops

BATCH, TOKENS, WIDTH, HEADS = 8, 197, 768, 12
SIZE = WIDTH // HEADS


def separate(x, kernels, biases):
    """Query, key and value (B, N, heads, d) from three products."""
    return [
        ops.reshape(ops.matmul(x, kernel) + bias, (-1, TOKENS, HEADS, SIZE))
        for kernel, bias in zip(kernels, biases, strict=True)
    ]


def fused(x, kernel, bias):
    """The same from one product."""
    parts = ops.reshape(ops.matmul(x, kernel) + bias, (-1, TOKENS, 3, HEADS, SIZE))
    return [parts[:, :, k] for k in range(3)]


def softmax(logits):
    return ops.cast(ops.softmax(ops.cast(logits, "float32")), logits.dtype)


def by_matmul(query, key, value):
    query, value = (ops.transpose(x, (0, 2, 1, 3)) for x in (query, value))
    logits = ops.matmul(query, ops.transpose(key, (0, 2, 3, 1)))  # (B, heads, N, N)
    return ops.transpose(ops.matmul(softmax(logits), value), (0, 2, 1, 3))


def by_einsum(query, key, value):
    logits = ops.einsum("bqhd,bkhd->bhqk", query, key)
    return ops.einsum("bhqk,bkhd->bqhd", softmax(logits), value)


def by_dot_product_attention(query, key, value):
    return ops.dot_product_attention(query, key, value, scale=1.0)


FORMS = {
    "matmul": by_matmul,
    "einsum": by_einsum,
    "dot_product_attention": by_dot_product_attention,
}


def attention(project, form):
    """A function of the tokens and the weights, output projection included."""

    def function(x, kernels, biases, kernel, bias):
        query, key, value = project(x, kernels, biases)
        x = form(query * SIZE**-0.5, key, value)
        return ops.matmul(ops.reshape(x, (-1, TOKENS, WIDTH)), kernel) + bias

    return measuring.compiled(function)


def functions(dtype):
    """The forms, each without arguments, by (projection, form)."""
    rng = np.random.default_rng(0)

    def tensor(*shape):
        return ops.convert_to_tensor(rng.standard_normal(shape) / WIDTH**0.5, dtype)

    x, kernel, bias = tensor(BATCH, TOKENS, WIDTH), tensor(WIDTH, WIDTH), tensor(WIDTH)
    kernels, biases = [tensor(WIDTH, WIDTH) for _ in range(3)], [tensor(WIDTH) for _ in range(3)]
    weights = {
        separate: (kernels, biases),
        fused: (ops.concatenate(kernels, axis=1), ops.concatenate(biases)),
    }
    return {
        (project.__name__, name): functools.partial(
            attention(project, form), x, *given, kernel, bias
        )
        for project, given in weights.items()
        for name, form in FORMS.items()
    }


def main():
    arguments = measuring.parser(__doc__, rounds=30).parse_args()
    sections = {}
    for dtype in ("float32", "bfloat16"):
        seconds = measuring.minima(functions(dtype), arguments.rounds)
        fastest = min(seconds.values())
        sections[dtype] = [
            {
                "projection": projection,
                "products": form,
                "ms": 1000 * s,
                "time / fastest": s / fastest,
            }
            for (projection, form), s in seconds.items()
        ]
    backend = keras.backend.backend()
    title = f"Self-attention, (8, 197, 768), 12 heads ({backend}, {measuring.device()})"
    measuring.write(arguments.out, f"attention_{backend}", title, sections, arguments.rounds)


if __name__ == "__main__":
    main()
