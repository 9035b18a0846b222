"""What the attention maps of ViT-B/16 cost: 8 images at 224x224.

    python benchmarks/analysis.py [--rounds 10] [--out benchmarks/results]
    KERAS_BACKEND=jax python benchmarks/analysis.py

A plain forward pass, `model.predict_on_batch`, against `keras_vit.analysis.attention_maps` and
`iterate_attention_maps` of all 12 blocks, in float32. Both are compiled by Keras in the ordinary way.
Expected time on two CPU cores: 3 minutes.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import measuring
import numpy as np

import keras_vit
from keras_vit import analysis

LIMIT = 1.5


def main():
    arguments = measuring.parser(__doc__, rounds=10).parse_args()
    model = keras_vit.ViT_B16(weights=None)
    images = np.random.default_rng(0).uniform(0, 255, (8, 224, 224, 3)).astype("float32")

    def one_at_a_time():
        for _ in analysis.iterate_attention_maps(model, images):
            pass

    functions = {
        "forward pass": lambda: model.predict_on_batch(images),
        "attention_maps": lambda: analysis.attention_maps(model, images),
        "iterate_attention_maps": one_at_a_time,
    }
    seconds = measuring.minima(functions, arguments.rounds)
    forward = seconds["forward pass"]
    rows = [
        {"what": name, "ms": 1000 * s, "time / forward pass": s / forward}
        for name, s in seconds.items()
    ]
    backend = keras.backend.backend()
    limits = [
        measuring.target(f"{name} / forward pass", seconds[name] / forward, LIMIT)
        for name in ("attention_maps", "iterate_attention_maps")
    ]
    title = f"Attention maps of ViT-B/16, 8 images at 224x224 ({backend}, {measuring.device()})"
    sections = {"Times": rows, "Targets": limits}
    measuring.write(arguments.out, f"analysis_{backend}", title, sections, arguments.rounds)


if __name__ == "__main__":
    main()
