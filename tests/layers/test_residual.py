"""Residual units and stages, put together from Keras layers."""

import keras
import numpy as np
import pytest
from keras import ops
from numpy_reference import randomise, weights_of

from keras_vit.layers import BottleneckUnit, PreActivationStage, PreActivationUnit, ResidualStage

EPSILON = 1e-5


def maps(size=(6, 9), channels=8):
    return np.random.default_rng(0).normal(size=(2, *size, channels)).astype("float32")


def built(kind, *arguments, shape=(None, None, None, 8)):
    layer = kind(*arguments, groups=2, epsilon=EPSILON, standardization="bit")
    layer.build(shape)
    return randomise(layer)


class Reference:
    """The operations of a unit, with its weights."""

    def __init__(self, unit):
        self.weights = weights_of(unit)

    def conv(self, x, name, stride=1, padding="same"):
        kernel = self.weights[f"{name}/kernel"]
        kernel = kernel - kernel.mean(axis=(0, 1, 2))
        kernel = kernel / np.sqrt((kernel**2).mean(axis=(0, 1, 2)) + 1e-10)
        if padding == "even" and kernel.shape[0] == 3:
            x, padding = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)]), "valid"
        return np.array(
            ops.conv(x, kernel.astype("float32"), stride, padding.replace("even", "valid"))
        )

    def norm(self, x, name):
        layer = keras.layers.GroupNormalization(2, epsilon=EPSILON)
        layer.build(x.shape)
        layer.set_weights([self.weights[f"{name}/gamma"], self.weights[f"{name}/beta"]])
        return np.array(layer(x))


def relu(x):
    return np.maximum(x, 0)


def after(unit, x, stride):
    r = Reference(unit)
    y = relu(r.norm(r.conv(x, "conv_1"), "norm_1"))
    y = relu(r.norm(r.conv(y, "conv_2", stride), "norm_2"))
    y = r.norm(r.conv(y, "conv_3"), "norm_3")
    if "projection/kernel" in r.weights:
        x = r.norm(r.conv(x, "projection", stride), "projection_norm")
    return relu(x + y)


def before(unit, x, stride):
    r = Reference(unit)
    y = relu(r.norm(x, "norm_1"))
    if "projection/kernel" in r.weights:
        x = r.conv(y, "projection", stride)
    y = relu(r.norm(r.conv(y, "conv_1"), "norm_2"))
    y = relu(r.norm(r.conv(y, "conv_2", stride, "even"), "norm_3"))
    return x + r.conv(y, "conv_3")


@pytest.mark.parametrize("kind, expected", [(BottleneckUnit, after), (PreActivationUnit, before)])
@pytest.mark.parametrize("filters, stride", [(2, 1), (4, 1), (2, 2), (4, 2)])
def test_units(kind, expected, filters, stride):
    unit, x = built(kind, filters, stride), maps()
    want = expected(unit, x, stride)
    assert (unit.projection is not None) == ((filters, stride) != (2, 1))
    assert unit(x).shape == unit.compute_output_shape(x.shape) == want.shape
    np.testing.assert_allclose(unit(x), want, atol=1e-4)


@pytest.mark.parametrize(
    "kind, unit", [(ResidualStage, BottleneckUnit), (PreActivationStage, PreActivationUnit)]
)
def test_stages_are_units_in_a_row(kind, unit):
    stage, x = built(kind, 3, 4, 2), maps()
    units = [getattr(stage, f"unit_{u}") for u in (1, 2, 3)]
    assert [type(u) for u in units] == [unit] * 3
    assert [(u.stride, u.projection is None) for u in units] == [(2, False), (1, True), (1, True)]
    want = units[2](units[1](units[0](x)))
    assert stage(x).shape == stage.compute_output_shape(x.shape) == (2, 3, 5, 16)
    np.testing.assert_array_equal(stage(x), want)


def test_a_fresh_unit_passes_on_what_comes_in():
    unit, x = BottleneckUnit(2, groups=2), maps()
    np.testing.assert_allclose(unit(x), relu(x), atol=1e-6)
