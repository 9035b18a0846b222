"""Positions and filters of models whose answer is known."""

import dataclasses

import keras
import numpy as np
import pytest

from keras_vit.analysis import patch_filters, position_similarity
from keras_vit.models import plain

BASE = plain.Config(patch=8, width=16, depth=1, heads=2, mlp=32, image=(16, 24))


def test_positions_written_out(make):
    model = make(dataclasses.replace(BASE, tokens=("class", "distillation")))
    table = np.array(model.get_layer("tiny_patch_encoder").own["positions"], "float64")[2:]
    found = position_similarity(model)
    assert found.shape == (2, 3, 2, 3) and found.dtype == "float32"
    for a in range(6):
        for b in range(6):
            want = table[a] @ table[b] / np.linalg.norm(table[a]) / np.linalg.norm(table[b])
            np.testing.assert_allclose(found[a // 3, a % 3, b // 3, b % 3], want, atol=1e-6)


@pytest.mark.parametrize("positions", ["learned-2d", "sincos-2d"])
def test_other_positions(make, positions):
    found = position_similarity(make(positions=positions))
    for i in range(2):
        for j in range(3):
            assert np.unravel_index(found[i, j].argmax(), (2, 3)) == (i, j)
            np.testing.assert_allclose(found[i, j, i, j], 1, atol=1e-6)


def test_no_positions(make):
    with pytest.raises(ValueError, match="tiny has no position embeddings"):
        position_similarity(make(positions="none"))


@pytest.mark.parametrize("channels", [1, 3])
def test_filters_are_the_components_that_were_put_in(make, channels):
    model = make(input_shape=(16, 24, channels))
    values = 64 * channels
    basis, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(values, 2)))
    kernel = np.zeros((values, 16))
    kernel[:, 0], kernel[:, 1] = 3 * basis[:, 0], -3 * basis[:, 0]
    kernel[:, 2], kernel[:, 3] = basis[:, 1], -basis[:, 1]
    model.get_layer("tiny_patch_encoder").projection.kernel.assign(kernel)
    outer = keras.Sequential([keras.Input((16, 24, channels)), model])
    found = patch_filters(outer, 2)
    assert found.shape == (2, 8, 8, channels) and found.dtype == "float32"
    for filters, component in zip(found, basis.T, strict=True):
        want = component * np.sign(component[np.abs(component).argmax()])
        want = (want - want.min()) / np.ptp(want)
        np.testing.assert_allclose(filters.ravel(), want, atol=1e-5)  # row, column, channel


def test_filters_that_are_none(make):
    model = make()
    for count in (0, 17):
        with pytest.raises(ValueError, match=f"in 1..16, the number of .* Received: count={count}"):
            patch_filters(model, count)
    stem = dataclasses.replace(BASE, patch=4, stem=plain.conv_stem, stem_stride=2)
    with pytest.raises(ValueError, match="no pictures: its patches have 64 channels"):
        patch_filters(make(stem), 2)


def test_filters_of_a_quantised_model_are_the_same(make):
    model = make()
    want = patch_filters(model, 4)
    model.get_layer("tiny_patch_encoder").projection.quantize("int8")
    np.testing.assert_allclose(patch_filters(model, 4), want, atol=0.05)
