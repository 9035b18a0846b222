"""Layers that read the token sequence."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers import Patches, PoolPatches, TakeToken, TokensToGrid

TOKENS = np.array([[[100, 200], [1, 8], [2, 4], [6, 3]]], "float32")


@pytest.mark.parametrize(("index", "expected"), [(0, [100, 200]), (1, [1, 8]), (-1, [6, 3])])
def test_take_token(index, expected):
    np.testing.assert_array_equal(TakeToken(index)(TOKENS), [expected])
    assert TakeToken().index == 0


@pytest.mark.parametrize(
    ("mode", "prefix", "expected"),
    [
        ("avg", 1, [3, 5]),
        ("max", 1, [6, 8]),
        ("avgmax", 1, [4.5, 6.5]),
        ("avg", 2, [4, 3.5]),
        ("avg", 0, [27.25, 53.75]),
    ],
)
def test_pool_patches(mode, prefix, expected):
    np.testing.assert_allclose(PoolPatches(mode, prefix)(TOKENS), [expected], rtol=1e-6)
    defaults = PoolPatches()
    assert (defaults.mode, defaults.prefix) == ("avg", 1)


@pytest.mark.parametrize("mode", ["avg", "max", "avgmax"])
def test_pooling_sums_in_float32(mode):
    layer = PoolPatches(mode, prefix=0, dtype="float16")
    outputs = layer(np.full((1, 1000, 2), 40_000, "float16"))  # twice that is beyond float16
    assert keras.backend.standardize_dtype(outputs.dtype) == "float16"
    np.testing.assert_array_equal(ops.convert_to_numpy(outputs), [[40_000, 40_000]])


def test_unknown_mode():
    message = r"Received: mode='median'. Available: \['avg', 'avgmax', 'max'\]"
    with pytest.raises(ValueError, match=message):
        PoolPatches("median")


@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_tokens_to_grid_row_by_row(prefix):
    tokens = np.arange(2 * (prefix + 6) * 4, dtype="float32").reshape(2, prefix + 6, 4)
    grid = ops.convert_to_numpy(
        TokensToGrid(8, prefix)(tokens, np.zeros((2, 16, 24, 3), "float32"))
    )
    assert grid.shape == (2, 2, 3, 4)
    for row in range(2):
        for column in range(3):
            expected = tokens[:, prefix + 3 * row + column]
            np.testing.assert_array_equal(grid[:, row, column], expected)


def test_tokens_to_grid_undoes_patches():
    """Patches of one pixel, laid out again, are the image."""
    images = np.random.default_rng(0).normal(size=(2, 3, 5, 4)).astype("float32")
    tokens = Patches(1)(images)
    np.testing.assert_array_equal(TokensToGrid(1, prefix=0)(tokens, images), images)


def test_tokens_to_grid_of_any_size():
    images = keras.Input((None, None, 1))
    grid = TokensToGrid(2, prefix=0)(Patches(2)(images), images)
    assert grid.shape == (None, None, None, 4)
    model = keras.Model(images, grid)
    for size in [(4, 6), (6, 4), (2, 12)]:
        pixels = np.random.default_rng(0).normal(size=(1, *size, 1)).astype("float32")
        outputs = model.predict(pixels, verbose=0)
        assert outputs.shape == (1, size[0] // 2, size[1] // 2, 4)
        np.testing.assert_array_equal(outputs[0, -1, -1], pixels[0, -2:, -2:, 0].ravel())
