"""Tiny models with random weights, and pictures for them."""

import keras
import numpy as np
import pytest

from keras_vit.models import plain

CONFIG = plain.Config(patch=8, width=16, depth=2, heads=2, mlp=32, image=(16, 24))


@pytest.fixture
def make():
    """`make(config, **arguments)`: a model whose attention is far from uniform."""

    def function(config=CONFIG, name="tiny", **arguments):
        model = plain.model(config, name, **{"classes": 5, **arguments})
        generator = np.random.default_rng(0)
        for variable in model.weights:
            values = generator.normal(0, 0.4, variable.shape)
            variable.assign(np.abs(values) if "variance" in variable.path else values)
        return model

    return function


@pytest.fixture
def images():
    """Two pictures of 16x24 pixels."""
    return np.random.default_rng(1).uniform(0, 255, (2, 16, 24, 3)).astype("float32")


@pytest.fixture
def random_maps():
    """`random_maps(tokens)`: softmax maps of three blocks, each (2 images, 2 heads, N, N)."""

    def function(tokens):
        logits = np.random.default_rng(2).normal(0, 2, (3, 2, 2, tokens, tokens))
        return list(np.asarray(keras.ops.softmax(logits.astype("float32"))))

    return function
