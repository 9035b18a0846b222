"""Feed-forward networks and the forms of the GELU."""

import math

import numpy as np
import pytest
from keras import ops
from numpy_reference import gelu as exact_gelu
from numpy_reference import mlp, randomise, weights_of

from keras_vit.layers import Mlp, SwiGLU
from keras_vit.layers.feed_forward import activation_function, gelu, gelu_tanh

X = np.linspace(-6, 6, 2401).astype("float32")


def test_gelu_is_exact():
    np.testing.assert_allclose(gelu(X), exact_gelu(X), atol=1e-6)
    # Phi(1) = 0.841344746
    np.testing.assert_allclose(
        gelu(np.array([-1, 0, 1.0], "float32")), [-0.1586553, 0, 0.8413447], atol=1e-6
    )


def test_gelu_tanh_is_the_approximation():
    inner = math.sqrt(2 / math.pi) * (X + 0.044715 * X**3)
    np.testing.assert_allclose(gelu_tanh(X), 0.5 * X * (1 + np.tanh(inner)), atol=1e-6)
    np.testing.assert_allclose(
        gelu_tanh(np.array([-1, 0, 1.0], "float32")), [-0.1588080, 0, 0.8411920], atol=1e-6
    )


def test_gap_between_the_forms():
    """Tests of parity must see this difference, and tell it from an error."""
    gap = np.abs(np.array(gelu_tanh(X)) - np.array(gelu(X)))
    assert gap.max() == pytest.approx(4.73e-4, abs=2e-6)
    assert abs(X[gap.argmax()]) == pytest.approx(2.70, abs=0.03)


@pytest.mark.parametrize("function", [gelu, gelu_tanh])
def test_large_values_in_float16(function):
    x = ops.convert_to_tensor(np.array([-6e4, -100, 100, 6e4]), "float16")
    np.testing.assert_array_equal(function(x), x * np.array([0, 0, 1, 1], "float16"))


def test_unknown_activation():
    message = r"Unknown activation. Received: activation='relu'. Available: \['gelu', 'gelu_tanh'\]"
    with pytest.raises(ValueError, match=message):
        activation_function("relu")
    with pytest.raises(ValueError, match=message):
        Mlp(4, activation="relu")


def test_mlp_by_hand():
    layer = Mlp(3)
    layer.build((None, 1, 2))
    hidden = np.array([[1, 0, 2], [0, 1, 1]], "float32")
    output = np.array([[1, 0], [0, 1], [1, 1]], "float32")
    layer.set_weights([hidden, np.array([0, 0, -3]), output, np.array([10, 20])])
    a, b, c = 0.84134475, -0.15865525, -0.04550026  # GELU of the hidden values 1, -1, -2
    outputs = layer(np.array([[[1, -1]]], "float32"))
    np.testing.assert_allclose(outputs[0, 0], [10 + a + c, 20 + b + c], atol=1e-5)


def test_mlp_against_numpy():
    x = np.random.default_rng(0).normal(size=(2, 5, 4)).astype("float32")
    layer = Mlp(7)
    layer.build(x.shape)
    weights = weights_of(randomise(layer))
    assert list(weights) == ["hidden/kernel", "hidden/bias", "output/kernel", "output/bias"]
    np.testing.assert_allclose(layer(x), mlp(x, weights), atol=2e-5)
    other = Mlp(7, activation="gelu_tanh")
    other.build(x.shape)
    other.set_weights(layer.get_weights())
    gap = np.abs(np.array(other(x)) - np.array(layer(x))).max()
    assert 1e-5 < gap < 1e-2


def test_swiglu_by_hand():
    layer = SwiGLU(2)
    layer.build((None, 1, 2))
    assert list(weights_of(layer)) == [
        "gate/kernel",
        "gate/bias",
        "value/kernel",
        "value/bias",
        "output/kernel",
        "output/bias",
    ]
    identity = np.eye(2, dtype="float32")
    gate, value, output = np.array([0, 1]), np.zeros(2), np.array([100, 200])
    layer.set_weights([identity, gate, 2 * identity, value, identity, output])
    # gate (1, 3), value (2, 4); silu(z) = z / (1 + exp(-z))
    silu_1, silu_3 = 1 / (1 + math.exp(-1)), 3 / (1 + math.exp(-3))
    outputs = layer(np.array([[[1, 2]]], "float32"))
    np.testing.assert_allclose(outputs[0, 0], [100 + 2 * silu_1, 200 + 4 * silu_3], atol=1e-4)


@pytest.mark.parametrize("layer", [Mlp, SwiGLU])
def test_dropout_after_the_last_layer(layer):
    x = np.random.default_rng(0).normal(size=(2, 50, 8)).astype("float32")
    layer = layer(6, dropout=0.25)
    layer.build(x.shape)
    randomise(layer)
    zeros = np.array(layer(x, training=True)) == 0
    assert zeros.mean() == pytest.approx(0.25, abs=0.08)
    np.testing.assert_array_equal(layer(x, training=False), layer(x))
    assert not np.any(np.array(layer(x)) == 0)


def test_dropout_after_the_activation():
    """With the identity as the last layer, a dropped hidden unit is a zero of its own."""
    layer = Mlp(8, dropout=0.5)
    layer.build((None, 1, 8))
    identity, zero = np.eye(8, dtype="float32"), np.zeros(8, "float32")
    layer.set_weights([identity, zero, identity, zero])
    outputs = np.array(layer(np.full((200, 1, 8), 10.0, "float32"), training=True))
    assert (outputs == 0).mean() == pytest.approx(0.75, abs=0.05)  # dropped by one or the other
    np.testing.assert_allclose(outputs[outputs != 0], 40.0, rtol=1e-5)


def test_initial_values():
    layer = Mlp(64)
    layer.build((None, 1, 32))
    weights = weights_of(layer)
    bound = math.sqrt(6 / (32 + 64))
    for name in ("hidden", "output"):
        kernel, bias = weights[f"{name}/kernel"], weights[f"{name}/bias"]
        assert 0.95 * bound < np.abs(kernel).max() <= bound
        assert 0 < np.abs(bias).max() < 1e-5
