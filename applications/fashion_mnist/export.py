"""Writes a ViT as an .npz with the array names of Google's vit_jax checkpoints."""

import keras
import numpy as np

from keras_vit.weights import rules
from keras_vit.weights.tables.google import GOOGLE


def save_google_npz(model, path):
    """Stores the weights of a plain ViT with learned positions as float32 arrays.

    Args:
        model: from a function of `keras_vit.vit`, for example `keras_vit.ViT_Mini4(weights=None)`.
        path: of the new .npz file.

    Raises:
        ValueError: the model has a variable without a name in these checkpoints.
    """
    arrays = {}
    for variable in model.weights:
        if "seed_generator" not in variable.path:
            name, array = _google_array(model, variable)
            arrays[name] = array
    np.savez_compressed(path, **arrays)


def _google_array(model, variable):
    path = variable.path.removeprefix(f"{model.name}_")
    # Of several names for one variable the table lists that of vit_jax first.
    for rule in GOOGLE.rules:
        index = rule.match(path)
        if index is not None:
            array = keras.ops.convert_to_numpy(variable).astype("float32")
            shape = _google_shape(model, rule.transform, array.shape)
            return rule.source.format(**index), array.reshape(shape)
    raise ValueError(f"These checkpoints have no name for it. Received: variable {variable.path}.")


def _google_shape(model, transform, shape):
    """The shape in the file of an array that `transform` gives `shape` when it is loaded."""
    patch = model.get_layer(f"{model.name}_patches").patch_size
    heads = model.get_layer(f"{model.name}_block_0").attention.heads
    if transform is rules.patch_kernel_hwio:  # (P * P * C, D)
        return patch, patch, -1, shape[-1]
    if transform is rules.positions:  # (N, D)
        return 1, *shape
    if transform is rules.join_output_heads:  # (D, heads * d) or (heads * d,)
        return *shape[:-1], heads, -1
    if transform is rules.join_input_heads:  # (heads * d, D)
        return heads, -1, shape[-1]
    return shape
