"""Random changes of training pictures: cuts by PIL, everything else by Keras layers."""

import dataclasses
import functools
import math

import keras
import numpy as np
from PIL import Image

from keras_vit.preprocessing import prepare

_TRIES = 10  # to find a part of the wanted shape inside the picture
_GREY = 128
_CHAINS, _CHAIN = 3, 3  # of AugMix: how many, and how long they are at most
_MIXED = (0, 1, 2, 3, 4, 9, 10, 12, 13)  # of `rand_augment_changes`: all but those of its test set


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """How training pictures are changed. The changes come in the order of the arguments.

    Args:
        crop_area: (least, most) share of the picture in the part that is cut out and resized, in
            (0, 1]; None cuts as for evaluation.
        crop_aspect: (least, most) width over height of that part, above 0.
        flip: whether half of the pictures are mirrored left to right.
        rand_augment: (layers, magnitude): every picture goes through so many changes drawn from
            fourteen (`rand_augment_changes`), whose strength is drawn up to the magnitude. 10 is the
            strongest of the paper, AugReg has 10 to 20. None: off.
        aug_mix: magnitude of AugMix, as that of RandAugment; a picture is blended with three chains of
            one to three changes of its shape and levels. 3 is that of the paper. 0: off.
        erasing: probability, 0..1, that a rectangle of a picture becomes noise.
        mix_up: alpha of MixUp, at least 0; picture and labels are blended with those of another one
            by a share from Beta(alpha, alpha). 0: off.
        cut_mix: alpha of CutMix, 0..1; a rectangle comes from another picture, and the labels by
            its area. 0: off. With both, a batch takes one or the other by equal chance.

    Raises:
        ValueError: a value outside these ranges.

    Source: random crops of Inception; RandAugment, arXiv:1909.13719; AugMix, arXiv:1912.02781; MixUp, arXiv:1710.09412;
        CutMix, arXiv:1905.04899; random erasing, arXiv:1708.04896; their combination as in DeiT.
    """

    crop_area: tuple[float, float] | None = (0.05, 1.0)
    crop_aspect: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True
    rand_augment: tuple[int, float] | None = None
    aug_mix: float = 0.0
    erasing: float = 0.0
    mix_up: float = 0.0
    cut_mix: float = 0.0

    def __post_init__(self):
        area, aspect = self.crop_area or (1, 1), self.crop_aspect
        layers, magnitude = self.rand_augment or (1, 0)
        rules = {
            "crop_area": (0 < area[0] <= area[1] <= 1, "(least, most) in (0, 1]"),
            "crop_aspect": (0 < aspect[0] <= aspect[1], "(least, most) above 0"),
            "rand_augment": (
                layers >= 1 and 0 <= magnitude <= 30,
                "(layers, magnitude), at least 1 and 0..30",
            ),
            "aug_mix": (0 <= self.aug_mix <= 30, "in 0..30"),
            "erasing": (0 <= self.erasing <= 1, "in 0..1"),
            "mix_up": (0 <= self.mix_up, "at least 0"),
            "cut_mix": (0 <= self.cut_mix <= 1, "in 0..1"),
        }
        for name, (valid, rule) in rules.items():
            if not valid:
                raise ValueError(
                    f"`{name}` must be {rule}. Received: {name}={getattr(self, name)}."
                )

    @property
    def mixes(self):
        """Whether pictures and labels are blended, so that labels must be one-hot."""
        return bool(self.mix_up or self.cut_mix)

    def cut(self, image, recipe, random):
        """Cuts one picture to the size of a recipe and mirrors it by chance.

        Args:
            image: uint8 array (H, W, 3).
            recipe: `keras_vit.preprocessing.Recipe`.
            random: `numpy.random.Generator`.

        Returns:
            uint8 array (h, w, 3); as `keras_vit.prepare` cuts it if `crop_area` is None.
        """
        if self.crop_area is None:
            image = prepare(image, recipe)
        else:
            image = self._random_part(image, recipe, random)
        # Here and not by a layer, which would make float32 batches, four times as large, of bytes.
        return image[:, ::-1] if self.flip and random.random() < 0.5 else image

    def _random_part(self, image, recipe, random):
        box = self._box(image.shape[:2], random)
        resample = Image.Resampling[recipe.interpolation.upper()]
        height, width = recipe.size
        return np.asarray(Image.fromarray(image).resize((width, height), resample, box))

    def _box(self, size, random):
        """(left, top, right, bottom) of a random part; the middle if none of the shape is found."""
        height, width = size
        for _ in range(_TRIES):
            area = height * width * random.uniform(*self.crop_area)
            aspect = math.exp(random.uniform(*map(math.log, self.crop_aspect)))
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                left, top = random.integers(width - w + 1), random.integers(height - h + 1)
                return left, top, left + w, top + h
        least, most = self.crop_aspect
        w, h = min(width, round(height * most)), min(height, round(width / least))
        left, top = (width - w) // 2, (height - h) // 2
        return left, top, left + max(1, w), top + max(1, h)

    def batch_function(self):
        """The changes of a whole batch that has been cut, for `tf.data.Dataset.map`.

        Returns:
            A function of images (B, h, w, 3), labels (B,) or (B, K), and a seed of two int32, which
            decides all that is random; it gives (images, labels). Images become float32 if any of
            `rand_augment`, `aug_mix`, `erasing`, `mix_up` and `cut_mix` is on.
        """
        steps = list(self._steps())

        def change(images, labels, seed):
            for number, step in enumerate(steps):
                images, labels = step(images, labels, _Seeds(seed, number))
            return images, labels

        return change

    def _steps(self):
        layers = keras.layers
        if self.rand_augment:
            yield _rand_augment(*self.rand_augment)
        if self.aug_mix:
            yield _aug_mix(self.aug_mix)
        if self.erasing:
            yield _on_images(_change(layers.RandomErasing, (self.erasing, self.erasing)))
        mixing = []
        if self.mix_up:
            mixing.append(_change(layers.MixUp, self.mix_up))
        if self.cut_mix:
            mixing.append(_change(layers.CutMix, (self.cut_mix, self.cut_mix)))
        if mixing:
            yield _one_of(mixing)


