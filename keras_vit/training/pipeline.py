"""Labelled pictures as batches in a tf.data pipeline, for training and for evaluation."""

import concurrent.futures
import os

import keras
import numpy as np

from keras_vit.preprocessing import prepare
from keras_vit.training.augmentation import Augmentation
from keras_vit.training.memory import PictureCache, free_memory

_READY = 2  # batches made ahead of the model


def training_dataset(
    samples,
    recipe,
    batch_size,
    *,
    augmentation=None,
    seed=0,
    epoch=0,
    steps=None,
    one_hot=False,
    drop_remainder=False,
    cache=0.25,
    threads=None,
):
    """Makes an endless `tf.data.Dataset` of shuffled and augmented batches.

    It runs from epoch to epoch, each in another order and with other random cuts, and no batch
    crosses from one into the next. All of it follows from the seed: a run that was stopped goes on
    with `epoch` and sees what it would have seen. Pass `steps_per_epoch` to `fit`, whose own
    shuffling is for arrays:

        dataset = training_dataset(samples, recipe_of(model), 64, epoch=start)
        steps = steps_per_epoch(samples, 64)
        model.fit(
            dataset, steps_per_epoch=steps, initial_epoch=start, epochs=10, shuffle=False
        )

    Only numbers are shuffled; pictures are read a batch at a time. With another Keras backend than
    TensorFlow this hides the GPUs from TensorFlow, which would take their memory.

    Args:
        samples: `Samples`.
        recipe: `keras_vit.recipe_of(model)`; gives the size of the pictures and the interpolation.
        batch_size: pictures in a batch.
        augmentation: `Augmentation`; None is its default, random crops and mirroring.
        seed: whole number, at least 0.
        epoch: the first one, from 0.
        steps: batches of an epoch, at most `steps_per_epoch`; None for all of them.
        one_hot: whether labels are float32 (B, K). They are whenever the augmentation mixes.
        drop_remainder: whether to leave out the pictures at the end of an epoch that do not fill a
            batch.
        cache: share of the free memory, 0..1, that decoded pictures may fill. They are kept while
            they fit, the others are decoded in every epoch.
        threads: how many pictures to decode at once; None is one a processor core.

    Returns:
        `tf.data.Dataset` of (images, labels): (B, h, w, 3) in 0..255, uint8 if they are only cut and
        mirrored, else float32; labels int32 (B,), or float32 (B, K).

    Raises:
        ValueError: a number outside these ranges, less than a batch, or no TensorFlow.
    """
    tf = tensorflow()
    steps_per_epoch(samples, batch_size, drop_remainder)
    make = batch_maker(samples, recipe, augmentation, seed, one_hot, cache, threads)

    def order(epoch):
        return np.random.default_rng([seed, epoch]).permutation(len(samples))

    def numbers(epoch):
        indices = tf.numpy_function(order, [epoch], tf.int64, stateful=False)
        indices = tf.ensure_shape(indices, [len(samples)])
        batches = tf.data.Dataset.from_tensor_slices(indices).batch(batch_size, drop_remainder)
        return (
            batches.take(-1 if steps is None else steps)
            .enumerate()
            .map(lambda batch, indices: (epoch, batch, indices))
        )

    endless = tf.data.Dataset.range(epoch, np.iinfo("int64").max).flat_map(numbers)
    return endless.map(make, num_parallel_calls=_READY).prefetch(_READY)


def evaluation_dataset(samples, recipe, batch_size, *, one_hot=False, cache=0.0, threads=None):
    """Makes a `tf.data.Dataset` of all pictures in order, cut as `keras-vit classify` cuts them.

    Args:
        samples: `Samples`.
        recipe: `keras_vit.recipe_of(model)`.
        batch_size: pictures in a batch; the last batch may have fewer.
        one_hot: whether labels are float32 (B, K).
        cache: share of the free memory, 0..1, that cut pictures may fill, for several evaluations.
        threads: how many pictures to decode at once; None is one a processor core.

    Returns:
        `tf.data.Dataset` of (images, labels): (B, h, w, 3) in 0..255, uint8, or float32 if the
        recipe does not antialias; labels int32 (B,), or float32 (B, K).

    Raises:
        ValueError: a number outside these ranges, or no TensorFlow.
    """
    tf = tensorflow()
    steps_per_epoch(samples, batch_size)
    pictures = PictureCache(_bytes(cache))

    def load(index, epoch):
        return pictures.get(index, lambda: prepare(samples.load(index), recipe))

    read = _reader(tf, samples, recipe, load, threads)

    def make(indices):
        images, labels = read(indices, tf.constant(0, tf.int64))
        return images, tf.one_hot(labels, len(samples.class_names)) if one_hot else labels

    numbers = tf.data.Dataset.range(len(samples)).batch(batch_size)
    return numbers.map(make, num_parallel_calls=_READY).prefetch(_READY)


