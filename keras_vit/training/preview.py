"""A look at what an augmentation does."""

import numpy as np
from PIL import Image

from keras_vit.preprocessing import prepare
from keras_vit.training.pipeline import batch_maker, tensorflow

_GAP = 4


def preview(samples, recipe, augmentation=None, pictures=6, variants=7, seed=0):
    """Draws pictures as they are evaluated, each beside what training makes of them.

    Args:
        samples: `Samples`, from which a few are taken at even distances.
        recipe: `keras_vit.recipe_of(model)`.
        augmentation: `Augmentation`; None is its default.
        pictures: how many rows, at least 1.
        variants: how many columns beside the first, at least 1.
        seed: whole number, at least 0.

    Returns:
        `PIL.Image`.

    Raises:
        ImageError: a picture cannot be read.
    """
    tf = tensorflow()
    pictures = min(pictures, len(samples))
    chosen = samples.select(np.linspace(0, len(samples) - 1, pictures).astype(int))
    make = batch_maker(chosen, recipe, augmentation, seed)
    indices = np.arange(pictures)
    changed = tf.data.Dataset.range(variants).map(lambda epoch: make(epoch, 0, indices))
    originals = np.stack([prepare(chosen.load(k), recipe) for k in range(pictures)])
    columns = [originals, *(images for images, _ in changed.as_numpy_iterator())]
    height, width = recipe.size
    size = (len(columns) * (width + _GAP) - _GAP, pictures * (height + _GAP) - _GAP)
    grid = Image.new("RGB", size, "white")
    for k, column in enumerate(columns):
        for row, image in enumerate(column):
            tile = Image.fromarray(np.clip(np.round(image), 0, 255).astype("uint8"))
            grid.paste(tile, (k * (width + _GAP), row * (height + _GAP)))
    return grid
