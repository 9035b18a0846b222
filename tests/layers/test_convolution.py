"""Standardised kernels and normalization over groups, against plain numpy and Keras."""

import keras
import numpy as np
import pytest
from keras import ops
from numpy_reference import randomise

from keras_vit.layers import GroupNorm, StandardizedConv2D

RNG = np.random.default_rng(0)

EXPECTED = {
    "google": lambda kernel: kernel.std(axis=(0, 1, 2)) + 1e-5,
    "bit": lambda kernel: np.sqrt(kernel.var(axis=(0, 1, 2)) + 1e-10),
    "timm": lambda kernel: np.sqrt(kernel.var(axis=(0, 1, 2)) + 1e-8),
}


def images(scale=1.0, size=(5, 6), channels=8):
    return (scale * RNG.normal(size=(2, *size, channels))).astype("float32")


@pytest.mark.parametrize("standardization", EXPECTED)
@pytest.mark.parametrize("scale", [1.0, 1e-4])  # the second one lets the epsilon decide
def test_standardised_kernel(standardization, scale):
    x = images()
    layer = StandardizedConv2D(4, 3, standardization, strides=2, padding="same", use_bias=False)
    layer.build(x.shape)
    kernel = scale * (RNG.normal(size=(3, 3, 8, 4)) + 0.5)
    layer.kernel.assign(kernel)
    plain = keras.layers.Conv2D(4, 3, strides=2, padding="same", use_bias=False)
    plain.build(x.shape)
    centred = kernel - kernel.mean(axis=(0, 1, 2))
    plain.kernel.assign(centred / EXPECTED[standardization](kernel))
    np.testing.assert_allclose(layer(x), plain(x), atol=2e-4)


def test_standardised_in_float32_under_a_mixed_policy():
    x = images()
    layer = StandardizedConv2D(4, 1, use_bias=False, dtype="mixed_bfloat16")
    layer.build(x.shape)
    kernel = RNG.normal(size=(1, 1, 8, 4)) * 1e-3 + 1.0  # bfloat16 would round this to 1
    layer.kernel.assign(kernel)
    exact = StandardizedConv2D(4, 1, use_bias=False)
    exact.build(x.shape)
    exact.kernel.assign(kernel)
    difference = ops.cast(layer(x), "float32") - exact(x)
    assert np.abs(difference).max() < 0.1 < 1 < np.abs(exact(x)).max()


def test_unknown_standardization():
    with pytest.raises(ValueError, match="Received: standardization='flax'. Available: 'google'"):
        StandardizedConv2D(4, 3, "flax")


@pytest.mark.parametrize("size", [(5, 6), (1, 1)])
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_groups_as_in_keras(size, scale):
    x = images(scale, size) + 0.5 * scale
    ours, theirs = GroupNorm(4, epsilon=1e-5), keras.layers.GroupNormalization(4, epsilon=1e-5)
    ours.build(x.shape)
    theirs.build(x.shape)
    randomise(ours)
    theirs.set_weights(ours.get_weights())
    np.testing.assert_allclose(ours(x), theirs(x), atol=1e-5)


def test_groups_of_large_half_precision_values():
    x = images(1e3)
    layer = GroupNorm(2, epsilon=1e-5, dtype="float16")
    layer.build(x.shape)
    assert np.isfinite(layer(x)).all()


@pytest.mark.parametrize(
    "made, other, message",
    [
        (GroupNorm(4, epsilon=1e-6), GroupNorm(4, epsilon=1e-5), "epsilon=1e-06.*epsilon=1e-05"),
        (
            StandardizedConv2D(4, 3, "timm"),
            StandardizedConv2D(4, 3, "google"),
            "standardization=timm.*standardization=google",
        ),
    ],
)
def test_a_file_of_other_numerics_is_refused(tmp_path, made, other, message):
    path = tmp_path / "made.weights.h5"
    models = [keras.Sequential([keras.Input((5, 5, 8)), layer]) for layer in (made, other)]
    models[0].save_weights(path)
    models[0].load_weights(path)
    with pytest.raises(ValueError, match=f"{message}. Build the model with weights="):
        models[1].load_weights(path)
