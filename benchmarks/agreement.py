"""How far exported files are from the model in Keras, for every family and format.

    python benchmarks/agreement.py [--out benchmarks/results]

The shipped ViT-Mini/4 with its trained weights, and a small model of every family with random ones (two
blocks of width 24), on 32 pictures: the largest difference of a probability, and how many pictures
keep their best class. Expected time on two CPU cores: 3 minutes.
"""

import dataclasses
import os
import pathlib
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import measuring

import keras_vit
from keras_vit import export, registry
from keras_vit.export.agreement import agreement, run_saved_model
from keras_vit.export.litert_file import run_litert
from keras_vit.export.onnx_file import run_onnx
from keras_vit.models import plain, residual

FAMILIES = ("ViT_B16", "DeepViT_S", "DINOv2_S14_reg4", "DINOv2_g14", "R50_B16", "BiT_R50x1")
LIMITS = {"SavedModel": 1e-5, "ONNX": 1e-4, "LiteRT float32": 1e-4, "LiteRT float16": 1e-2}


def small(name):
    """A small model of the family of `name`, with random weights and head."""
    config = registry.get_variant(name).config
    if isinstance(config, residual.Config):
        config = dataclasses.replace(
            config, stages=(1, 1), filters=(8, 16), stem_width=8, groups=4, image=(64, 96)
        )
        builder = registry.variant(
            f"Small_{name}", config, residual.build, parameters=0, classes=10
        )
        model = builder(weights=None)
    else:
        attention = config.attention
        config = dataclasses.replace(
            config,
            width=24,
            depth=2,
            heads=2,
            mlp=32,
            image=(2 * config.pixels, 3 * config.pixels),
            attention=attention[-2:] if isinstance(attention, tuple) else attention,
        )
        if config.stages:
            config = dataclasses.replace(
                config, stages=(1, 1, 1), stem_width=8, groups=4, image=(64, 96)
            )
        model = plain.model(config, classes=10)
    keras.utils.set_random_seed(1)
    head = next(layer for layer in reversed(model.layers) if layer.weights)
    head.set_weights([keras.random.normal(w.shape) for w in head.weights])
    return model


def formats(model, folder):
    """Format -> function of images of the exported model."""
    folder = pathlib.Path(folder)
    yield "SavedModel", run_saved_model(export.saved_model(model, folder / "saved_model"))
    export.onnx(model, folder / "model.onnx")
    yield "ONNX", run_onnx(folder / "model.onnx")
    for precision in ("float32", "float16", "dynamic-int8"):
        path = folder / f"{precision}.tflite"
        export.litert(model, path, precision)
        yield f"LiteRT {precision}", run_litert(path)


def main():
    arguments = measuring.parser(__doc__).parse_args()
    rows, worst = [], dict.fromkeys(LIMITS, 0.0)
    models = [("ViT_Mini4, trained", keras_vit.ViT_Mini4())]
    for title, model in models + [(f"{name}, small", small(name)) for name in FAMILIES]:
        row = {"model": title}
        with tempfile.TemporaryDirectory() as folder:
            for format, run in formats(model, folder):
                found = agreement(model, run)
                row[format] = f"{found.difference:.1e}, {found.same}/{found.pictures}"
                if format in worst:
                    worst[format] = max(worst[format], found.difference)
        rows.append(row)
        print(row, flush=True)
    sections = {
        "Targets": [measuring.target(f"{f}, largest", worst[f], LIMITS[f]) for f in LIMITS],
        "Largest difference of a probability, and pictures of the same best class": rows,
    }
    measuring.write(arguments.out, "agreement", "Exported files against Keras", sections)


if __name__ == "__main__":
    main()
