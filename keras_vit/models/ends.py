"""Both ends of every model: arguments, images and their normalisation, and the head."""

import keras
import numpy as np

from keras_vit import layers
from keras_vit.preprocessing import STATISTICS


def check_arguments(label, classes, **choices):
    """Raises ValueError unless every argument is valid.

    Args:
        label: name of the model.
        classes: number of outputs.
        **choices: argument -> (value, valid values).
    """
    for argument, (value, valid) in choices.items():
        if value not in valid:
            raise ValueError(
                f"{label}: unknown {argument}. Received: {argument}={value!r}. "
                f"Available: {', '.join(map(repr, valid))}."
            )
    if not isinstance(classes, int | np.integer) or classes < 1:
        raise ValueError(
            f"{label}: classes must be a positive integer. Received: classes={classes!r}."
        )
    if keras.config.image_data_format() == "channels_first":
        raise ValueError(
            f"{label}: images are channels_last, (B, H, W, C). Received: "
            "keras.config.image_data_format() == 'channels_first'. Call "
            "keras.config.set_image_data_format('channels_last') and transpose the images."
        )


def image_shape(label, input_shape, native):
    """(H, W, C): what the caller wants, else the native size (height, width) in colour.

    Raises:
        ValueError: not a shape of images.
    """
    if input_shape is None:
        return (*native, 3)
    shape = tuple(input_shape)
    valid = len(shape) == 3 and all(
        n is None or (isinstance(n, int | np.integer) and n > 0) for n in shape
    )
    if not valid or shape[2] is None:
        raise ValueError(
            f"{label}: `input_shape` must be a tuple (height, width, channels); height and width "
            f"may be None. Received: input_shape={input_shape!r}."
        )
    return shape


def normalized(images, statistics, recipe, name, dtype):
    """Images of 0..255 on the scale of the weights; `statistics` is a key of `STATISTICS`."""
    mean, std = STATISTICS[statistics]
    return layers.Normalize(mean, std, recipe, name=name, dtype=dtype)(images)


def head(x, classes, activation, prefix):
    """Scores or probabilities (B, classes) in float32, from a layer that starts at zero."""
    x = keras.layers.Dense(
        classes, kernel_initializer="zeros", name=f"{prefix}head", dtype="float32"
    )(x)
    if activation is None:
        return x
    return keras.layers.Activation(activation, name=f"{prefix}predictions", dtype="float32")(x)
