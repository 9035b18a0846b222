"""The demo's picture."""

import numpy as np

from keras_vit.cli.contact_sheet import COLUMNS, MARGIN, SIDE, contact_sheet


def test_a_picture_beside_itself_under_heat():
    images = np.full((5, 28, 28, 3), 200, "uint8")
    heat = np.zeros((5, 7, 7))
    heat[:, :, 4:] = 3.0  # the right side is hot
    sheet = contact_sheet("Title", images, heat, [("one", "two")] * 5)
    assert sheet.width == MARGIN + COLUMNS * (2 * SIDE + MARGIN)
    pixels = np.asarray(sheet).astype(int)
    rows = np.flatnonzero((pixels == 200).all(-1).any(1))
    assert rows[-1] - rows[0] > 2 * SIDE  # the fifth picture began a second row
    top = rows[0]
    plain = pixels[top : top + SIDE, MARGIN : MARGIN + SIDE]
    hot = pixels[top : top + SIDE, MARGIN + SIDE : MARGIN + 2 * SIDE]
    assert (plain == 200).all()
    np.testing.assert_allclose(hot[50, 10], 0.4 * 200 + 0.6 * np.array((20, 20, 90)), atol=1)
    np.testing.assert_allclose(hot[50, -10], 0.4 * 200 + 0.6 * np.array((255, 235, 120)), atol=1)
    assert (pixels[top + SIDE : top + SIDE + 36, MARGIN : MARGIN + SIDE] < 100).any()  # a caption


def test_an_even_map_is_no_error():
    sheet = contact_sheet("", np.zeros((1, 28, 28, 3), "uint8"), np.ones((1, 7, 7)), [("", "")])
    assert np.asarray(sheet).shape[1] == sheet.width
