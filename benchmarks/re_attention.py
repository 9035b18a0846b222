"""What re-attention costs: a block of DeepViT-16B, (8, 197, 384), 12 heads, against the plain one.

    python benchmarks/re_attention.py [--rounds 60] [--out benchmarks/results]
    KERAS_BACKEND=jax python benchmarks/re_attention.py

Two blocks that differ in the attention alone, forward passes in float32, compiled in the ordinary way
of the backend. Expected time on two CPU cores: 1 minute.
"""

import functools
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import measuring
import numpy as np
from keras import ops

from keras_vit import layers

BATCH, TOKENS, WIDTH, HEADS, MLP = 8, 197, 384, 12, 1152
LIMIT = 1.25
ATTENTION = {"plain": layers.MultiHeadSelfAttention, "re-attention": layers.ReAttention}


def block(attention):
    """A compiled block, which takes its tokens."""
    mlp = layers.Mlp(MLP, activation="gelu", name="mlp")
    layer = layers.TransformerBlock(attention(HEADS, name="attention"), mlp)
    layer.build((None, TOKENS, WIDTH))
    return measuring.compiled(functools.partial(layer, training=False))


def main():
    arguments = measuring.parser(__doc__, rounds=60).parse_args()
    tokens = ops.convert_to_tensor(
        np.random.default_rng(0).standard_normal((BATCH, TOKENS, WIDTH)), "float32"
    )
    functions = {
        name: functools.partial(block(attention), tokens) for name, attention in ATTENTION.items()
    }
    seconds = measuring.minima(functions, arguments.rounds)
    rows = [
        {"block": name, "ms": 1000 * s, "time / plain": s / seconds["plain"]}
        for name, s in seconds.items()
    ]
    ratio = seconds["re-attention"] / seconds["plain"]
    sections = {"Times": rows, "Targets": [measuring.target("re-attention / plain", ratio, LIMIT)]}
    backend = keras.backend.backend()
    title = f"A block with re-attention, (8, 197, 384), 12 heads ({backend}, {measuring.device()})"
    measuring.write(arguments.out, f"re_attention_{backend}", title, sections, arguments.rounds)


if __name__ == "__main__":
    main()
