"""Labelled pictures from where people keep them: folders, CSV files, TensorFlow Datasets."""

import collections
import csv
import dataclasses
import os
import pathlib

import numpy as np

from keras_vit.images import find_images
from keras_vit.training import tfds
from keras_vit.training.samples import Samples, listed

_FOLDERS = {
    "train": ("train", "training"),
    "validation": ("validation", "val", "valid"),
    "test": ("test", "testing"),
}
_SPLITS = {folder: split for split, folders in _FOLDERS.items() for folder in folders}
_PATH_COLUMNS = ("path", "file", "filename", "image")
_LABEL_COLUMNS = ("label", "class")
_TFDS = "tfds:"


def open_samples(text, split=None, class_names=None, data_dir=None):
    """Finds labelled pictures, without reading them.

    Three forms:
    - an image folder: one sub-folder a class, searched recursively, linked folders too. Or
      sub-folders train (training), validation (val, valid) and test (testing) of that form; their
      classes are those of the training part. Classes are in plain string order of the names of
      their folders (1, 10, 2), as in Keras. Hidden files and folders are passed over; empty
      folders and files that are no pictures are listed in `skipped`.
    - a CSV file of paths, relative to it, and labels: two columns, or any number under a header
      that names them path (file, filename, image) and label (class). Labels that are all whole
      numbers count from 0; others are class names, in plain string order.
    - `tfds:NAME[:SPLIT]`, a prepared data set of TensorFlow Datasets with a picture and a class
      label. Its files stay encoded in memory. Class order is that of the data set. Nothing is
      downloaded.

    Args:
        text: str or path.
        split: which part, if there are several: "train", "validation" or "test" of a folder, or
            what the data set has, such as "train[:10%]".
        class_names: the classes in label order, such as those of the model that is evaluated; None
            takes them from the data. Classes without pictures are then fine.
        data_dir: folder of TensorFlow Datasets; None is the environment variable TFDS_DATA_DIR, or
            else ~/tensorflow_datasets.

    Returns:
        `Samples`.

    Raises:
        ValueError: nothing of these forms; no pictures; fewer than two classes; a class that is not
            among `class_names` or the training part; a split that is needed, or unknown; missing
            files; tensorflow-datasets is not installed, or has not prepared the data set.
    """
    if os.fspath(text).startswith(_TFDS):
        samples = _open_tfds(os.fspath(text), split, class_names, data_dir)
    elif pathlib.Path(text).is_dir():
        samples = _open_splits(pathlib.Path(text), split, class_names)
    elif pathlib.Path(text).is_file():
        samples = _open_csv(pathlib.Path(text), split, class_names)
    else:
        raise ValueError(
            "Labelled pictures are a folder with a sub-folder a class, a CSV file of paths and "
            f"labels, or tfds:NAME. Received: '{text}', which does not exist. Check the path."
        )
    if len(samples.class_names) < 2:
        raise ValueError(
            "There must be at least two classes to tell apart. Received: "
            f"{samples.origin} with {', '.join(map(repr, samples.class_names))}."
        )
    return samples


def list_splits(text, data_dir=None):
    """The parts that `open_samples` can be asked for.

    Args:
        text, data_dir: as in `open_samples`.

    Returns:
        tuple of str: some of "train", "validation" and "test" for a folder with such sub-folders,
        the splits of a TensorFlow data set, otherwise ().

    Raises:
        ValueError: as `open_samples`, for TensorFlow Datasets.
    """
    if os.fspath(text).startswith(_TFDS):
        name, _, _ = os.fspath(text).removeprefix(_TFDS).partition(":")
        return tfds.splits(name, data_dir)
    return tuple(_split_folders(pathlib.Path(text)))


def _subfolders(folder):
    """The folders in a folder, sorted by name, without hidden ones."""
    inside = sorted(folder.iterdir(), key=lambda path: path.name)
    return [path for path in inside if path.is_dir() and not path.name.startswith(".")]


def _split_folders(folder):
    """Split -> folder, if all sub-folders are splits and hold classes; else {}."""
    if not folder.is_dir():
        return {}
    inside = _subfolders(folder)
    if not all(path.name.lower() in _SPLITS and _subfolders(path) for path in inside):
        return {}
    found = [(_SPLITS[path.name.lower()], path) for path in inside]
    splits = {split: path for wanted in _FOLDERS for split, path in found if split == wanted}
    if len(splits) < len(found):
        raise ValueError(
            "There must be one folder a split. Received: "
            f"{', '.join(path.name for path in inside)} in '{folder}'. Merge those that mean the same."
        )
    return splits


def _open_splits(folder, split, class_names):
    splits = _split_folders(folder)
    if not splits:
        _refuse_split(folder, split)
        return _open_folder(folder, class_names)
    _check_split(f"'{folder}'", split, tuple(splits))
    if class_names is None and split != "train" and "train" in splits:
        class_names = _open_folder(splits["train"], None).class_names
    return _open_folder(splits[split], class_names)


