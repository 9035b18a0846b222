"""Small folders of pictures."""

import numpy as np
import pytest
from PIL import Image


def picture(seed, height=40, width=60):
    """A picture like no other: smooth, so that a resize keeps it apart from the rest."""
    grid = np.random.default_rng(seed).integers(0, 256, (4, 6, 3)).astype("uint8")
    return Image.fromarray(grid).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture
def folder(tmp_path):
    """`folder({"cat": 3, "dog": 2}, root)`: that many JPEGs in a sub-folder a class."""

    def make(counts, root="data"):
        for number, (name, count) in enumerate(counts.items()):
            path = tmp_path / root / name
            path.mkdir(parents=True)
            for k in range(count):
                picture(1000 * number + k, 40 + k, 60).save(path / f"{k}.jpg")
        return tmp_path / root

    return make
