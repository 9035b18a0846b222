"""The convolutions before the patches, against plain numpy."""

import numpy as np
import pytest
from numpy_reference import randomise, weights_of

from keras_vit.layers import ConvStem


def images(height=6, width=9):
    return np.random.default_rng(0).normal(size=(2, height, width, 3)).astype("float32")


def built(filters=4):
    layer = ConvStem(filters)
    layer.build((None, None, None, 3))
    return randomise(layer)


def convolution(x, kernel, stride):
    margin, side = kernel.shape[0] // 2, kernel.shape[0]
    x = np.pad(x, [(0, 0), (margin, margin), (margin, margin), (0, 0)])
    windows = np.lib.stride_tricks.sliding_window_view(x, (side, side), axis=(1, 2))
    return np.einsum("bhwcij,ijcd->bhwd", windows[:, ::stride, ::stride], kernel)


def norm(x, weights, name):
    mean, variance, gamma, beta = (
        weights[f"{name}/{part}"] for part in ("moving_mean", "moving_variance", "gamma", "beta")
    )
    return (x - mean) / np.sqrt(variance + 1e-5) * gamma + beta


@pytest.mark.parametrize("size", [(6, 8), (7, 9)])
def test_against_numpy(size):
    layer, x = built(), images(*size)
    weights = weights_of(layer)
    y = np.maximum(norm(convolution(x, weights["conv_1/kernel"], 2), weights, "norm_1"), 0)
    y = np.maximum(norm(convolution(y, weights["conv_2/kernel"], 1), weights, "norm_2"), 0)
    assert layer(x).shape == layer.compute_output_shape(x.shape) == y.shape
    np.testing.assert_allclose(layer(x), y, rtol=1e-4, atol=1e-4 * y.max())


def test_training_moves_the_statistics_unless_frozen():
    layer = built()
    before = weights_of(layer)
    layer(images(), training=True)
    after = weights_of(layer)
    moved = {path for path in before if not np.array_equal(before[path], after[path])}
    assert moved == {f"norm_{k}/moving_{kind}" for k in (1, 2) for kind in ("mean", "variance")}
    layer.trainable = False
    layer(images(), training=True)
    for path, value in weights_of(layer).items():
        np.testing.assert_array_equal(value, after[path], path)
