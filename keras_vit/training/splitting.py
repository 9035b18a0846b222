"""Dividing labelled pictures, the same way every time."""

import json
import pathlib

import numpy as np

from keras_vit.files import write_json
from keras_vit.training.samples import listed, listed_names


def split_samples(samples, fraction, seed=0):
    """Divides samples in two, each class by the same share.

    A class with at least two pictures is in both parts; a single picture is in the first.

    Args:
        samples: `Samples`.
        fraction: share of every class that the second part gets, in (0, 1).
        seed: whole number; the same samples, fraction and seed give the same parts.

    Returns:
        (training, validation), both `Samples` in the order they had.

    Raises:
        ValueError: `fraction` is not in (0, 1), or all classes have a single picture.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"`fraction` must be between 0 and 1. Received: fraction={fraction}.")

    def share(count):
        return min(max(1, round(fraction * count)), count - 1)

    chosen = _chosen(samples, share, seed)
    if not len(chosen):
        raise ValueError(
            "A class must have at least two pictures to be in both parts. Received: "
            f"{samples.origin} with {len(samples)} pictures, one a class. Add pictures."
        )
    return samples.select(np.setdiff1d(np.arange(len(samples)), chosen)), samples.select(chosen)


def few_shot(samples, shots, seed=0):
    """Takes some pictures of every class.

    Args:
        samples: `Samples`.
        shots: how many of every class, at least 1.
        seed: whole number; the same samples and seed give the same pictures, and more shots of the
            same seed include the fewer ones.

    Returns:
        `Samples` in the order they had.

    Raises:
        ValueError: `shots` below 1, or a class with fewer pictures.
    """
    if shots < 1:
        raise ValueError(f"`shots` must be at least 1. Received: shots={shots}.")
    counts = samples.counts()
    short = np.flatnonzero(counts < shots)
    if len(short):
        raise ValueError(
            f"Every class must have {shots} pictures for shots={shots}. Received: "
            f"{samples.origin}, with as few as {counts.min()} in {listed_names(samples, short)}. Take fewer shots, or add pictures."
        )
    return samples.select(_chosen(samples, lambda count: shots, seed))


def save_split(path, training, validation):
    """Writes which samples are in which part, as JSON; `load_split` reads it.

    Pictures are named by their paths below the folder that was opened, so the folder may move.

    Args:
        path: of the file, such as beside the weights of a run; it is replaced whole.
        training, validation: `Samples` with the same classes.
    """
    content = {
        "origin": training.origin,
        "class_names": training.class_names,
        "training": training.names,
        "validation": validation.names,
    }
    write_json(path, content)


def load_split(path, samples):
    """Divides samples as a file of `save_split` says.

    Args:
        path: of the file.
        samples: `Samples` opened from the same data; what the file does not name is left out.

    Returns:
        (training, validation), both `Samples`.

    Raises:
        ValueError: the file is not one of these; other classes; or pictures are no longer there.
    """
    try:
        content = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        parts = content["training"], content["validation"]
        class_names = tuple(content["class_names"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"'{path}' is not a file of `save_split`: {error!r}.") from error
    if class_names != samples.class_names:
        raise ValueError(
            f"The split '{path}' is of other classes than {samples.origin}. Received: "
            f"{len(class_names)} and {len(samples.class_names)} classes; only in the split: "
            f"{sorted(set(class_names) - set(samples.class_names))}, only in the data: "
            f"{sorted(set(samples.class_names) - set(class_names))}."
        )
    index_of = {name: index for index, name in enumerate(samples.names)}
    missing = [name for part in parts for name in part if name not in index_of]
    if missing:
        raise ValueError(
            f"Pictures of the split '{path}' are missing in {samples.origin}:\n"
            f"{listed(missing)}\nBring them back, or start a new run."
        )
    return tuple(samples.select([index_of[name] for name in part]) for part in parts)


def _chosen(samples, share, seed):
    """Sorted indices of `share(number of pictures)` pictures of every class."""
    chosen = [
        np.random.default_rng([seed, label]).permutation(np.flatnonzero(samples.labels == label))[
            : share(count)
        ]
        for label, count in enumerate(samples.counts())
        if count
    ]
    return np.sort(np.concatenate(chosen))
