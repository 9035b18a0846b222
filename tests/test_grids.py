"""Sizes of images and of their grids."""

import pytest

from keras_vit.grids import check_size, grid_of, nearest_sizes, square_side


def test_square_side():
    assert [square_side(n) for n in (1, 4, 196, 1369)] == [1, 2, 14, 37]
    assert [square_side(n) for n in (0, 2, 195, 197)] == [None] * 4


def test_grid_of():
    assert grid_of((32, 50), 16) == (2, 3)
    assert grid_of((None, 48), 16) == (None, 3)


def test_nearest_sizes():
    assert [nearest_sizes(n, 16) for n in (30, 50, 32)] == [(16, 32), (48, 64), (32, 48)]
    assert [nearest_sizes(n, 16) for n in (0, 7, 15)] == [(16,)] * 3


def test_check_size():
    for size in ((32, 48), (None, 16), (None, None)):
        check_size(size, 16, "owner")
    message = (
        "owner: the image width must be a multiple of the patch size 16. "
        "Received: width=50. Nearest valid width: 48 or 64."
    )
    with pytest.raises(ValueError, match=message):
        check_size((32, 50), 16, "owner")
    with pytest.raises(ValueError, match="Received: height=0. Nearest valid height: 16."):
        check_size((0, 50), 16, "owner")
