"""Measures of attention maps.

`maps` are those of the blocks in order, each (B, heads, N, N): a list such as `attention_maps` gives,
or where a measure needs one at a time, the iterator of `iterate_attention_maps`.
"""

from typing import NamedTuple

import keras
import numpy as np

_FUSIONS = {"mean": np.mean, "max": np.max, "min": np.min}
_TOLERANCE = 0.05  # of the sum of a row; half precision rounds each probability


def attention_rollout(maps, fusion="mean"):
    """How much each token after the last block stems from each token before the first.

    The heads of every block are fused to A; 0.5 * A + 0.5 * I stands for the residual branch, its
    rows are divided by their sum, and the blocks are multiplied, the last one on the left.

    Args:
        maps: softmax maps, each (B, heads, N, N), in the order of the blocks.
        fusion: "mean", "max" or "min" over the heads.

    Returns:
        Float32 array (B, N, N) whose rows sum to 1.

    Raises:
        ValueError: unknown fusion, no maps, or maps whose rows do not sum to 1.

    Source: Abnar & Zuidema 2020 (arXiv:2005.00928), section 3; the ViT paper, appendix D.8, takes the
        mean of the heads.
    """
    if fusion not in _FUSIONS:
        raise ValueError(
            f"Unknown fusion. Received: fusion={fusion!r}. Available: {list(_FUSIONS)}."
        )
    rollout = None
    for attention in maps:
        fused = _FUSIONS[fusion](_probabilities(attention), axis=1)  # (B, N, N)
        mixed = 0.5 * fused + 0.5 * np.eye(fused.shape[-1], dtype="float32")
        mixed /= mixed.sum(axis=-1, keepdims=True)
        rollout = mixed if rollout is None else mixed @ rollout
    if rollout is None:
        raise ValueError("The rollout needs the map of at least one block. Received: no maps.")
    return rollout


def class_attention_grid(attention, layout):
    """The attention of the class token to each patch, laid out as the image.

    In a model without a class token it is the mean of the attention of all patches, which is what
    a head that averages the patches reads.

    Args:
        attention: a map (B, heads, N, N), or a rollout (B, N, N).
        layout: its `TokenLayout`.

    Returns:
        Float32 array (B, heads, h, w) or (B, h, w). What goes to class, distillation and register
        tokens is left out, so the sum of a grid is at most 1.

    Raises:
        ValueError: the map has another number of tokens than the layout.
    """
    attention = _laid_out(attention, layout)
    if "class" in layout.names:
        row = attention[..., layout.names.index("class"), :]
    else:
        row = attention[..., layout.prefix :, :].mean(axis=-2)
    return row[..., layout.prefix :].reshape(*row.shape[:-1], *layout.grid)


def class_attention_image(attention, layout):
    """`class_attention_grid`, enlarged to the size of the image by bilinear interpolation.

    Args:
        attention: a map (B, heads, N, N), or a rollout (B, N, N).
        layout: its `TokenLayout`.

    Returns:
        Float32 array (B, heads, H, W) or (B, H, W).

    Raises:
        ValueError: the map has another number of tokens than the layout.
    """
    return enlarged(class_attention_grid(attention, layout), layout.image)


def enlarged(grids, size):
    """Maps (..., h, w) at another size (..., H, W), by bilinear interpolation between the centres."""
    flat = grids.reshape(-1, *grids.shape[-2:], 1)
    resized = keras.ops.image.resize(
        flat, size, interpolation="bilinear", data_format="channels_last"
    )
    return keras.ops.convert_to_numpy(resized).reshape(*grids.shape[:-2], *size)


def attention_distance(maps, layout):
    """How far a head looks: the distance between patches, weighted by attention.

    For every patch as a query: the mean over all patches of the distance between the two centres,
    weighted by the attention. Other tokens are left out and the rest of a row is divided by its sum.

    Args:
        maps: softmax maps, each (B, heads, N, N), in the order of the blocks.
        layout: their `TokenLayout`.

    Returns:
        Float32 array (blocks, heads) in pixels, the mean over the images and the queries.

    Raises:
        ValueError: the maps have another number of tokens than the layout, or rows that do not sum
            to 1.

    Source: ViT paper, figure 7 (right) and appendix D.7.
    """
    centres = layout.centres()
    distances = np.linalg.norm(centres[:, None] - centres[None], axis=-1).astype("float32")
    result = []
    for attention in maps:
        attention = _probabilities(_laid_out(attention, layout))
        patches = attention[..., layout.prefix :, layout.prefix :]
        weighted = np.einsum("bhqk,qk->bhq", patches, distances)
        sums = np.maximum(patches.sum(axis=-1), 1e-12)
        result.append((weighted / sums).mean(axis=(0, 2)))
    return np.array(result, "float32")


