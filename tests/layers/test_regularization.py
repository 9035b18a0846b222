"""Stochastic depth, patch dropout and LayerScale."""

import json

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers import DropPath, LayerScale, PatchDropout


@pytest.mark.parametrize("rate", [-0.1, 1.0, 2])
def test_rates(rate):
    for layer in (DropPath, PatchDropout):
        with pytest.raises(
            ValueError, match=rf"a: rate must be in \[0, 1\). Received: rate={rate}"
        ):
            layer(rate, name="a")


# DropPath


def test_drop_path_drops_whole_samples():
    outputs = np.array(DropPath(0.5)(np.ones((1000, 197, 8), "float32"), training=True))
    assert (outputs == outputs[:, :1, :1]).all()
    assert set(np.unique(outputs)) == {0.0, 2.0}
    assert outputs.mean() == pytest.approx(1.0, abs=0.1)


def test_drop_path_scales_what_it_keeps():
    x = np.random.default_rng(0).normal(size=(2000, 3)).astype("float32")
    outputs = np.array(DropPath(0.2)(x, training=True))
    kept = outputs.any(axis=1)
    assert kept.mean() == pytest.approx(0.8, abs=0.03)
    np.testing.assert_allclose(outputs[kept], x[kept] / 0.8, rtol=1e-6)


@pytest.mark.parametrize(("rate", "training"), [(0.5, False), (0.5, None), (0.0, True)])
def test_drop_path_off(rate, training):
    x = np.random.default_rng(0).normal(size=(20, 3, 4)).astype("float32")
    np.testing.assert_array_equal(DropPath(rate)(x, training=training), x)


def masks(layer, count=3):
    x = np.ones((64, 1), "float32")
    return [tuple(np.array(layer(x, training=True))[:, 0]) for _ in range(count)]


def test_masks_differ_and_are_reproducible():
    keras.utils.set_random_seed(7)
    first = masks(DropPath(0.5))
    assert len(set(first)) == 3
    keras.utils.set_random_seed(7)
    assert masks(DropPath(0.5)) == first
    keras.utils.set_random_seed(8)
    assert masks(DropPath(0.5)) != first
    assert masks(DropPath(0.5, seed=1)) == masks(DropPath(0.5, seed=1))
    assert masks(DropPath(0.5, seed=1)) != masks(DropPath(0.5, seed=2))


def fitted():
    """A model whose weights follow the masks, after an epoch of four steps."""
    keras.utils.set_random_seed(7)
    inputs = keras.Input((1,))
    model = keras.Model(inputs, keras.layers.Dense(1)(DropPath(0.5)(inputs)))
    model.compile(keras.optimizers.SGD(0.01), "mse")
    model.fit(np.ones((64, 1)), np.ones((64, 1)), batch_size=16, verbose=0)
    return model


def test_masks_in_training():
    model, twin = fitted(), fitted()
    for ours, theirs in zip(model.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    layer = next(layer for layer in model.layers if isinstance(layer, DropPath))
    assert ops.convert_to_numpy(layer.seed_generator.state)[1] == 4  # one draw per step


@pytest.mark.parametrize("layer", [DropPath, PatchDropout])
def test_random_states_are_no_parameters(layer):
    layer = layer(0.5)
    layer.build((None, 5, 4))
    assert layer.count_params() == 0 and not layer.weights
    assert len(layer.variables) == 1


def test_numpy_rates_are_serialisable():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, DropPath(np.linspace(0, 0.5, 3, dtype="float32")[1])(inputs))
    assert json.loads(model.to_json())["config"]["layers"][1]["config"]["rate"] == 0.25


# PatchDropout


def numbered(batch, count):
    """Tokens that hold their own index: (B, N, 2)."""
    return np.broadcast_to(np.arange(count, dtype="float32")[:, None], (batch, count, 2)).copy()


@pytest.mark.parametrize(("rate", "kept"), [(0.5, 5), (0.25, 7), (0.7, 3), (0.99, 1)])
@pytest.mark.parametrize("prefix", [0, 2])
def test_patch_dropout(rate, kept, prefix):
    outputs = np.array(PatchDropout(rate, prefix)(numbered(50, prefix + 10), training=True))
    assert outputs.shape == (50, prefix + kept, 2)
    np.testing.assert_array_equal(outputs[..., 0], outputs[..., 1])  # tokens stay whole
    index = outputs[..., 0]
    np.testing.assert_array_equal(index[:, :prefix], np.tile(np.arange(prefix), (50, 1)))
    assert (index[:, prefix:] >= prefix).all()
    assert (np.diff(index, axis=1) > 0).all()  # in order, none twice
    assert len(np.unique(index, axis=0)) > 5  # every sample draws its own
    assert set(np.unique(index)) == set(range(prefix + 10))  # every patch has its chance


@pytest.mark.parametrize(("rate", "training"), [(0.5, False), (0.5, None), (0.0, True)])
def test_patch_dropout_off(rate, training):
    x = numbered(3, 11)
    np.testing.assert_array_equal(PatchDropout(rate)(x, training=training), x)


def test_patch_dropout_draws_anew():
    keras.utils.set_random_seed(7)
    layer = PatchDropout(0.5)
    first, second = (np.array(layer(numbered(8, 21), training=True)) for _ in range(2))
    assert not np.array_equal(first, second)
    keras.utils.set_random_seed(7)
    np.testing.assert_array_equal(PatchDropout(0.5)(numbered(8, 21), training=True), first)


def test_patch_dropout_needs_a_static_size():
    message = r"static image size. Received: tokens of shape \(None, None, 8\). Give input_shape"
    with pytest.raises(ValueError, match=message):
        PatchDropout(0.5)(keras.Input((None, 8)))
    assert PatchDropout(0.0)(keras.Input((None, 8))).shape == (None, None, 8)


def test_a_model_with_patch_dropout_trains():
    inputs = keras.Input((9, 2))
    x = PatchDropout(0.5)(inputs)
    assert x.shape == (None, None, 2)
    model = keras.Model(inputs, keras.layers.GlobalAveragePooling1D()(keras.layers.Dense(2)(x)))
    model.compile("sgd", "mse")
    model.fit(numbered(4, 9), np.zeros((4, 2)), verbose=0)
    assert model.predict(numbered(4, 9), verbose=0).shape == (4, 2)


# LayerScale


def test_layer_scale():
    layer = LayerScale(0.5)
    layer.build((None, None, 3))
    np.testing.assert_array_equal(ops.convert_to_numpy(layer.gamma), [0.5, 0.5, 0.5])
    layer.gamma.assign([1.0, 2.0, 3.0])
    x = np.array([[[1, 1, 1], [1, 10, 100]]], "float32")
    np.testing.assert_array_equal(layer(x), [[[1, 2, 3], [1, 20, 300]]])
    assert layer.count_params() == 3
    assert LayerScale().initial == 1e-5
