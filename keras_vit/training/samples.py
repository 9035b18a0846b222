"""Labelled pictures, and a look at every one of them before training starts."""

import concurrent.futures
import dataclasses
import io
import os
from collections.abc import Sequence

import numpy as np

from keras_vit.images import ImageError, load_image


@dataclasses.dataclass(frozen=True, eq=False)
class Samples:
    """Labelled pictures, which are read when they are asked for.

    Args:
        images: N pictures: paths of image files, or contents of such files as bytes; or one uint8
            array (N, H, W), (N, H, W, 1) or (N, H, W, 3).
        labels: N whole numbers in 0..K-1.
        class_names: the K classes in label order.
        origin: where they come from, for messages.
        names: of every picture, unique, to find it again; None takes the paths as they are, and
            numbers for pictures in memory.
        skipped: (path, reason) of what was found at the origin and left out.

    Raises:
        ValueError: not one label and name a picture, or a label outside 0..K-1, or an array of
            another type or shape.
    """

    images: Sequence
    labels: np.ndarray
    class_names: tuple[str, ...]
    origin: str = "arrays"
    names: Sequence[str] | None = None
    skipped: tuple = ()

    def __post_init__(self):
        names = map(_name, range(len(self)), self.images) if self.names is None else self.names
        labels = np.asarray(self.labels)
        fields = {
            "class_names": tuple(map(str, self.class_names)),
            "names": tuple(names),
            "labels": labels.astype("int32"),
        }
        for field, value in fields.items():
            object.__setattr__(self, field, value)  # the way of a frozen dataclass
        if isinstance(self.images, np.ndarray):
            _check_array(self.images)
        if labels.shape != (len(self),) or len(self.names) != len(self):
            raise ValueError(
                f"{self.origin}: there must be one label and one name a picture. Received: "
                f"{len(self)} pictures, labels of shape {labels.shape}, {len(self.names)} names."
            )
        wrong = np.flatnonzero((labels < 0) | (labels >= len(self.class_names)))
        if labels.dtype.kind not in "iu" or len(wrong):
            first = f", such as {labels[wrong[0]]}" if len(wrong) else ""
            raise ValueError(
                f"{self.origin}: labels must be whole numbers from 0 to "
                f"{len(self.class_names) - 1}, as there are {len(self.class_names)} classes. "
                f"Received: labels of type {labels.dtype}, {len(wrong)} of them outside{first}."
            )

    def __len__(self):
        return len(self.images)

    def load(self, index):
        """Reads one picture.

        Returns:
            uint8 array (H, W, 3), 0..255, as `keras_vit.load_image` gives it.

        Raises:
            ImageError: the file is missing, or not a picture, or damaged.
        """
        image = self.images[index]
        if isinstance(image, bytes):
            file = io.BytesIO(image)
            file.name = f"{self.origin}, picture {self.names[index]}"
            return load_image(file)
        if not isinstance(image, np.ndarray):
            return load_image(image)
        if image.ndim == 2:
            image = image[..., None]
        return np.repeat(image, 3, axis=-1) if image.shape[-1] == 1 else image

    def select(self, indices):
        """The samples at these indices, in their order, with the same classes."""
        if isinstance(self.images, np.ndarray):
            images = self.images[indices]
        else:
            images = [self.images[k] for k in indices]
        return dataclasses.replace(
            self, images=images, labels=self.labels[indices], names=[self.names[k] for k in indices]
        )

    def counts(self):
        """Number of pictures of every class, int array (K,)."""
        return np.bincount(self.labels, minlength=len(self.class_names))


@dataclasses.dataclass(frozen=True)
class Check:
    """What `check_samples` found.

    Args:
        samples: those that can be read.
        bad: (name, what is wrong) of the others.
    """

    samples: Samples
    bad: tuple[tuple[str, str], ...]


def check_samples(samples, skip_bad=False, threads=None, advance=lambda: None):
    """Reads every picture once, so that none of them stops the training halfway.

    All that `keras_vit.load_image` reads is good: turned photos, CMYK, 16 bits, palettes,
    transparency, and files whose suffix is of another format.

    Args:
        samples: `Samples`.
        skip_bad: whether to go on without the pictures that cannot be read.
        threads: how many pictures to read at once; None is one a processor core.
        advance: called without arguments after every picture, to show progress.

    Returns:
        A `Check`.

    Raises:
        ValueError: pictures cannot be read and `skip_bad` is false, or a class has no other ones.
    """

    def complaint(index):
        try:
            samples.load(index)
        except ImageError as error:
            return str(error)

    bad = {}
    with concurrent.futures.ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        for index, text in enumerate(pool.map(complaint, range(len(samples)))):
            advance()
            if text:
                bad[index] = text
    if bad and not skip_bad:
        raise ValueError(
            f"{samples.origin}: {len(bad)} of {len(samples)} pictures cannot be read:\n"
            f"{listed(bad.values())}\nRepair or remove them, or leave them out by --skip-bad "
            "(skip_bad=True)."
        )
    good = samples.select([k for k in range(len(samples)) if k not in bad])
    lost = np.flatnonzero((samples.counts() > 0) & (good.counts() == 0))
    if len(lost):
        raise ValueError(
            f"{samples.origin}: no picture of {listed_names(samples, lost)} can be read. "
            f"Received: {len(bad)} bad pictures, the first:\n{listed(bad.values())}"
        )
    return Check(good, tuple((samples.names[k], text) for k, text in bad.items()))


def listed(lines, most=5):
    """The first few lines, and how many more there are."""
    lines = list(map(str, lines))
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return "\n".join(f"  {line}" for line in lines[:most] + more)


def listed_names(samples, labels, most=5):
    """The names of the first few classes, and how many more there are."""
    names = [repr(samples.class_names[k]) for k in labels[:most]]
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return f"{'class' if len(labels) == 1 else 'classes'} {', '.join(names)}{more}"


def _name(index, image):
    return os.fspath(image) if isinstance(image, (str, os.PathLike)) else str(index)


def _check_array(images):
    if (
        images.dtype != np.uint8
        or images.ndim not in (3, 4)
        or images.shape[3:] not in ((), (1,), (3,))
    ):
        raise ValueError(
            "Pictures in an array must be uint8 (N, H, W), (N, H, W, 1) or (N, H, W, 3). "
            f"Received: dtype={images.dtype}, shape={images.shape}."
        )