def rand_augment_changes(magnitude):
    """The changes that RandAugment chooses from.

    `keras.layers.RandAugment` is not used: it draws the changes once for all pictures of a batch,
    turns by up to 360 degrees, only brightens, and keeps more bits the stronger it is.

    Args:
        magnitude: 0..30. At 10: turn by 30 degrees, shear by 0.3, shift by 0.45 of a side, keep 4
            bits; colour, contrast and sharpness by factors of 0.1..1.9, brightness by 0.45 of the
            range. In proportion otherwise. Each is drawn up to these in either direction.

    Returns:
        list of functions of an image of 0..255 (h, w, 3) and a `keras.random.SeedGenerator`.
    """
    layers, m = keras.layers, magnitude / 10
    low, high = max(0.0, 1 - 0.9 * m), 1 + 0.9 * m
    shift, shear, bits = min(1.0, 0.45 * m), min(1.0, 0.3 * m), max(1, 8 - round(4 * m))
    edge = {"fill_mode": "constant", "fill_value": _GREY}
    return [
        _change(layers.RandomRotation, m * 30 / 360, **edge),
        _change(layers.RandomShear, x_factor=shear, y_factor=0.0, **edge),
        _change(layers.RandomShear, x_factor=0.0, y_factor=shear, **edge),
        _change(layers.RandomTranslation, 0.0, (-shift, shift), **edge),
        _change(layers.RandomTranslation, (-shift, shift), 0.0, **edge),
        _change(layers.RandomBrightness, shift),
        _change(layers.RandomContrast, (1 - low, high - 1)),
        # It clips the saturation to `value_range`, and that runs from 0 to 1 for any pixels.
        _change(layers.RandomSaturation, (low / (1 + low), high / (1 + high)), value_range=(0, 1)),
        _change(layers.RandomSharpness, (low / 2, min(1.0, high / 2))),
        _change(layers.RandomPosterization, (bits, bits)),
        _change(layers.Solarization, threshold_factor=1.0),
        _change(layers.RandomInvert, (1.0, 1.0)),
        _change(layers.AutoContrast),
        # Under JAX it counts the values of each bin one by one; of 256 it would take long to trace.
        _change(layers.Equalization, bins=64),
    ]