def _open_folder(folder, class_names):
    images, labels, skipped = [], [], []
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if not path.is_dir() and not path.name.startswith("."):
            skipped.append((path, "not in the folder of a class"))
    found = {}
    for path in _subfolders(folder):
        inside, without = find_images(path)
        skipped += without
        if inside:
            found[path.name] = inside
        else:
            skipped.append((path, "no pictures in it"))
    if not found:
        raise ValueError(
            "An image folder must hold one sub-folder with pictures for every class. Received: "
            f"'{folder}' without any. Sort the pictures into folders, or list them in a CSV file."
        )
    names = _checked_names(f"'{folder}'", found, class_names)
    for name, inside in found.items():
        images += inside
        labels += [names.index(name)] * len(inside)
    relative = [path.relative_to(folder).as_posix() for path in images]
    return Samples(images, np.array(labels), names, str(folder), relative, tuple(skipped))


def _checked_names(origin, found, class_names):
    """Class names in label order, for data whose classes have the names `found`."""
    if class_names is None:
        return tuple(sorted(found))
    unknown = [name for name in found if name not in class_names]
    if unknown:
        raise ValueError(
            f"{origin} has classes that the training data or the model does not have:\n"
            f"{listed(map(repr, unknown))}\nReceived: {len(class_names)} known classes:\n"
            f"{listed(map(repr, class_names))}\nRename the classes, or remove them."
        )
    return tuple(class_names)


def _refuse_split(path, split):
    if split is not None:
        raise ValueError(
            f"'{path}' is not divided into splits. Received: split={split!r}. Leave it out, or "
            "make sub-folders train, validation and test, each with the folders of the classes."
        )


def _check_split(origin, split, splits):
    if split is None or split.partition("[")[0] not in splits:
        raise ValueError(
            f"{origin} is divided into {', '.join(splits)}. Received: split={split!r}. "
            "Choose one of them."
        )


def _open_csv(path, split, class_names):
    _refuse_split(path, split)
    rows = _rows(path)
    images = [path.parent / file for file, _ in rows]
    missing = [image for image in images if not image.is_file()]
    if missing:
        raise ValueError(
            f"'{path}' lists {len(missing)} of {len(images)} files that do not exist:\n"
            f"{listed(missing)}\nPaths must be relative to '{path.parent}', or absolute."
        )
    twice = [file for file, count in collections.Counter(f for f, _ in rows).items() if count > 1]
    if twice:
        raise ValueError(
            f"'{path}' lists {len(twice)} files more than once:\n{listed(twice)}\nWhich label they "
            "have, and which part of a split they are in, must be clear. Keep one line of each."
        )
    names, labels = _names_and_labels(f"'{path}'", [label for _, label in rows], class_names)
    return Samples(images, labels, names, str(path), [file for file, _ in rows])


def _rows(path):
    """(path, label) of every line."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = [[cell.strip() for cell in line] for line in csv.reader(file)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"Cannot read '{path}' as a CSV file in UTF-8: {error}.") from error
    lines = [line for line in lines if any(line)]
    columns = (0, 1)
    if lines:
        header = [cell.lower() for cell in lines[0]]
        named = [
            next((k for k, cell in enumerate(header) if cell in words), None)
            for words in (_PATH_COLUMNS, _LABEL_COLUMNS)
        ]
        if None not in named:
            columns, lines, width = named, lines[1:], len(header)
        else:
            width = 2
    if not lines:
        raise ValueError(f"'{path}' lists no pictures. Write one line `path,label` for each.")
    for number, line in enumerate(lines, 1):
        if len(line) != width or not all(line[k] for k in columns):
            raise ValueError(
                f"'{path}': every line must be `path,label`, or have as many cells as a header "
                f"with these two names. Received: {','.join(line)!r}, row {number}."
            )
    return [tuple(line[k] for k in columns) for line in lines]


def _names_and_labels(origin, texts, class_names):
    """Class names, and the label of every text."""
    whole = all(text.isdecimal() for text in texts)
    if whole and not set(texts) <= set(class_names or ()):
        labels = np.array([int(text) for text in texts])
        if class_names is None:
            used = np.unique(labels)
            gaps = np.flatnonzero(used != np.arange(len(used)))
            if len(gaps):
                raise ValueError(
                    f"{origin}: labels that are whole numbers must count from 0 without a gap. "
                    f"Received: labels up to {used[-1]}, and none is {gaps[0]}."
                )
            class_names = map(str, range(labels.max() + 1))
        return tuple(class_names), labels
    names = _checked_names(origin, sorted(set(texts)), class_names)
    label_of = {name: label for label, name in enumerate(names)}
    return names, np.array([label_of[text] for text in texts])


def _open_tfds(text, split, class_names, data_dir):
    name, _, in_text = text.removeprefix(_TFDS).partition(":")
    if in_text and split not in (None, in_text):
        raise ValueError(f"There are two splits. Received: '{text}' with split={split!r}.")
    split = split or in_text or None
    _check_split(f"The data set {name}", split, tfds.splits(name, data_dir))
    images, labels, names, files = tfds.read(name, split, data_dir)
    samples = Samples(images, labels, names, f"{_TFDS}{name}:{split}", files)
    if class_names is None:
        return samples
    order = _checked_names(samples.origin, names, class_names)
    labels = np.array([order.index(name) for name in names])[samples.labels]
    return dataclasses.replace(samples, labels=labels, class_names=order)
