"""Pictures to model inputs by each checkpoint's own recipe, and class scores to names."""

import functools
import importlib.resources
import json
import math
import pathlib
import warnings
from dataclasses import dataclass

import keras
import numpy as np
from PIL import Image

from keras_vit.layers import Normalize

# (mean, standard deviation) of red, green and blue, on the scale 0..1.
STATISTICS = {
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
}

_RESIZES = ("shorter-side", "squash", "border")
_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
_CROP_OFFSETS = {"round": lambda spare: round(spare / 2), "floor": lambda spare: spare // 2}
_NAME_FILES = {"imagenet": "imagenet_1k.txt", "imagenet21k": "imagenet_21k.txt"}
_DATASETS = {1000: "imagenet", 21843: "imagenet21k"}  # by number of classes


@dataclass(frozen=True)
class Recipe:
    """How a checkpoint wants its evaluation pictures cut to size.

    The picture is resized to `size / crop_fraction` (rounded down), then its centre of `size` is
    cut out; a side that is too short is padded.

    Args:
        size: (height, width) of the result.
        resize: "shorter-side" covers the target and keeps the proportions, "border" fits into it
            and keeps them, "squash" meets both sides and does not.
        crop_fraction: in (0, 1]; the share of the resized picture that is kept.
        interpolation: "bilinear" or "bicubic".
        antialias: True is Pillow's resize, antialiased and rounded to uint8; False samples four
            neighbours, in float32 without rounding, as `tf.image.resize` does (bilinear only).
        crop_offset: "round" (half to even: timm, torchvision) or "floor" (transformers).
        fill: RGB colour of the padding, 0..255.

    Raises:
        ValueError: a value outside these.

    Source: evaluation transforms of timm `data/transforms_factory.py`, of transformers' image
        processors (Pillow) and of google-research/vision_transformer `input_pipeline.py`.
    """

    size: tuple[int, int]
    resize: str = "shorter-side"
    crop_fraction: float = 1.0
    interpolation: str = "bicubic"
    antialias: bool = True
    crop_offset: str = "round"
    fill: tuple[int, int, int] = (0, 0, 0)

    def __post_init__(self):
        _check_choice("resize", self.resize, _RESIZES)
        _check_choice("interpolation", self.interpolation, _FILTERS)
        _check_choice("crop_offset", self.crop_offset, _CROP_OFFSETS)
        if len(self.size) != 2 or min(self.size) < 1:
            raise ValueError(
                f"`size` must be a positive (height, width). Received: size={self.size}."
            )
        if not 0 < self.crop_fraction <= 1:
            raise ValueError(
                "`crop_fraction` must be above 0 and at most 1. "
                f"Received: crop_fraction={self.crop_fraction}."
            )
        if not self.antialias and self.interpolation != "bilinear":
            raise ValueError(
                "Without antialiasing only bilinear resizing exists. "
                f"Received: interpolation={self.interpolation!r}. Pass antialias=True."
            )


def recipe_of(model):
    """The recipe by which pictures are cut for a model of this package.

    Args:
        model: a model that takes pixels of 0..255 and normalises them itself, also reloaded, or
            holding such a model.

    Returns:
        The `Recipe` of the weights the model was built from, at the model's own input size. The
        whole shorter side is kept if the weights were a file, which does not tell. A dynamic
        height or width takes the native size of the weights.

    Raises:
        ValueError: the model does not normalise its pictures, or does not take them in colour.
    """
    parts = {type(layer): layer for layer in _layers(model)}
    height, width, channels = model.input_shape[1:]
    if Normalize not in parts or channels != 3:
        raise ValueError(
            "Pictures can be prepared for models that take 3 channels of 0..255 and hold a Normalize "
            f"layer. Received: {model.name} with input shape {model.input_shape}. "
            "Build it with include_preprocessing=True."
        )
    recipe = dict(parts[Normalize].recipe or {})
    native = recipe.pop("size", (None, None))
    return Recipe((height or native[0], width or native[1]), **recipe)


def _layers(model):
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _layers(layer)
        else:
            yield layer


def prepare(image, recipe):
    """Resize and crop one picture by a recipe, before any normalisation.

    Args:
        image: uint8 array (H, W, 3), as `load_image` returns it.
        recipe: a `Recipe`.

    Returns:
        Array (h, w, 3) of the recipe's size, 0..255: uint8, or float32 where the recipe does not
        antialias.

    Raises:
        ValueError: the image has another dtype or shape.
    """
    if getattr(image, "dtype", None) != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(
            "`image` must be a uint8 array (H, W, 3). Received: "
            f"dtype={getattr(image, 'dtype', type(image))}, shape={np.shape(image)}."
        )
    height, width = _resized_size(image.shape[:2], recipe)
    if recipe.antialias:
        resample = _FILTERS[recipe.interpolation]
        resized = np.asarray(Image.fromarray(image).resize((width, height), resample))
    else:
        resized = _sample_bilinear(image, height, width)
    return _crop_or_pad(resized, recipe)


def normalize(images, statistics, data_format="channels_last"):
    """Bring pixels of 0..255 to a checkpoint's own scale: (images / 255 - mean) / std.

    Args:
        images: array or tensor (H, W, C) or (B, H, W, C), any real dtype, C 1 or 3; channels
            before height and width with "channels_first". One channel takes the averages of the
            three means and of the three deviations.
        statistics: a key of `STATISTICS`.
        data_format: "channels_last" or "channels_first".

    Returns:
        A new float32 array for a NumPy array, otherwise a new tensor. Same shape.

    Raises:
        ValueError: unknown statistics or data format, or another rank or number of channels.
    """
    _check_choice("statistics", statistics, STATISTICS)
    _check_choice("data_format", data_format, ("channels_last", "channels_first"))
    axis = -1 if data_format == "channels_last" else -3
    if len(images.shape) not in (3, 4) or images.shape[axis] not in (1, 3):
        raise ValueError(
            "Images must be of rank 3 or 4 and have 1 or 3 channels. "
            f"Received: shape={tuple(images.shape)}, data_format={data_format!r}."
        )
    mean, std = np.array(STATISTICS[statistics], "float32")
    if images.shape[axis] == 1:
        mean, std = mean.mean(keepdims=True), std.mean(keepdims=True)
    if axis == -3:
        mean, std = mean[:, None, None], std[:, None, None]
    if isinstance(images, np.ndarray):
        return (images.astype("float32") / 255 - mean) / std
    return (keras.ops.cast(images, "float32") / 255 - mean) / std


def preprocess_input(x, statistics, include_preprocessing=True, data_format=None):
    """Prepare pixels of 0..255 for a model; the part that the families' own functions share.

    Args:
        x: as the images of `normalize`. Never written into.
        statistics: a key of `STATISTICS`.
        include_preprocessing: what the model was built with. True: the model normalises by itself,
            and `x` is returned as it is. False: `x` is normalised here.
        data_format: None is `keras.config.image_data_format()`.

    Raises:
        ValueError: as `normalize`.
    """
    if include_preprocessing:
        return x
    if isinstance(x, np.ndarray) and np.issubdtype(x.dtype, np.floating) and x.size:
        peak = np.abs(x).max()
        if 0 < peak <= 3:  # normalised pictures reach 2.7, a picture of 0..255 this dark is rare
            warnings.warn(
                "Pixels must be in 0..255, and these look scaled already: the largest absolute "
                f"value is {peak:.4g}. Pass the pixels as they were read, once.",
                UserWarning,
                stacklevel=3,  # the caller of the family's function
            )
    return normalize(x, statistics, data_format or keras.config.image_data_format())


def make_preprocess_input(statistics_name):
    """Make the `preprocess_input` of a family from the name of its statistics.

    Raises:
        ValueError: the name is not a key of `STATISTICS`.
    """
    _check_choice("statistics_name", statistics_name, STATISTICS)
    mean, std = STATISTICS[statistics_name]

    def family_preprocess_input(x, data_format=None, *, include_preprocessing=True):
        return preprocess_input(x, statistics_name, include_preprocessing, data_format)

    family_preprocess_input.__name__ = family_preprocess_input.__qualname__ = "preprocess_input"
    family_preprocess_input.__doc__ = f"""Prepare pixels of 0..255 for the models of this family.

    Models built with `include_preprocessing=True`, the default, normalise by themselves; for them
    this returns `x` as it is. Say `include_preprocessing=False` for models built so: the result is
    (x / 255 - mean) / std in float32, mean {mean}, std {std}.

    Args:
        x: array or tensor (H, W, C) or (B, H, W, C), 1 or 3 channels, 0..255, any real dtype; never
            written into.
        data_format: "channels_last" or "channels_first"; None is
            `keras.config.image_data_format()`.
        include_preprocessing: what the model was built with.

    Raises:
        ValueError: another data format, rank or number of channels.
    """
    return family_preprocess_input


def class_names(dataset):
    """List the classes of a data set in label order.

    Args:
        dataset: "imagenet" (1,000 classes) or "imagenet21k" (21,843, as Google's checkpoints).

    Returns:
        list of (WordNet identifier, readable name).

    Raises:
        ValueError: another data set.
    """
    _check_choice("dataset", dataset, _NAME_FILES)
    return list(_read_class_names(dataset))


def class_names_beside(path):
    """The class names in the `classes.json` beside a model file, as a run of fine-tuning writes it.

    Args:
        path: of the model file.

    Returns:
        tuple of str in label order; None if there is no such file.
    """
    file = pathlib.Path(path).parent / "classes.json"
    if not pathlib.Path(path).is_file() or not file.exists():
        return None
    return tuple(json.loads(file.read_text(encoding="utf-8")))


def decode_predictions(predictions, top=5, names=None):
    """Name the best classes of each picture.

    Args:
        predictions: array or tensor (N, classes) of scores, higher is better.
        top: how many to name, at least 1; all of them if there are fewer.
        names: the classes in label order, each a str or an (identifier, name) pair. None takes the
            names of ImageNet-1k for 1,000 classes and of ImageNet-21k for 21,843.

    Returns:
        For each picture a list of (identifier, name, score), best first, the lower label first
        among equals. A class given as a str has it as identifier and name.

    Raises:
        ValueError: not a batch of scores, NaN among them, `top` below 1, or names that are missing
            or not as many as classes.
    """
    scores = np.asarray(keras.ops.convert_to_numpy(predictions), "float64")
    if scores.ndim != 2:
        raise ValueError(
            "`predictions` must be a batch of scores (N, classes). "
            f"Received: shape={scores.shape}. Add a batch axis to a single picture's scores."
        )
    if np.isnan(scores).any():
        rows = np.flatnonzero(np.isnan(scores).any(axis=1))
        raise ValueError(
            f"`predictions` must not hold NaN. Received: NaN for {len(rows)} of {len(scores)} "
            f"pictures, the first at index {rows[0]}. Look at the model's inputs and weights."
        )
    if top < 1:
        raise ValueError(f"`top` must be at least 1. Received: top={top}.")
    classes = scores.shape[1]
    if names is None:
        if classes not in _DATASETS:
            raise ValueError(
                f"No names are known for {classes} classes, only for {sorted(_DATASETS)}. "
                f"Received: shape={scores.shape}. Pass the names as names=[...]."
            )
        names = _read_class_names(_DATASETS[classes])
    if len(names) != classes:
        raise ValueError(
            "There must be one name a class. "
            f"Received: {len(names)} names for predictions of shape {scores.shape}."
        )
    pairs = [(name, name) if isinstance(name, str) else tuple(name) for name in names]
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    return [
        [(*pairs[label], float(row[label])) for label in labels]
        for row, labels in zip(scores, order, strict=True)
    ]


@functools.cache
def _read_class_names(dataset):
    file = importlib.resources.files("keras_vit") / "data" / _NAME_FILES[dataset]
    lines = file.read_text(encoding="utf-8").splitlines()
    return tuple(tuple(line.split("\t")) for line in lines)


def _resized_size(image_size, recipe):
    height, width = image_size
    target_height, target_width = (math.floor(side / recipe.crop_fraction) for side in recipe.size)
    if recipe.resize == "squash":
        return target_height, target_width
    if recipe.resize == "border":
        ratio = max(height / target_height, width / target_width)
        return max(1, round(height / ratio)), max(1, round(width / ratio))
    if height * target_width <= width * target_height:  # the height decides
        return target_height, width * target_height // height
    return height * target_width // width, target_width


def _sample_bilinear(image, height, width):
    """Bilinear resampling without antialiasing, pixel centres at halves; float32."""

    def neighbours(length, new_length):
        positions = (np.arange(new_length, dtype="float32") + 0.5) * np.float32(length / new_length)
        positions -= 0.5
        below = np.floor(positions)
        above = np.minimum(below + 1, length - 1)
        return np.maximum(below, 0).astype(int), above.astype(int), positions - below

    top, bottom, down = neighbours(image.shape[0], height)
    left, right, along = neighbours(image.shape[1], width)
    down, along = down[:, None, None], along[:, None]
    pixels = image.astype("float32")
    columns = pixels[:, left] + (pixels[:, right] - pixels[:, left]) * along  # (H, w, 3)
    return columns[top] + (columns[bottom] - columns[top]) * down  # (h, w, 3)


def _crop_or_pad(image, recipe):
    canvas = np.empty((*recipe.size, 3), image.dtype)
    canvas[:] = recipe.fill
    offset = _CROP_OFFSETS[recipe.crop_offset]
    taken, put = [], []
    for length, size in zip(image.shape[:2], recipe.size, strict=True):
        start, gap = offset(max(0, length - size)), max(0, size - length) // 2
        taken.append(slice(start, start + size))
        put.append(slice(gap, gap + min(length, size)))
    canvas[tuple(put)] = image[tuple(taken)]
    return canvas


def _check_choice(argument, value, choices):
    if value not in choices:
        raise ValueError(
            f"`{argument}` must be one of {', '.join(map(repr, choices))}. "
            f"Received: {argument}={value!r}."
        )
