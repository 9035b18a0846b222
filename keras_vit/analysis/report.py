"""One page of HTML about the attention of a model to one picture."""

import base64
import html
import importlib.resources
import io
import json
import math
import string

import numpy as np
from PIL import Image

import keras_vit
from keras_vit.analysis import measures
from keras_vit.analysis.maps import find_layers, iterate_attention_maps, token_layout
from keras_vit.layers import ReAttention, TransformerBlock

_SHOWN = 448  # pixels, to which small pictures are enlarged by a whole factor
# From black over violet and orange to a bright yellow, as the map "inferno" of matplotlib.
_COLOURS = (
    (0, 0, 4),
    (40, 11, 84),
    (101, 21, 110),
    (159, 42, 99),
    (212, 72, 66),
    (245, 125, 21),
    (250, 193, 39),
    (252, 255, 164),
)
_SIMILAR = 0.9


def html_report(model, image, *, title, about="", predictions=()):
    """A page that shows what a model attends to in one picture; it needs no other file or network.

    Args:
        model: as in `attention_maps`.
        image: what the model takes, (H, W, 3), 0..255.
        title: text on top, such as the name of the model.
        about: text below it, such as the name of the picture.
        predictions: pairs of a name and a score in [0, 1].

    Returns:
        The page, a str.

    Raises:
        ValueError: as `attention_maps`.
    """
    images = np.asarray(image)[None]
    layout = token_layout(model, images)
    seen = _Seen(layout)
    rollout = measures.attention_rollout(seen.watch(iterate_attention_maps(model, images)))
    heat = measures.class_attention_grid(rollout, layout)
    shown = _shown_size(layout.image)
    text = importlib.resources.files("keras_vit").joinpath("data/report.html").read_text("utf-8")
    return string.Template(text).substitute(
        version=keras_vit.__version__,
        title=html.escape(title),
        about=html.escape(about),
        picture=_picture(images[0], shown),
        heat=_heat(measures.enlarged(heat, shown)[0]),
        size="{1} x {0}".format(*layout.image),
        reader=_reader_of(layout),
        predictions=_predictions(predictions),
        depth=len(seen.blocks),
        distances=_chart(seen.distances, "pixels", _round_up(np.max(seen.distances))),
        similarity=_chart([[value] for value in seen.similarity], "cosine", 1, 2, _SIMILAR),
        similar=_similar(seen.similarity),
        kind=_kind(model),
        data=json.dumps({"grid": layout.grid, "colours": _COLOURS, "blocks": seen.blocks}),
    )


class _Seen:
    """What the page tells of every block, gathered while one map after another passes."""

    def __init__(self, layout):
        self.layout = layout
        self.blocks = []
        self.distances = []  # pixels, (blocks, heads)
        self.similarity = []  # with the block before, (blocks - 1,)

    def watch(self, maps):
        """Yields the maps, and takes from each what the page needs."""
        before = None
        for attention in maps:
            (distances,) = measures.attention_distance([attention], self.layout)
            (grids,) = measures.class_attention_grid(attention, self.layout)
            self.distances.append(distances)
            self.blocks.append([_head(*head) for head in zip(grids, distances, strict=True)])
            if before is not None:
                self.similarity.append(measures.block_similarity([before, attention])[0, 1])
            before = attention
            yield attention


def _head(grid, distance):
    """A map (h, w) as the page takes it: a byte a patch, from 0 to its greatest value."""
    levels = np.round(255 * grid / max(grid.max(), 1e-12)).astype("uint8")
    encoded = base64.b64encode(levels.tobytes()).decode()
    return {"levels": encoded, "peak": f"{grid.max():.2g}", "distance": f"{distance:.3g}"}


def _reader_of(layout):
    return "the class token" if "class" in layout.names else "the mean of the patches"


def _kind(model):
    """A sentence on re-attention, where a model has it."""
    blocks = find_layers(model, TransformerBlock)
    if any(isinstance(block.attention, ReAttention) for block in blocks):
        return "The maps are those before re-attention mixes the heads."
    return ""


