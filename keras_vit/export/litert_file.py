"""LiteRT (TensorFlow Lite) files."""

import pathlib

import numpy as np

from keras_vit.export import servable, signatures
from keras_vit.export.precision import float32_copy
from keras_vit.files import replacing
from keras_vit.images import find_images, load_image
from keras_vit.preprocessing import prepare, recipe_of

PRECISIONS = ("float32", "float16", "dynamic-int8", "int8")
CALIBRATION_PICTURES = 200


def litert(model, path, precision="float32", calibration=None):
    """Writes a model as a LiteRT file that needs built-in operations only.

    Its signature "serving_default" takes `images`, float32 (B, H, W, 3), 0..255, and gives what
    `keras_vit.export.signatures.outputs_of` names, float32, under every precision. The interpreter
    starts with a batch of 1; another one is set by `resize_tensor_input`.

    Args:
        model: as for `saved_model`. A model of half precision is rebuilt in float32.
        path: of the file to write; an older one is replaced.
        precision: "float32"; "float16" stores the weights in half; "dynamic-int8" stores those of
            the matrix products in 8 bits and measures the activations as it runs; "int8" computes in
            8 bits, with ranges measured beforehand on the pictures of `calibration`.
        calibration: for "int8": a folder of pictures like those that the model will see, of which
            200 are taken.

    Raises:
        ValueError: as `saved_model`; unknown precision; "int8" without a calibration folder, or a
            folder with another precision; the model is quantised.
        ImageError: a picture of the folder cannot be read.
        OSError: the file cannot be written.
    """
    servable.check_backend()
    servable.check_model(model)
    if precision not in PRECISIONS:
        raise ValueError(
            f"Unknown precision. Received: precision={precision!r}. "
            f"Available: {', '.join(map(repr, PRECISIONS))}."
        )
    if (precision == "int8") != (calibration is not None):
        raise ValueError(
            "The ranges of int8, and only these, are measured on a folder of pictures. "
            f"Received: precision={precision!r}, calibration={calibration!r}."
        )
    import tensorflow as tf

    copy = float32_copy(model)
    module = tf.Module()
    module.served_variables = [variable.value for variable in copy.variables]
    module.function = signatures.prediction(copy)
    concrete = module.function.get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], module)
    if precision != "float32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if precision == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if precision == "int8":
        pictures = _calibration(calibration, recipe_of(model))
        converter.representative_dataset = lambda: ([picture] for picture in pictures)
    content = converter.convert()
    with replacing(path) as partial:
        partial.write_bytes(content)


def run_litert(path):
    """A function of images, uint8 or float32 (B, H, W, 3), -> dict of arrays, by LiteRT.

    Raises:
        ImportError: LiteRT is not installed.
    """
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path))
    runner = interpreter.get_signature_runner("serving_default")
    return lambda images: runner(images=images.astype("float32"))


def _calibration(folder, recipe):
    """Pictures spread over the folder, each float32 (1, H, W, 3)."""
    paths, _ = find_images(folder)
    if not paths:
        raise ValueError(
            f"There is no picture to calibrate with. Received: calibration='{folder}'."
        )
    chosen = np.linspace(0, len(paths) - 1, min(len(paths), CALIBRATION_PICTURES)).astype(int)
    pictures = [prepare(load_image(pathlib.Path(paths[k])), recipe) for k in chosen]
    return [picture[None].astype("float32") for picture in pictures]
