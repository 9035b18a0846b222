"""Writes tests/goldens/first_edition: files that the first edition of the package saved, and what their models gave.

Run with the package at version 0.1.0, commit a2ffc91: `python tests/goldens/make/first_edition.py`.
Later versions must load the files for ever, so they are never written again. Made with Keras 3.15.1,
TensorFlow 2.21.0, numpy 2.4.
"""

import pathlib
import sys

import keras
import numpy as np

import keras_vit
from keras_vit.models import deepvit, plain, residual
from keras_vit.registry import Variant

FOLDER = pathlib.Path(__file__).parents[1] / "first_edition"
TINY = plain.Config(patch=8, width=16, depth=2, heads=2, mlp=32, image=(32, 32))
HYBRID = {
    "patch": 1,
    "stem": plain.residual_stem,
    "stem_stride": 8,
    "stages": (2, 1),
    "stem_width": 4,
    "groups": 2,
}
ROWS = {
    "hybrid": (HYBRID, {}),
    "deepvit": (
        {
            "patch": 4,
            "stem": plain.conv_stem,
            "stem_stride": 2,
            "scale_adjustment": 0.5,
            "activation": "gelu",
            "resampling": "timm",
            "attention": plain.runs((plain.self_attention, 1), (deepvit._plain.re_attention, 1)),
        },
        {},
    ),
    "dinov2": (
        {
            "registers": 4,
            "positioned_tokens": 1,
            "layer_scale": 1e-5,
            "activation": "gelu",
            "resampling": "dinov2-registers",
        },
        {"include_top": False},
    ),
    "representation": ({"representation_size": 12}, {}),
    "map": ({"tokens": (), "classifier": "map"}, {}),
    "linear4": ({"classifier": "linear4", "depth": 4}, {}),
    "average": ({"classifier": "avg"}, {}),
    "swiglu": ({"feed_forward": plain.swiglu, "activation": "gelu"}, {}),
    "rows_and_columns": ({"positions": "learned-2d"}, {}),
}


def models():
    for name, (numbers, arguments) in ROWS.items():
        config = plain.dataclasses.replace(TINY, **numbers)
        yield name, plain.model(config, name="tiny", **{"classes": 5, **arguments})
    config = residual.Config((1, 2), (4, 8), 8, groups=2, image=(32, 32))
    row = Variant("tiny", "bit", config, None, "", (), None, 5, "half", residual.build)
    yield "bit", residual.build(row, weights=None, classes=5)


def randomize(model):
    generator = np.random.default_rng(0)
    for variable in model.weights:
        values = generator.normal(0.0, 0.2, variable.shape)
        variable.assign(np.abs(values) if variable.name == "moving_variance" else values)


def fine_tuned():
    """The shipped model, fine-tuned for three steps to five classes, as `fit` leaves it."""
    model = keras_vit.ViT_Mini4(classes=5, pretrained_top=False)
    with np.load(pathlib.Path(keras_vit.__file__).parent / "data" / "fashion_mnist.npz") as z:
        images = z["test_images"][:24]
    images = np.repeat(images.reshape(-1, 28, 28, 1), 3, axis=-1).astype("float32")
    model.compile(
        keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    model.fit(images, np.arange(24) % 5, batch_size=8, verbose=0)
    return model, images[:3]


def write(name, model, images):
    model.save(FOLDER / f"{name}.keras")
    model.save_weights(FOLDER / f"{name}.weights.h5")
    outputs = keras.ops.convert_to_numpy(model(images, training=False))
    np.savez_compressed(FOLDER / f"{name}.npz", x=images, y=outputs)


if __name__ == "__main__":
    if keras_vit.__version__ != "0.1.0":
        sys.exit("These files are the first edition's; later versions do not write them again.")
    keras.utils.set_random_seed(0)
    FOLDER.mkdir(exist_ok=True)
    write("fine_tuned", *fine_tuned())
    for name, model in models():
        randomize(model)
        shape = model.input_shape[1:]
        images = np.random.default_rng(1).uniform(0, 255, (3, *shape)).astype("float32")
        write(name, model, images)
