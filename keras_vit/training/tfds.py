"""Prepared data sets of TensorFlow Datasets, read from disk alone."""

import contextlib
import os
import pathlib

import numpy as np

from keras_vit.training.memory import free_memory

_FILE_NAME = "file_name"  # the key of it in imagenet2012 and others
_SHARE = 0.5  # of the free memory, for the encoded pictures


def splits(name, data_dir=None):
    """The splits of a data set, such as ("train", "test").

    Raises:
        ValueError: as `read`.
    """
    return tuple(_builder(name, data_dir).info.splits)


def read(name, split, data_dir=None):
    """Reads one split, without decoding the pictures.

    Args:
        name: such as "fashion_mnist", or "name/config".
        split: one of `splits`, or a part of one, such as "train[:10%]".
        data_dir: folder of the data sets; None is TFDS_DATA_DIR, or else ~/tensorflow_datasets.

    Returns:
        list of bytes, image files; int array of labels; tuple of class names in label order; list of
        the file names if the data set has one for every picture, as ImageNet, else None.

    Raises:
        ValueError: tensorflow-datasets is not installed; the data set is not prepared there, or
            does not pair one picture with one class; or it is too large for the memory.
    """
    import tensorflow_datasets as tfds

    builder = _builder(name, data_dir)
    image, label = _keys(builder.info.features, name)
    keys = [image, label] + [_FILE_NAME] * (_FILE_NAME in builder.info.features)
    size, limit = builder.info.splits[split].num_bytes or 0, _SHARE * free_memory()
    if size > limit:
        raise ValueError(
            f"The split must fit into half of the free memory, {limit / 1e9:.1f} GB. Received: "
            f"{name} {split} of {size / 1e9:.1f} GB. Take a part, such as '{split}[:10%]', or "
            "write the pictures into one folder a class."
        )
    decoders = {image: tfds.decode.SkipDecoding()}
    with _quiet():
        dataset = builder.as_dataset(
            split=split,
            shuffle_files=False,
            decoders=tfds.decode.PartialDecoding(dict.fromkeys(keys, True), decoders=decoders),
        )
    rows = [[row[key] for key in keys] for row in dataset.as_numpy_iterator()]
    images, labels, *names = zip(*rows, strict=True)
    files = [name.decode() for name in names[0]] if names else None
    if files and len(set(files)) < len(files):
        files = None
    return list(images), np.array(labels), tuple(builder.info.features[label].names), files


@contextlib.contextmanager
def _quiet():
    """Without what TensorFlow Datasets warns of in its own code."""
    from absl import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def _builder(name, data_dir):
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise ValueError(
            f"Data sets of TensorFlow Datasets need more packages: {error}. Received: tfds:{name}. "
            'Install them by `pip install "keras-vit-zoo[data]"`.'
        ) from error
    default = os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
    folder = pathlib.Path(data_dir or default).expanduser()
    versions = [path.parent for path in (folder / name).glob("*/dataset_info.json")]
    if not name or not versions:
        known = sorted(
            {str(p.parents[1].relative_to(folder)) for p in folder.glob("**/dataset_info.json")}
        )
        raise ValueError(
            f"The data set is not prepared in '{folder}'. Received: tfds:{name}. Prepared: "
            f"{', '.join(known) or 'none'}. Prepare it once, with network, by "
            f"`tfds build {name or 'NAME'} --data_dir {folder}`."
        )
    return tfds.builder_from_directory(max(versions, key=_version))


def _version(folder):
    return [int(part) if part.isdecimal() else -1 for part in folder.name.split(".")]


def _keys(features, name):
    """The names of the one picture and the one class label."""
    import tensorflow_datasets as tfds

    images = [key for key, value in features.items() if isinstance(value, tfds.features.Image)]
    labels = [key for key, value in features.items() if isinstance(value, tfds.features.ClassLabel)]
    image = "image" if "image" in images else images[0] if len(images) == 1 else None
    label = "label" if "label" in labels else labels[0] if len(labels) == 1 else None
    if image is None or label is None:
        raise ValueError(
            "A data set must pair a picture with a class label. Received: "
            f"{name} with {', '.join(features)}. Write the pictures into one folder a class."
        )
    return image, label
