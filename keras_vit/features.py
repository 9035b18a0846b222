"""Feature maps of the blocks of a model."""

import keras

from keras_vit.layers import PatchEncoder, Patches, TokensToGrid, TransformerBlock


def feature_extractor(model, blocks=None, *, normalize=True, layout="grid"):
    """A model that returns what chosen blocks of `model` compute.

    Args:
        model: a model of this package, with or without a head.
        blocks: indices of the blocks, from 0; negative ones count from the end. None for all.
        normalize: apply the final norm of the model to every output, as DINOv2 does.
        layout: "grid" for feature maps (B, h, w, D); "tokens" for all tokens (B, N, D), class token
            and registers first.

    Returns:
        A `keras.Model` with the inputs of `model` and one output per chosen block, in the order of
        `blocks`, named "block_{i}".

    Raises:
        ValueError: index out of range, unknown layout, no blocks in the model, or no final norm to
            apply.
    """
    if layout not in ("grid", "tokens"):
        raise ValueError(f"layout must be 'grid' or 'tokens'. Received: layout={layout!r}.")
    found = [layer for layer in model.layers if isinstance(layer, TransformerBlock)]
    if not found:
        raise ValueError(
            f"{model.name} has no TransformerBlock of its own. If it holds a keras_vit model as a "
            "layer, pass that layer: model.get_layer(name)."
        )
    blocks = range(len(found)) if blocks is None else blocks
    for i in blocks:
        if not -len(found) <= i < len(found):
            raise ValueError(
                f"Block index out of range: {model.name} has {len(found)} blocks. Received: {i}."
            )
    encoder = next(layer for layer in model.layers if isinstance(layer, PatchEncoder))
    patches = next(layer for layer in model.layers if isinstance(layer, Patches))
    prefix = encoder.name.removesuffix("patch_encoder")
    norm = _final_norm(model, prefix) if normalize else None
    outputs = {}
    for i in blocks:
        i %= len(found)
        x = found[i].output
        if norm is not None:
            x = norm(x)
        if layout == "grid":
            to_grid = TokensToGrid(
                patches.patch_size, encoder.prefix, name=f"{prefix}grid_{i}", dtype=x.dtype
            )
            x = to_grid(x, patches.input)
        outputs[f"block_{i}"] = x
    return keras.Model(model.inputs, outputs, name=f"{model.name}_features")


def _final_norm(model, prefix):
    for layer in model.layers:
        if layer.name == f"{prefix}encoder_norm":
            return layer
    raise ValueError(
        f"{model.name} has no final norm over the tokens to apply. Pass normalize=False."
    )
