"""The normalisation that a model carries."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers import Normalize

HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def grey(values, channels=3, dtype="float32"):
    """Images (N, 1, 1, C) of one grey level each."""
    return np.tile(np.array(values, dtype)[:, None, None, None], (1, 1, 1, channels))


@pytest.mark.parametrize(
    ("statistics", "channel", "expected"),
    [
        (HALF, 0, [-1, -0.02745, 1]),
        (IMAGENET, 0, [-2.1179, 0.0056, 2.2489]),
        (IMAGENET, 1, [-2.0357, 0.1352, 2.4286]),
        (IMAGENET, 2, [-1.8044, 0.3568, 2.6400]),
    ],
)
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64", "int32", "float16"])
def test_values(statistics, channel, expected, dtype):
    outputs = Normalize(*statistics)(grey([0, 124, 255], dtype=dtype))
    assert keras.backend.standardize_dtype(outputs.dtype) == "float32"
    np.testing.assert_allclose(outputs[:, 0, 0, channel], expected, atol=5e-5)


def test_computed_in_float32_under_mixed_precision():
    layer = Normalize(*IMAGENET, dtype="mixed_bfloat16")
    images = grey(np.linspace(0, 255, 1000))
    outputs = ops.convert_to_numpy(ops.cast(layer(images), "float32"))
    full = ops.convert_to_numpy(Normalize(*IMAGENET)(images))
    rounded = ops.convert_to_numpy(ops.cast(ops.cast(full, "bfloat16"), "float32"))
    np.testing.assert_array_equal(outputs, rounded)


def test_one_channel_takes_the_mean_of_the_colours():
    outputs = Normalize((0.2, 0.4, 0.6), (0.1, 0.2, 0.3))(grey([0, 102, 255], channels=1))
    np.testing.assert_allclose(outputs[:, 0, 0, 0], [-2, 0, 3], atol=1e-6)


def test_more_channels_repeat_the_colours():
    outputs = ops.convert_to_numpy(Normalize(*IMAGENET)(grey([0, 255], channels=5)))
    colours = ops.convert_to_numpy(Normalize(*IMAGENET)(grey([0, 255])))
    np.testing.assert_array_equal(outputs, colours[..., [0, 1, 2, 0, 1]])


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_input_stays_as_it_is(dtype):
    images = grey([0, 124, 255], dtype=dtype)
    before = images.copy()
    Normalize(*IMAGENET)(images)
    np.testing.assert_array_equal(images, before)


def test_it_has_no_weights_and_keeps_the_recipe():
    recipe = {"size": [224, 224], "crop_fraction": 0.9}
    layer = Normalize(*HALF, recipe)
    layer(grey([0]))
    assert not layer.variables
    again = Normalize.from_config(layer.get_config())
    assert again.recipe == recipe
    assert (again.mean, again.std) == HALF
