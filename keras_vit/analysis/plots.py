"""Figures of what the analysis finds; they need matplotlib, `pip install "keras-vit-zoo[plots]"`.

Each function returns a `matplotlib.figure.Figure`, to be shown by a notebook or saved by `savefig`.
"""

import math

import numpy as np


def attention_overlay(image, attention, title="attention"):
    """An image, and the same under a map of attention.

    Args:
        image: (H, W, 3) or (H, W, 1), 0..255.
        attention: (H, W), such as one of `class_attention_image`.
        title: of the map.
    """
    figure = _figure(6.4, 3.4)
    plain, covered = figure.subplots(1, 2)
    for axes in (plain, covered):
        axes.imshow(_displayable(image), cmap="gray", vmin=0, vmax=255)
        axes.set_axis_off()
    plain.set_title("image")
    heat = covered.imshow(attention, cmap="inferno", alpha=0.65)
    covered.set_title(title)
    figure.colorbar(heat, ax=covered, label="share of attention", shrink=0.8)
    return figure


def attention_gallery(grids, title="Attention of the class token"):
    """The maps of every head of every block, one row a block.

    Args:
        grids: (blocks, heads, h, w), such as `class_attention_grid` of every map for one image.
        title: of the figure.
    """
    blocks, heads = len(grids), len(grids[0])
    figure = _figure(1.0 * heads + 1, 1.0 * blocks + 0.8)
    panels = figure.subplots(blocks, heads, squeeze=False)
    for block, row in enumerate(panels):
        for head, axes in enumerate(row):
            axes.imshow(grids[block][head], cmap="inferno", vmin=0)
            axes.set(xticks=[], yticks=[])
            if block == 0:
                axes.set_title(f"head {head}", fontsize=9)
        row[0].set_ylabel(f"block {block}", fontsize=9)
    figure.suptitle(f"{title}, each from 0 to its greatest value")
    return figure


def attention_distance(distances):
    """Mean attention distance of every head over depth, as figure 7 (right) of the ViT paper.

    Args:
        distances: (blocks, heads) in pixels, of the function of the same name.
    """
    figure, axes = _axes("block", "mean attention distance (pixels)")
    blocks = np.arange(len(distances))
    for head in np.transpose(distances):
        axes.plot(blocks, head, "o", color="tab:blue", alpha=0.6)
    axes.plot(blocks, np.mean(distances, axis=1), color="tab:orange", label="mean of the heads")
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def block_similarity(similarity):
    """Cosine similarity of the attention of every pair of blocks.

    Args:
        similarity: (blocks, blocks), of the function of the same name.
    """
    figure, axes = _axes("block", "block")
    picture = axes.imshow(similarity, cmap="viridis", vmin=min(0, np.min(similarity)), vmax=1)
    figure.colorbar(picture, ax=axes, label="cosine similarity of attention")
    return figure


def head_similarity(similarity):
    """Cosine similarity of the attention of the heads within each block.

    Args:
        similarity: (blocks, heads, heads), of the function of the same name; 2 heads or more.
    """
    figure, axes = _axes("block", "cosine similarity of two heads")
    first, second = np.triu_indices(np.shape(similarity)[1], k=1)
    pairs = np.asarray(similarity)[:, first, second]  # (blocks, pairs)
    blocks = np.arange(len(pairs))
    axes.plot(blocks, pairs, "o", color="tab:blue", alpha=0.3, markersize=3)
    axes.plot(blocks, pairs.mean(axis=1), color="tab:orange", label="mean of the pairs")
    axes.legend()
    return figure


def feature_similarity(similarity):
    """Cosine similarity of the tokens after each block with those after the one before.

    Args:
        similarity: (blocks - 1,), of the function of the same name.
    """
    figure, axes = _axes("block", "cosine similarity with the block before")
    axes.plot(np.arange(1, len(similarity) + 1), similarity, "o-")
    axes.set_ylim(min(0, np.min(similarity)), 1.02)
    return figure


def position_similarity(similarity):
    """Cosine similarity of the position embeddings, as figure 7 (centre) of the ViT paper.

    Args:
        similarity: (h, w, h, w), of the function of the same name.
    """
    height, width = np.shape(similarity)[:2]
    figure = _figure(0.45 * width + 1.6, 0.45 * height + 1)
    panels = figure.subplots(height, width, squeeze=False)
    for i, row in enumerate(panels):
        for j, axes in enumerate(row):
            picture = axes.imshow(similarity[i][j], cmap="viridis", vmin=-1, vmax=1)
            axes.set(xticks=[], yticks=[])
            if i == height - 1:
                axes.set_xlabel(j, fontsize=8)
        row[0].set_ylabel(i, fontsize=8, rotation=0, ha="right", va="center")
    figure.supxlabel("patch column")
    figure.supylabel("patch row")
    figure.colorbar(picture, ax=panels, label="cosine similarity")
    return figure


def patch_filters(filters):
    """The principal components of the filters that embed the patches, as figure 7 (left) of the paper.

    Args:
        filters: (count, P, P, C) in [0, 1], of the function of the same name.
    """
    columns = math.ceil(math.sqrt(len(filters)))
    rows = math.ceil(len(filters) / columns)
    figure = _figure(columns, rows + 0.6)
    for axes in figure.subplots(rows, columns, squeeze=False).flat:
        axes.set_axis_off()
    for axes, values in zip(figure.axes, filters, strict=False):
        axes.imshow(values, cmap="gray", vmin=0, vmax=1)
    figure.suptitle(f"First {len(filters)} principal components of the patch filters", fontsize=10)
    return figure


def _figure(width, height):
    """An empty figure of a size in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            'The plots need matplotlib: pip install "keras-vit-zoo[plots]".'
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def _axes(x, y):
    """A figure with one pair of axes, whose horizontal one counts blocks."""
    figure = _figure(5.2, 3.8)
    axes = figure.subplots()
    axes.set(xlabel=x, ylabel=y)
    axes.xaxis.get_major_locator().set_params(integer=True)
    return figure, axes


def _displayable(image):
    return np.clip(np.asarray(image), 0, 255).astype("uint8")
