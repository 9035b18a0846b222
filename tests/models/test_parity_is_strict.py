"""The comparisons with the official numbers notice the usual mistakes."""

import dataclasses
import itertools

import numpy as np
import pytest
from golden_files import Golden, compare, config_of, write_checkpoint

from keras_vit.layers import StandardizedConv2D
from keras_vit.layers.stem import padded
from keras_vit.weights import loading


@pytest.fixture
def differs(declare, monkeypatch, tmp_path):
    """Whether a comparison fails after `change` of the numerics or of the weights."""

    original, names = loading.FORMATS, itertools.count()

    def function(stem, key="", weights=None, **numerics):
        golden = Golden(stem)
        formats = tuple(
            dataclasses.replace(
                kind,
                numerics=lambda s, kind=kind: dataclasses.replace(kind.numerics(s), **numerics),
            )
            for kind in original
        )
        monkeypatch.setattr(loading, "FORMATS", formats)
        arrays = weights(dict(golden.weights)) if weights else golden.weights
        path = write_checkpoint(tmp_path / "weights", arrays)
        path = path if path.exists() else path.with_suffix(".npz")
        builder = declare(f"Golden{next(names)}", config_of(golden))
        try:
            compare(golden, builder, path, key, golden.inputs[key], {})
        except AssertionError:
            return True
        return False

    return function


@pytest.mark.parametrize(
    "stem, activation", [("A01", "gelu"), ("A07", "gelu"), ("E01", "gelu_tanh")]
)
def test_the_form_of_gelu_is_noticed(differs, stem, activation):
    assert differs(stem, activation=activation)
    assert not differs(stem)


@pytest.mark.parametrize("epsilon", [1e-12, 1e-5, 1e-3])
@pytest.mark.parametrize("stem", ["A08", "E24"])
def test_epsilon_is_noticed(differs, stem, epsilon):
    assert differs(stem, epsilon=epsilon)


def test_epsilon_of_transformers_is_noticed(differs):
    assert differs("F17", "16x16", epsilon=1e-6)
    assert not differs("F17", "16x16")


@pytest.mark.parametrize(
    "stem, numerics",
    [
        ("B05", {"group_epsilon": 1e-5}),
        ("B05", {"group_epsilon": 1e-3}),
        ("B05", {"standardization": "timm"}),
        ("B05", {"standardization": "bit"}),
        ("E50", {"standardization": "bit"}),
        ("E50", {"standardization": "google"}),
    ],
)
def test_the_epsilons_of_a_stem_are_noticed(differs, stem, numerics):
    assert differs(stem, **numerics)


@pytest.mark.parametrize("stem", ["B05", "E50"])
def test_the_right_epsilons_of_a_stem_are_accepted(differs, stem):
    assert not differs(stem)


@pytest.mark.parametrize("stem", ["B01", "B02", "B03", "B04"])
def test_the_padding_of_a_stem_is_noticed(differs, monkeypatch, stem):
    right = StandardizedConv2D.convolution_op

    def evenly_padded(self, inputs, kernel):
        if self.strides == (1, 1) or self.kernel_size == (1, 1):
            return right(self, inputs, kernel)
        monkeypatch.setattr(self, "padding", "valid")
        return right(self, padded(inputs, self.kernel_size[0] // 2), kernel)

    monkeypatch.setattr(StandardizedConv2D, "convolution_op", evenly_padded)
    assert differs(stem)


@pytest.mark.parametrize("order", [(1, 0, 2), (0, 2, 1), (2, 1, 0)])
def test_the_order_of_query_key_value_is_noticed(differs, order):
    def shuffle(arrays):
        for name, value in arrays.items():
            if "attn.qkv" in name:
                thirds = np.split(value, 3)
                arrays[name] = np.concatenate([thirds[k] for k in order])
        return arrays

    assert differs("E01", weights=shuffle)


def test_interleaved_heads_are_noticed(differs):
    def interleave(arrays):
        for name, value in arrays.items():
            if "attn.qkv" in name:  # (heads, 3, d) instead of (3, heads, d)
                split = value.reshape(3, 4, 8, *value.shape[1:])
                arrays[name] = np.swapaxes(split, 0, 1).reshape(value.shape)
        return arrays

    assert differs("E01", weights=interleave)


@pytest.mark.parametrize(
    "stem, key, wrong",
    [
        ("E14", "", ("google", "hf", "dinov2")),
        ("F01", "70x28", ("google", "hf", "timm")),
        ("F02", "70x28", ("google", "hf", "dinov2")),
        ("F10", "40x24", ("google", "timm", "dinov2")),
    ],
)
def test_the_resampling_rule_is_noticed(differs, stem, key, wrong):
    for rule in wrong:
        assert differs(stem, key, resampling=rule), rule