def steps_per_epoch(samples, batch_size, drop_remainder=False):
    """Number of batches that hold all samples once.

    Raises:
        ValueError: it is 0.
    """
    if batch_size < 1:
        raise ValueError(f"`batch_size` must be at least 1. Received: batch_size={batch_size}.")
    steps = len(samples) // batch_size if drop_remainder else -(-len(samples) // batch_size)
    if not steps:
        raise ValueError(
            "There must be enough pictures for one batch. Received: "
            f"{len(samples)} pictures of {samples.origin}, batch_size={batch_size}."
        )
    return steps


def batch_maker(samples, recipe, augmentation=None, seed=0, one_hot=False, cache=0.0, threads=None):
    """What `training_dataset` does with the numbers of a batch.

    Args:
        samples, recipe, augmentation, seed, one_hot, cache, threads: as there.

    Returns:
        A function for `tf.data.Dataset.map`: epoch, number of the batch, int64 indices (B,) ->
        images (B, h, w, 3), labels.
    """
    tf = tensorflow()
    augmentation = Augmentation() if augmentation is None else augmentation
    change = augmentation.batch_function()
    pictures = PictureCache(_bytes(cache))

    def load(index, epoch):
        image = pictures.get(index, lambda: samples.load(index))
        return augmentation.cut(image, recipe, np.random.default_rng([seed, epoch, index]))

    def batch_seed(epoch, batch):
        return np.random.SeedSequence([seed, epoch, batch]).generate_state(2).view("int32")

    read = _reader(tf, samples, recipe, load, threads)

    @tf.autograph.experimental.do_not_convert
    def make(epoch, batch, indices):
        images, labels = read(indices, epoch)
        if one_hot or augmentation.mixes:
            labels = tf.one_hot(labels, len(samples.class_names))
        start = tf.numpy_function(batch_seed, [epoch, batch], tf.int32, stateful=False)
        return change(images, labels, tf.ensure_shape(start, [2]))

    return make


def _reader(tf, samples, recipe, load, threads):
    """A function of tensors: indices (B,) and the epoch -> images (B, h, w, 3), labels (B,)."""
    pool = concurrent.futures.ThreadPoolExecutor(threads or os.cpu_count())
    dtype = "uint8" if recipe.antialias else "float32"

    def read(indices, epoch):
        images = list(pool.map(lambda index: load(index, epoch), indices.tolist()))
        return np.stack(images).astype(dtype, copy=False), samples.labels[indices]

    def read_tensors(indices, epoch):
        images, labels = tf.numpy_function(
            read, [indices, epoch], [dtype, tf.int32], stateful=False
        )
        images = tf.ensure_shape(images, [indices.shape[0], *recipe.size, 3])
        return images, tf.ensure_shape(labels, [indices.shape[0]])

    return read_tensors


def _bytes(share):
    if not 0 <= share <= 1:
        raise ValueError(f"`cache` must be a share in 0..1. Received: cache={share}.")
    return int(share * free_memory())


def tensorflow():
    """The TensorFlow module, kept off the GPUs if it is not the backend of Keras.

    Raises:
        ValueError: it is not installed.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        raise ValueError(
            f"The data pipeline needs TensorFlow, also with another Keras backend: {error}. "
            'Install it by `pip install "keras-vit-zoo[tensorflow]"`.'
        ) from error
    if keras.backend.backend() != "tensorflow":
        try:
            tf.config.set_visible_devices([], "GPU")
        except RuntimeError:  # TensorFlow has been used already, and has what it has
            pass
    return tf
