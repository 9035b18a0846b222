"""From what weights hold to the configuration of the model that takes them."""

import dataclasses
import os

import numpy as np

from keras_vit import registry
from keras_vit.weights import augreg
from keras_vit.weights.fetch import fetch
from keras_vit.weights.formats import source_grid
from keras_vit.weights.loading import open_source


def open_weights(variant, weights, with_head=True):
    """Opens what a user gave as `weights`.

    Returns:
        The `Weights` row, None for a file; and the `Source`, None for random weights.

    Raises:
        ValueError: neither a named set of the variant nor a checkpoint file; or not readable.
    """
    if weights is None:
        return None, None
    text = os.fspath(weights)
    row = variant.named(text)
    if row is None and text.startswith("augreg/"):
        row = augreg.weights_of(variant.name, text)
    if row is not None:
        head = fetch(row.head_url) if row.head_url and with_head else None
        return row, open_source(fetch(row.url, row.sha256), head)
    if "://" in text:
        return None, open_source(fetch(text))
    if os.path.exists(text):
        return None, open_source(text)
    sets = ", ".join(repr(w.name) for w in variant.weights) or "none"
    raise ValueError(
        f"{variant.name}: `weights` should be None, a named set of this model, or an existing "
        f"checkpoint file. Received: weights={text!r}. Named sets: {sets}. Also "
        "'augreg/<file name>', 'hf://owner/name', or the path or address of a file (.npz, "
        ".safetensors, .pth, .weights.h5, .keras)."
    )


def grid_of(config, input_shape):
    """(h, w) of a static input shape, else None."""
    if input_shape is None or len(input_shape) != 3 or None in tuple(input_shape[:2]):
        return None
    return input_shape[0] // config.pixels, input_shape[1] // config.pixels


_SIZES = (
    "patch",
    "width",
    "depth",
    "heads",
    "mlp",
    "scale_adjustment",
    "stages",
    "stem_width",
    "filters",
)


def _differing(config, found):
    """Sizes of the weights that are not those of a configuration: dict of name -> (found, expected)."""
    sizes = {k: (found[k], getattr(config, k, None)) for k in _SIZES if k in found}
    return {k: (theirs, ours) for k, (theirs, ours) in sizes.items() if theirs != ours}


def check_architecture(variant, source, found):
    """Raises ValueError unless weights are of a variant's architecture; the message says of which."""
    differing = [
        f"{key} {theirs} (expected {ours})"
        for key, (theirs, ours) in _differing(variant.config, found).items()
    ]
    if differing:
        fitting = [
            other.name
            for other in map(registry.get_variant, registry.list_models())
            if not _differing(other.config, found)
        ]
        hint = f" These are weights for {' or '.join(fitting)}." if fitting else ""
        raise ValueError(
            f"{variant.name}: the weights are of another architecture. Received: "
            f"{source.checkpoint.path} ({source.format.name}) with {', '.join(differing)}.{hint}"
        )


def fitted(variant, source, found):
    """A plain variant's configuration with the structure and the numerics of the weights.

    Raises:
        ValueError: the weights are of another architecture; the message says of which.
    """
    check_architecture(variant, source, found)
    config = variant.config
    numerics = source.format.numerics(source).known()
    if numerics["activation"] == "silu":  # of a gated network: not a form of GELU
        del numerics["activation"]
    structure = {
        key: found[key]
        for key in (
            "tokens",
            "registers",
            "positions",
            "positioned_tokens",
            "representation_size",
            "attention_normalization",
        )
        if found.get(key) is not None or key == "representation_size"
    }
    if config.classifier not in found["classifier"]:
        structure["classifier"] = found["classifier"][0]
    if "layer_scale" in found and (found["layer_scale"] is None) != (config.layer_scale is None):
        structure["layer_scale"] = found["layer_scale"]
    return dataclasses.replace(config, **structure, **numerics)


def check_row(label, row, config, found):
    """Raises ValueError unless a named file holds what is known of it."""
    expected, received = {"classes": row.classes}, {"classes": found["classes"] or row.classes}
    if "rows" in found:
        h, w = (side // config.pixels for side in row.image)
        expected["positions"], received["positions"] = (
            h * w + config.positioned_tokens,
            found["rows"],
        )
    if received != expected:

        def listed(numbers):
            return " and ".join(f"{number} {name}" for name, number in numbers.items())

        raise ValueError(
            f"{label}: the file of {row.name!r} is not what its name says: expected "
            f"{listed(expected)} ({row.image[0]}x{row.image[1]} pixels). "
            f"Received: {listed(received)} from {row.url}."
        )


def refuse_contradictions(label, source, found, chosen, pretrained_top):
    """Raises ValueError if what the caller chose is not what the weights have."""
    valid = {
        "classifier": found["classifier"],
        "positions": ("sincos-2d", "none")
        if found["positions"] in (None, "sincos-2d")
        else (found["positions"],),
        "representation_size": (found["representation_size"],),
    }
    if not pretrained_top:
        del valid["representation_size"]
    for key, values in valid.items():
        if chosen[key] is not None and chosen[key] not in values:
            raise ValueError(
                f"{label}: {key} contradicts the weights {source.checkpoint.path}. Received: "
                f"{key}={chosen[key]!r}; the weights have {' or '.join(map(repr, values))}."
            )


def check_head(label, weights, source, found, classes):
    """Raises ValueError unless the weights have a trained head of `classes` outputs."""
    way_out = (
        "For another number of classes, load the backbone with a new zero-initialised head "
        "(`pretrained_top=False`) or without a head (`include_top=False`)."
    )
    if not found["classes"]:
        raise ValueError(
            f"{label}: these weights have no classification head. Received: weights={weights!r} "
            f"with include_top=True. {way_out}"
        )
    if found["classes"] != classes:
        raise ValueError(
            f"{label}: If using `weights={str(weights)!r}` with `include_top=True`, `classes` "
            f"should be {found['classes']}. Received classes={classes}. {way_out}"
        )
    rules = [rule for rule in source.format.rules if rule.target == "head/kernel"]
    kernel = next(rule.source for rule in rules if rule.source in source)
    if classes == 21843 and not np.any(source[kernel]):
        raise ValueError(
            f"{label}: the ImageNet-21k head of these weights is all zeros, as published in 2020. "
            f"Received: weights={weights!r} with include_top=True. {way_out}"
        )


def native_image(config, found, input_shape):
    """Image size (height, width) of a file, as far as it tells; else that of the variant."""
    if "grid" in found:
        return tuple(n * config.pixels for n in found["grid"])
    if config.positions == "learned-1d" and "rows" in found:
        patches = found["rows"] - config.positioned_tokens
        grid = source_grid(patches, grid_of(config, input_shape))
        return tuple(n * config.pixels for n in grid)
    return config.image


def statistics_of(variant, row, source):
    """Normalisation of the weights: a name in `keras_vit.preprocessing.STATISTICS`."""
    if row is not None:
        return row.statistics
    return (source.format.statistics if source is not None else None) or variant.statistics


def recipe_of(row, image):
    """`Recipe` fields: the native size (height, width), and what a named set tells besides."""
    recipe = {"size": list(image)}
    if row is not None:
        recipe |= {"crop_fraction": row.crop_fraction, "interpolation": row.interpolation}
    return recipe