def _similar(similarity):
    count = sum(value > _SIMILAR for value in similarity)
    return (
        f"Above {_SIMILAR} (dashed) a block repeats the one before: here {count} of the "
        f"{len(similarity) + 1} do."
    )


def _predictions(pairs):
    if not pairs:
        return ""
    rows = "".join(
        f"<li><span>{html.escape(name)}</span><span>{score:.1%}</span>"
        f'<div><div style="width: {100 * score:.1f}%"></div></div></li>'
        for name, score in pairs
    )
    return f'<div><ol id="predictions">{rows}</ol><p class="quiet">What the model says.</p></div>'


def _shown_size(size):
    factor = max(1, _SHOWN // max(size))
    return tuple(factor * side for side in size)


def _picture(image, size):
    """The address of a picture, enlarged without smoothing."""
    pixels = np.clip(np.round(image), 0, 255).astype("uint8")
    picture = Image.fromarray(pixels.squeeze()).convert("RGB")
    return _address(picture.resize(size[::-1], Image.Resampling.NEAREST), "JPEG", quality=90)


def _heat(values):
    """The address of a coloured map."""
    places = (values - values.min()) / max(np.ptp(values), 1e-12) * (len(_COLOURS) - 1)
    channels = [
        np.interp(places, range(len(_COLOURS)), channel) for channel in np.transpose(_COLOURS)
    ]
    return _address(Image.fromarray(np.stack(channels, axis=-1).astype("uint8")), "JPEG")


def _address(picture, kind, **options):
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def _round_up(value):
    """The next number of the form 1, 2, 4, 6 or 8 times a power of ten."""
    unit = 10.0 ** math.floor(math.log10(max(value, 1e-3)))
    return next(step * unit for step in (1, 2, 4, 6, 8, 10) if step * unit >= value)


def _chart(rows, unit, top, first=1, limit=None):
    """An SVG with a dot for every value of every row, and a line through the means of the rows.

    Args:
        rows: the values of each block.
        unit: of the values.
        top: greatest number of the vertical axis, which begins at 0.
        first: number of the block of the first row.
        limit: value of a dashed line.
    """
    left, right, above, below = 52, 410, 22, 200
    last = first + len(rows) - 1
    blocks = range(1, last + 1)

    def x(block):
        return left + 12 + (right - left - 24) * (block - 1) / max(1, last - 1)

    def y(value):
        return below - (below - above) * max(0.0, float(value)) / top

    parts = [f'<text x="{left}" y="13">{unit}</text>']
    for value in (0, top / 2, top):
        parts.append(
            f'<line class="axis" x1="{left}" x2="{right}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        )
        parts.append(
            f'<text x="{left - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>'
        )
    step = math.ceil(last / 12)
    for block in blocks[::step]:
        parts.append(
            f'<text x="{x(block):.1f}" y="{below + 18}" text-anchor="middle">{block}</text>'
        )
    parts.append(
        f'<text x="{(left + right) / 2}" y="{below + 38}" text-anchor="middle">block</text>'
    )
    if limit is not None:
        parts.append(
            f'<line class="limit" x1="{left}" x2="{right}" y1="{y(limit):.1f}" y2="{y(limit):.1f}"/>'
        )
    means = [(block, np.mean(row)) for block, row in enumerate(rows, first)]
    points = " ".join(f"{x(block):.1f},{y(value):.1f}" for block, value in means)
    parts.append(f'<polyline class="curve" points="{points}"/>')
    dots = "".join(
        f'<circle cx="{x(block):.1f}" cy="{y(value):.1f}" r="3.5"/>'
        for block, row in enumerate(rows, first)
        for value in row
    )
    parts.append(f'<g class="dots">{dots}</g>')
    parts += [
        f'<circle class="now" data-block="{block}" cx="{x(block):.1f}" cy="{y(value):.1f}" r="7"/>'
        for block, value in means
    ]
    return (
        f'<svg viewBox="0 0 420 {below + 48}" role="img" aria-label="{unit}">{"".join(parts)}</svg>'
    )
