"""How far an exported model is from the one in Keras."""

import dataclasses

import numpy as np
from PIL import Image

from keras_vit.export.warm_up import shipped_pictures

PICTURES = 32


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Of the outputs for pictures that come with the package.

    Attributes:
        difference: the largest, of probabilities where there are any.
        same: number of pictures of the same best class; None of a model without classes.
        pictures: their number.
    """

    difference: float
    same: int | None
    pictures: int


def agreement(model, run, count=PICTURES):
    """Compares on the pictures of clothes that come with the package.

    Args:
        model: the Keras model.
        run: function of uint8 images (B, H, W, 3) -> dict of arrays with "probabilities" or
            "features".
        count: of pictures, at most 1,000.

    Returns:
        An `Agreement`.
    """
    height, width = (side or 224 for side in model.input_shape[1:3])
    pictures = [Image.fromarray(picture) for picture in shipped_pictures(count)]
    images = np.stack([np.asarray(picture.resize((width, height))) for picture in pictures])
    found, expected = [], []
    for k in range(0, count, 8):
        outputs = run(images[k : k + 8])
        found.append(outputs.get("probabilities", outputs.get("features")))
        expected.append(model.predict_on_batch(images[k : k + 8].astype("float32")))
    found, expected = (np.concatenate(parts).astype("float32") for parts in (found, expected))
    if "probabilities" not in outputs:
        return Agreement(float(np.abs(found - expected).max()), None, count)
    if "logits" in outputs and np.any(np.abs(expected.sum(-1) - 1) > 1e-3):  # it ends in logits
        expected = np.exp(expected - expected.max(-1, keepdims=True))
        expected /= expected.sum(-1, keepdims=True)
    same = int((found.argmax(-1) == expected.argmax(-1)).sum())
    return Agreement(float(np.abs(found - expected).max()), same, count)


def run_saved_model(path):
    """A function of uint8 images (B, H, W, 3) -> dict of arrays, by TensorFlow."""
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))  # the closure keeps it alive: it owns the variables

    def run(images):
        outputs = loaded.signatures["serving_uint8"](tf.constant(images))
        return {name: value.numpy() for name, value in outputs.items()}

    return run
