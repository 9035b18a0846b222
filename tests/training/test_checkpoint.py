import keras
import numpy as np
import pytest

from keras_vit.models import plain
from keras_vit.training.checkpoint import load_state, save_state

CONFIG = plain.Config(patch=8, width=16, depth=2, heads=2, mlp=32, image=(16, 16))
IMAGES = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3)).astype("float32")
LABELS = np.arange(8) % 3
EAGERLY = keras.backend.backend() == "tensorflow"  # a step takes less time than compiling it


def model(classes=3, optimizer=None):
    built = plain.model(CONFIG, classes=classes, classifier_activation=None, dropout_rate=0.2)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    built.compile(optimizer or keras.optimizers.AdamW(1e-2), loss, run_eagerly=EAGERLY)
    return built


def train(built, epochs):
    built.fit(IMAGES, LABELS, batch_size=4, epochs=epochs, shuffle=False, verbose=0)


def test_training_goes_on_as_if_it_had_not_stopped(tmp_path):
    whole = model()
    start = whole.get_weights()
    seeds = [
        v.numpy() if hasattr(v, "numpy") else np.asarray(v)
        for v in whole.variables
        if "seed" in v.path
    ]
    train(whole, 1)
    save_state(tmp_path / "last.npz", whole, 1)
    train(whole, 1)
    again = model()
    again.set_weights(start)
    assert load_state(tmp_path / "last.npz", again) == 1
    train(again, 1)
    assert seeds  # dropout has a state, which counts
    for a, b in zip(whole.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_state_of_another_model_is_refused_and_changes_nothing(tmp_path):
    save_state(tmp_path / "last.npz", model(), 3)
    other = model(classes=4)
    before = other.get_weights()
    with pytest.raises(
        ValueError, match="vit_head/kernel.*another model|another model.*vit_head/kernel"
    ):
        load_state(tmp_path / "last.npz", other)
    for a, b in zip(before, other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="another model or optimizer"):
        load_state(tmp_path / "last.npz", model(optimizer=keras.optimizers.SGD(0.1)))


def test_damaged_state_is_named(tmp_path):
    path = tmp_path / "last.npz"
    save_state(path, model(), 3)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(ValueError, match="cannot be read: .*last.npz"):
        load_state(path, model())
