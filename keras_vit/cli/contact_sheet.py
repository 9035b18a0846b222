"""The picture that the demo draws."""

import numpy as np
from PIL import Image, ImageDraw, ImageFont

SIDE = 112  # of an enlarged picture
MARGIN = 14
COLUMNS = 4
_LINE = 18
# Red, green and blue of low, middle and high heat.
_HEAT = ((0.0, 0.5, 1.0), ((20, 205, 255), (20, 60, 235), (90, 90, 120)))


def contact_sheet(title, images, attention, captions):
    """Pictures in rows, each beside itself under a map of heat.

    Args:
        title: first line of the sheet.
        images: uint8 (N, H, W, 3).
        attention: float (N, h, w), any scale; each map is stretched from its least to its greatest.
        captions: N pairs of lines.

    Returns:
        A `PIL.Image`.
    """
    cell = (2 * SIDE + MARGIN, SIDE + 2 * _LINE + MARGIN)
    rows = -(-len(images) // COLUMNS)
    size = (COLUMNS * cell[0] + MARGIN, rows * cell[1] + 3 * MARGIN + _LINE)
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN, MARGIN), title, "black", ImageFont.load_default(15))
    font = ImageFont.load_default(13)
    for k, (image, heat, lines) in enumerate(zip(images, attention, captions, strict=True)):
        left = MARGIN + k % COLUMNS * cell[0]
        top = 2 * MARGIN + _LINE + k // COLUMNS * cell[1]
        picture = Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.NEAREST)
        sheet.paste(picture, (left, top))
        sheet.paste(Image.blend(picture, _coloured(heat), 0.6), (left + SIDE, top))
        for row, line in enumerate(lines):
            draw.text((left, top + SIDE + 2 + row * _LINE), line, "black", font)
    return sheet


def _coloured(heat):
    """A map (h, w) as colours, enlarged."""
    heat = (heat - heat.min()) / max(np.ptp(heat), 1e-12)
    enlarged = Image.fromarray(heat.astype("float32")).resize((SIDE, SIDE), Image.BICUBIC)
    stops, colours = _HEAT
    channels = [np.interp(np.asarray(enlarged), stops, channel) for channel in colours]
    return Image.fromarray(np.stack(channels, axis=-1).astype("uint8"))