class _Seeds(keras.random.SeedGenerator):
    """Seeds that follow from a tensor of two int32 alone, and from how many were taken before."""

    def __init__(self, seed, step=0):  # not the one of the base class, which counts in a variable
        self._seed, self._taken = seed, 1000 * step

    def next(self, ordered=True):
        self._taken += 1
        return self._seed + np.array([0, self._taken], "int32")


def _change(layer_class, *args, **options):
    """A function of data and seeds that calls a Keras layer, whose own seeds would count on."""
    current = []

    class Seeded(layer_class):
        def get_random_transformation(self, data, training=True, seed=None):
            return super().get_random_transformation(data, training, seed=current[-1])

    layer = Seeded(*args, dtype="float32", data_format="channels_last", **options)

    def change(data, seeds):
        current[:] = [seeds]
        return layer(data, training=True)

    return change


def _on_images(change):
    return lambda images, labels, seeds: (change(images, seeds), labels)


def _one_of(changes):
    """A step that mixes a batch in one of several ways by equal chance."""

    def step(images, labels, seeds):
        import tensorflow as tf

        def mixed(change):
            result = change({"images": images, "labels": labels}, seeds)
            return result["images"], result["labels"]

        index = tf.random.stateless_uniform([], seeds.next(), 0, len(changes), tf.int32)
        return tf.switch_case(index, [functools.partial(mixed, change) for change in changes])

    return step


def _rand_augment(count, magnitude):
    """A step that gives every picture its own `count` changes."""

    def combined(image, change, seed):
        for k in range(count):
            image = change(image, k)
        return image

    return _each_picture(rand_augment_changes(magnitude), count, combined)


def _aug_mix(magnitude):
    """A step that blends every picture with `_CHAINS` changed ones.

    `keras.layers.AugMix` is not used: in a data pipeline it draws the changes once for all batches.
    """
    changes = rand_augment_changes(magnitude)

    def combined(image, change, seed):
        import tensorflow as tf

        drawn = tf.random.stateless_uniform([2 * _CHAINS + 1], seed, 1e-6, 1.0)
        weights = -tf.math.log(drawn[:_CHAINS])  # in proportion: Dirichlet(1, ..., 1)
        weights /= tf.reduce_sum(weights)
        lengths, share = tf.math.ceil(_CHAIN * drawn[_CHAINS:-1]), drawn[-1]
        result = (1 - share) * image
        for c in range(_CHAINS):
            changed = image
            for k in range(_CHAIN):
                draw = c * _CHAIN + k
                changed = tf.cond(
                    k < lengths[c],
                    functools.partial(change, changed, draw),
                    functools.partial(tf.identity, changed),
                )
            result += share * weights[c] * changed
        return result

    return _each_picture([changes[k] for k in _MIXED], _CHAINS * _CHAIN, combined)


def _each_picture(changes, draws, combined):
    """A step that changes every picture in its own way.

    Args:
        changes: to draw from.
        draws: how many are drawn for a picture.
        combined: function of a picture, of a function (picture, number of the draw) -> changed
            picture, and of a seed.
    """

    def step(images, labels, seeds):
        import tensorflow as tf

        shape = [tf.shape(images)[0], draws]
        kinds = tf.random.stateless_uniform(shape, seeds.next(), 0, len(changes), tf.int32)
        own = tf.random.stateless_uniform([*shape, 2], seeds.next(), None, None, tf.int32)

        @functools.partial(
            tf.function, autograph=False
        )  # so that it is traced once, not `draws` times
        def changed_once(image, kind, seed):
            branches = [functools.partial(one, image, _Seeds(seed)) for one in changes]
            return tf.switch_case(kind, branches)

        def changed(image, kinds, own):
            return combined(image, lambda x, k: changed_once(x, kinds[k], own[k]), own[0] + 1)

        rows = (tf.cast(images, "float32"), kinds, own)
        spec = tf.TensorSpec(images.shape[1:], "float32")
        return tf.map_fn(lambda row: changed(*row), rows, fn_output_signature=spec), labels

    return step
