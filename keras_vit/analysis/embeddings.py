"""What the patch embedding and the position embeddings of a model have learned."""

import numpy as np
from keras import ops

from keras_vit.analysis.maps import find_layer
from keras_vit.layers import PatchEncoder, Patches


def position_similarity(model):
    """How alike the positions of the patches are: cosine of every embedding with every other.

    Args:
        model: a model of this package, or one that has it as a layer.

    Returns:
        Float32 array (h, w, h, w) in [-1, 1]; [i, j] is the map of similarity of the patch in row i
        and column j.

    Raises:
        ValueError: the model adds no positions to its patches.

    Source: ViT paper, figure 7 (centre).
    """
    encoder = find_layer(model, PatchEncoder)
    positions = encoder.grid_positions()
    if positions is None:
        raise ValueError(
            f"{model.name} has no position embeddings. Received: a model with positions='none'."
        )
    positions = ops.convert_to_numpy(ops.cast(positions, "float32"))
    units = positions / np.maximum(np.linalg.norm(positions, axis=-1, keepdims=True), 1e-12)
    return np.einsum("ijd,kld->ijkl", units, units)


def patch_filters(model, count=28):
    """The first principal components of the filters that embed the patches.

    Args:
        model: a model of this package that cuts the image itself into patches.
        count: number of components, 1 to the number of values in a patch, P * P * C, and to D.

    Returns:
        Float32 array (count, P, P, C) in [0, 1], by falling variance: each component stretched from
        its least to its greatest value, its largest weight positive.

    Raises:
        ValueError: `count` out of range, or a model whose patches are cut from what convolutions
            make.

    Source: ViT paper, figure 7 (left).
    """
    patches, encoder = (find_layer(model, kind) for kind in (Patches, PatchEncoder))
    channels = patches.input.shape[-1]
    kernel = _kernel(encoder.projection)  # (P * P * C, D)
    if channels not in (1, 3):
        raise ValueError(
            f"{model.name} has filters that are no pictures: its patches have {channels} channels. "
            "Pass a model without a stem, for images of 1 or 3 channels."
        )
    if not 1 <= count <= min(kernel.shape):
        raise ValueError(
            f"`count` must be in 1..{min(kernel.shape)}, the number of components. "
            f"Received: count={count}."
        )
    filters = kernel.T - kernel.T.mean(axis=0)  # (D, P * P * C)
    _, _, components = np.linalg.svd(filters, full_matrices=False)
    components = components[:count]
    largest = np.take_along_axis(components, np.abs(components).argmax(axis=1)[:, None], axis=1)
    components = components * np.sign(largest)
    low, high = (f(components, axis=1, keepdims=True) for f in (np.min, np.max))
    side = patches.patch_size
    stretched = (components - low) / np.maximum(high - low, 1e-12)
    return stretched.reshape(count, side, side, channels)


def _kernel(dense):
    """The kernel of a dense layer as float32, of a quantised one too."""
    if dense.quantization_mode is None:
        kernel = dense.kernel
    else:  # what it makes of unit vectors
        kernel = dense(ops.eye(dense.kernel.shape[0])) - dense.bias
    return ops.convert_to_numpy(ops.cast(kernel, "float32"))
