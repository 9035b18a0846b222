"""Batches: the pictures of `classify` for evaluation, and reproducible ones for training."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_vit import load_image, prepare, recipe_of
from keras_vit.preprocessing import Recipe
from keras_vit.training import (
    Augmentation,
    Samples,
    evaluation_dataset,
    open_samples,
    steps_per_epoch,
    training_dataset,
)
from keras_vit.training.memory import PictureCache, free_memory

RECIPE = Recipe((24, 32))
CUT_ONLY = Augmentation(flip=False)


def batches(dataset, count=-1):
    return list(dataset.take(count).as_numpy_iterator())


def same(first, second):
    return len(first) == len(second) and all(
        np.array_equal(a, b)
        for pair in zip(first, second, strict=True)
        for a, b in zip(*pair, strict=True)
    )


@pytest.fixture
def samples(folder):
    return open_samples(folder({"cat": 5, "dog": 4, "fox": 2}))


@pytest.mark.parametrize("antialias", [True, False])
def test_evaluation_shows_what_classify_sees(samples, antialias):
    interpolation = "bicubic" if antialias else "bilinear"
    recipe = Recipe((24, 32), "shorter-side", 0.9, interpolation, antialias)
    result = batches(evaluation_dataset(samples, recipe, 4))
    assert [len(images) for images, _ in result] == [4, 4, 3]
    images = np.concatenate([images for images, _ in result])
    expected = np.stack([prepare(load_image(path), recipe) for path in samples.images])
    assert images.dtype == expected.dtype
    np.testing.assert_array_equal(images, expected)
    assert np.concatenate([labels for _, labels in result]).tolist() == samples.labels.tolist()


def test_labels_on_request_are_one_hot(samples):
    (_, labels), *_ = batches(evaluation_dataset(samples, RECIPE, 11, one_hot=True))
    np.testing.assert_array_equal(labels, np.eye(3, dtype="float32")[samples.labels])


def test_cached_pictures_are_the_same(samples):
    dataset = evaluation_dataset(samples, RECIPE, 4, cache=0.1)
    first = batches(dataset)
    for path in samples.images:
        path.unlink()
    assert same(batches(dataset), first)


def test_epochs_hold_every_picture_once_in_another_order(samples):
    samples = Samples(samples.images, np.arange(11), range(11))
    dataset = training_dataset(samples, RECIPE, 4, augmentation=CUT_ONLY)
    result = batches(dataset, 2 * steps_per_epoch(samples, 4))
    assert [len(images) for images, _ in result] == [4, 4, 3] * 2
    orders = [np.concatenate([labels for _, labels in result[k : k + 3]]) for k in (0, 3)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(11))
    assert orders[0].tolist() != orders[1].tolist() != list(range(11))


def test_augmentation_differs_from_epoch_to_epoch_in_spite_of_the_cache(samples):
    one = samples.select([0])
    images = [i for i, _ in batches(training_dataset(one, RECIPE, 1, augmentation=CUT_ONLY), 4)]
    assert len({image.tobytes() for image in images}) == 4


def test_remainder_can_be_left_out(samples):
    dataset = training_dataset(samples, RECIPE, 4, drop_remainder=True)
    assert dataset.element_spec[0].shape == (4, 24, 32, 3)
    assert {len(images) for images, _ in batches(dataset, 4)} == {4}
    assert steps_per_epoch(samples, 4, drop_remainder=True) == 2


MIXED = Augmentation(erasing=0.25, mix_up=0.8, cut_mix=1.0)


@pytest.mark.parametrize("augmentation", [CUT_ONLY, MIXED], ids=["cut", "mixed"])
def test_resumed_run_sees_what_it_would_have_seen(samples, augmentation):
    def run(epoch, count, **options):
        options |= {"augmentation": augmentation, "seed": 5, "epoch": epoch}
        return batches(training_dataset(samples, RECIPE, 6, **options), count)

    whole = run(0, 6)
    assert same(run(2, 2, threads=1, cache=0), whole[4:])
    assert not same(whole[:2], whole[2:4])


def test_other_seed_is_another_run(samples):
    first, second = (
        batches(training_dataset(samples, RECIPE, 6, augmentation=CUT_ONLY, seed=seed), 2)
        for seed in (5, 6)
    )
    assert not same(first, second)


def test_fit_resumed_with_the_next_epoch_ends_at_the_same_weights(samples):
    def fit(model, epoch, epochs, data_epoch):
        dataset = training_dataset(samples, RECIPE, 4, epoch=data_epoch)
        model.fit(
            dataset, steps_per_epoch=3, initial_epoch=epoch, epochs=epochs, shuffle=False, verbose=0
        )
        return np.concatenate([weight.ravel() for weight in model.get_weights()])

    def new_model():
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(3)]
        model = keras.Sequential([keras.Input((24, 32, 3)), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(1e-3), loss)
        return model

    whole = fit(new_model(), 0, 2, 0)
    resumed, repeated = new_model(), new_model()
    fit(resumed, 0, 1, 0)
    fit(repeated, 0, 1, 0)
    np.testing.assert_allclose(fit(resumed, 1, 2, 1), whole, atol=1e-6)
    assert np.abs(fit(repeated, 1, 2, 0) - whole).max() > 1e-4


def test_recipe_of_a_model_cuts_for_it(tiny, samples):
    model = tiny(weights=None, classes=3, input_shape=(32, 48, 3))
    dataset = evaluation_dataset(samples, recipe_of(model), 5)
    scores = model.predict(dataset, verbose=0)
    assert scores.shape == (11, 3)
    images = np.stack([prepare(load_image(p), recipe_of(model)) for p in samples.images])
    np.testing.assert_allclose(scores, model.predict(images, verbose=0), atol=1e-6)


def test_picture_that_vanished_is_named(samples):
    samples.images[1].unlink()
    with pytest.raises(Exception, match="no such file|No such file.*1.jpg"):
        batches(evaluation_dataset(samples, RECIPE, 4))


def test_wrong_numbers_are_refused(samples):
    with pytest.raises(ValueError, match="batch_size=0"):
        evaluation_dataset(samples, RECIPE, 0)
    with pytest.raises(ValueError, match="enough pictures for one batch.*11 pictures"):
        training_dataset(samples, RECIPE, 12, drop_remainder=True)
    with pytest.raises(ValueError, match="cache=1.5"):
        training_dataset(samples, RECIPE, 4, cache=1.5)


def test_cache_keeps_to_its_size():
    cache, loads = PictureCache(250), []

    def load(index):
        def function():
            loads.append(index)
            return np.zeros(100, "uint8")

        return cache.get(index, function)

    for index in (0, 1, 2, 0, 1, 2):
        load(index)
    assert loads == [0, 1, 2, 2]


def test_free_memory_is_plausible():
    assert 10**8 < free_memory() < 10**14


def test_without_tensorflow(samples, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ValueError, match=r"needs TensorFlow.*keras-vit-zoo\[tensorflow\]"):
        evaluation_dataset(samples, RECIPE, 4)


def test_import_with_jax_leaves_tensorflow_alone():
    code = "import keras_vit.training, sys; print('tensorflow' in sys.modules)"
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert result.stdout == "False\n", result.stderr
