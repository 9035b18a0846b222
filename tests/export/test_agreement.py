"""Exported models compared with Keras."""

import keras
import numpy as np
import pytest

from keras_vit.export.agreement import agreement
from keras_vit.models import plain


def tiny(**options):
    config = plain.Config(patch=8, width=16, depth=1, heads=2, mlp=16, image=(16, 24))
    keras.utils.set_random_seed(1)
    model = plain.model(config, classes=3, **options)
    for variable in model.layers[-1].weights + model.layers[-2].weights:
        variable.assign(keras.random.normal(variable.shape))
    return model


def test_differences_are_found():
    model = tiny()

    def run(images):
        assert images.dtype == "uint8" and images.shape[1:] == (16, 24, 3)
        return {"probabilities": model.predict_on_batch(images.astype("float32")) + [[0, 0.25, 0]]}

    found = agreement(model, run, 10)
    assert found.difference == pytest.approx(0.25)
    assert found.pictures == 10


def test_a_model_that_ends_in_logits():
    model = tiny(classifier_activation=None)

    def run(images):
        logits = model.predict_on_batch(images.astype("float32"))
        return {"logits": logits, "probabilities": np.array(keras.ops.softmax(logits))}

    found = agreement(model, run, 16)
    assert found.difference < 1e-6
    assert found.same == 16


def test_features():
    model = tiny(include_top=False, pooling="token")
    found = agreement(
        model, lambda images: {"features": model.predict_on_batch(images.astype("float32"))}, 8
    )
    assert (found.difference, found.same) == (0, None)