def block_similarity(maps):
    """How alike the attention of two blocks is, for every pair of blocks.

    The mean over images, heads h and tokens t of the cosine between column t of head h in the one
    block and the same column in the other: how much each query takes from token t.

    Args:
        maps: each (B, heads, N, N), in the order of the blocks; of any kind.

    Returns:
        Float32 array (blocks, blocks) in [-1, 1].

    Source: DeepViT paper (arXiv:2103.11886), section 3.2, equation 3.
    """
    columns = np.stack([_unit_columns(attention) for attention in maps], axis=2)
    columns = columns.reshape(*columns.shape[:3], -1)  # (B, heads, blocks, N * N)
    return _mean_of_products(columns, axis=(0, 1), tokens=np.shape(maps[0])[-1])


def head_similarity(maps):
    """How alike the attention of two heads of one block is, for every block and pair of heads.

    The cosine of `block_similarity`, between two heads of a block instead of two blocks.

    Args:
        maps: each (B, heads, N, N), in the order of the blocks; of any kind.

    Returns:
        Float32 array (blocks, heads, heads) in [-1, 1].

    Source: DeepViT paper (arXiv:2103.11886), section 3.2, figure 3 (c).
    """
    result = []
    for attention in maps:
        columns = _unit_columns(attention)
        columns = columns.reshape(*columns.shape[:2], -1)  # (B, heads, N * N)
        result.append(_mean_of_products(columns, axis=0, tokens=np.shape(attention)[-1]))
    return np.array(result, "float32")


class SimilarBlocks(NamedTuple):
    """Result of `similar_blocks`.

    Attributes:
        count: number of similar blocks.
        ratio: count / number of all blocks, in [0, 1).
    """

    count: int
    ratio: float


def similar_blocks(similarity, threshold=0.9):
    """Counts the blocks whose attention hardly differs from that of the block before.

    A block is similar if its entry of `block_similarity` with the block before it is above the
    threshold; the first block never is. The DeepViT paper, which reports such counts (figure 3 (b)),
    does not write its own rule down.

    Args:
        similarity: result of `block_similarity`, (blocks, blocks).
        threshold: in [0, 1].

    Returns:
        A `SimilarBlocks`: their count, and its ratio to the number of all blocks.

    Raises:
        ValueError: threshold out of range.
    """
    if not 0 <= threshold <= 1:
        raise ValueError(f"`threshold` must be in [0, 1]. Received: threshold={threshold}.")
    count = int((np.diagonal(similarity, offset=1) > threshold).sum())
    return SimilarBlocks(count, count / len(similarity))


def feature_similarity(features):
    """How little a block changes the tokens: their cosine before and after it.

    Args:
        features: tokens after successive blocks, each (B, N, D), for example
            `feature_extractor(model, layout="tokens", normalize=False).predict(images).values()`.

    Returns:
        Float32 array (blocks - 1,) in [-1, 1], the mean over images and tokens.

    Source: DeepViT paper (arXiv:2103.11886), section 3.2.
    """
    units = [_units(np.asarray(tokens, "float32"), axis=-1) for tokens in features]
    pairs = zip(units, units[1:], strict=False)
    return np.array([(a * b).sum(axis=-1).mean() for a, b in pairs], "float32")


def _probabilities(attention):
    """The map, if its rows sum to 1."""
    attention = np.asarray(attention, "float32")
    if attention.min() < 0 or np.abs(attention.sum(axis=-1) - 1).max() > _TOLERANCE:
        raise ValueError(
            "The rows of the attention maps must be probabilities, which sum to 1. Received: maps "
            "with other rows. Take those of attention_maps(..., kind='softmax')."
        )
    return attention


def _laid_out(attention, layout):
    """The map, if its tokens are those of the layout."""
    attention = np.asarray(attention, "float32")
    if attention.shape[-2:] != (layout.count, layout.count):
        raise ValueError(
            f"The layout has {layout.count} tokens: {layout}. "
            f"Received: an attention map of shape {attention.shape}."
        )
    return attention


def _unit_columns(attention):
    return _units(np.asarray(attention, "float32"), axis=-2)


def _units(vectors, axis):
    return vectors / np.maximum(np.linalg.norm(vectors, axis=axis, keepdims=True), 1e-12)


def _mean_of_products(columns, axis, tokens):
    """Products of every pair of flattened maps (..., maps, N * N), as the mean cosine of a column."""
    products = columns @ np.swapaxes(columns, -1, -2) / tokens
    return products.mean(axis=axis).astype("float32")
