"""The residual networks of Big Transfer: their configuration and their builder."""

import dataclasses

import keras

from keras_vit import layers
from keras_vit.layers.residual import EXPANSION
from keras_vit.models import ends, fitting
from keras_vit.weights.loading import load_source

POOLING = (None, "avg", "max")


@dataclasses.dataclass(frozen=True)
class Config:
    """Numbers of a Big Transfer network.

    Attributes:
        stages: number of units of every stage.
        filters: channels inside the units of every stage; the stage gives four times as many.
        stem_width: channels of the first convolution.
        groups: of the GroupNorms.
        group_epsilon: of the GroupNorms.
        standardization: of the kernels, see `StandardizedConv2D`.
        image: native image size (height, width).
    """

    stages: tuple
    filters: tuple
    stem_width: int
    groups: int = 32
    group_epsilon: float = 1e-5
    standardization: str = "bit"
    image: tuple = (224, 224)

    @property
    def pixels(self):
        """Pixels of the image per pixel of the last feature map, along each side."""
        return 4 * 2 ** (len(self.stages) - 1)

    @property
    def width(self):
        """Channels of the last feature map."""
        return EXPANSION * self.filters[-1]


def build(
    variant,
    include_top=True,
    weights="imagenet",
    input_tensor=None,
    input_shape=None,
    pooling=None,
    classes=1000,
    classifier_activation="softmax",
    name=None,
    *,
    include_preprocessing=True,
    pretrained_top=True,
    dtype=None,
):
    """Arguments and their order are those of `keras.applications`.

    Shapes: input (B, H, W, C), 0..255 of any real dtype (see `include_preprocessing`); output
    (B, classes), or with `include_top=False` the feature map (B, H / 32, W / 32, D), rounded up,
    after the final norm and ReLU, or (B, D) with `pooling`. Scores and probabilities are float32
    under every dtype policy.

    Args:
        include_top: whether the model ends in its classification head.
        weights: None for random ones; a named set; a path or address of a checkpoint file
            (official .npz, timm .safetensors or .pth, .weights.h5, .keras); "hf://owner/name".
        input_tensor: Keras tensor to build on; the layers before it stay part of the model.
        input_shape: (H, W, C), H and W at least 32; None for either is a dynamic size. The default
            is the native size of the weights. With another C than 3 the first kernel of the weights
            is summed (1) or tiled (N).
        pooling: with `include_top=False`: None for the feature map, "avg" or "max" over it.
        classes: number of outputs.
        classifier_activation: "softmax", "sigmoid", None, or what `keras.activations.get` takes.
        name: of the model; also the beginning of its layers' names.
        include_preprocessing: whether the model normalises its input itself. If not, images go
            through the family's `preprocess_input(..., include_preprocessing=False)` before.
        pretrained_top: whether the head comes from the weights; if not it is new and zero, and
            `classes` is free.
        dtype: dtype or dtype policy of the layers; None for the global one.

    Returns:
        A functional `keras.Model` whose input is named "images".

    Raises:
        ValueError: an argument out of its range, or weights that do not fit.
    """
    label, name = variant.name, name or variant.model_name
    ends.check_arguments(label, classes, pooling=(pooling, POOLING))
    if input_tensor is not None and input_shape is None:
        input_shape = tuple(input_tensor.shape[1:])
    row, source = fitting.open_weights(variant, weights, include_top and pretrained_top)
    config = variant.config
    if source is not None:
        found = source.format.structure(source, None)
        fitting.check_architecture(variant, source, found)
        config = dataclasses.replace(config, **source.format.numerics(source).known())
        if row is not None:
            fitting.check_row(label, row, config, found)
        if include_top and pretrained_top:
            fitting.check_head(label, weights, source, found, classes)
    image = row.image if row is not None else config.image
    shape = ends.image_shape(label, input_shape, image)
    _check_size(label, shape, config.pixels)

    images = keras.Input(shape, name="images") if input_tensor is None else input_tensor
    x, prefix = images, f"{name}_"
    if include_preprocessing:
        statistics = fitting.statistics_of(variant, row, source)
        recipe = fitting.recipe_of(row, image)
        x = ends.normalized(x, statistics, recipe, f"{prefix}normalize", dtype)
    x = _encode(x, config, prefix, dtype)
    if include_top:
        x = _pooled(x, "avg", prefix, "float32")
        x = ends.head(x, classes, classifier_activation, prefix)
    elif pooling is not None:
        x = _pooled(x, pooling, prefix, dtype)
    inputs = images if input_tensor is None else keras.utils.get_source_inputs(input_tensor)
    model = keras.Model(inputs, x, name=name)
    if source is not None:
        load_source(model, source, new_head=include_top and not pretrained_top)
    return model


def _encode(x, config, prefix, dtype):
    """Images to the feature map (B, H / 32, W / 32, D) after the final norm and ReLU."""

    def layer(kind, *numbers, name, **options):
        return kind(*numbers, name=f"{prefix}{name}", dtype=dtype, **options)

    numerics = {"groups": config.groups, "epsilon": config.group_epsilon}
    # Padded by hand: at stride 2, "same" would pad one side less. The maximum sees the zeros.
    x = layer(keras.layers.ZeroPadding2D, 3, name="root_pad")(x)
    x = layer(
        layers.StandardizedConv2D,
        config.stem_width,
        7,
        strides=2,
        use_bias=False,
        standardization=config.standardization,
        kernel_initializer="lecun_normal",
        name="root_conv",
    )(x)
    x = layer(keras.layers.ZeroPadding2D, 1, name="root_pool_pad")(x)
    x = layer(keras.layers.MaxPooling2D, 3, 2, name="root_pool")(x)
    for i, (units, filters) in enumerate(zip(config.stages, config.filters, strict=True)):
        x = layer(
            layers.PreActivationStage,
            units,
            filters,
            1 if i == 0 else 2,
            standardization=config.standardization,
            name=f"stage_{i + 1}",
            **numerics,
        )(x)
    x = layer(layers.GroupNorm, name="norm", **numerics)(x)
    return layer(keras.layers.ReLU, name="relu")(x)


def _pooled(x, mode, prefix, dtype):
    pool = {"avg": keras.layers.GlobalAveragePooling2D, "max": keras.layers.GlobalMaxPooling2D}[
        mode
    ]
    return pool(name=f"{prefix}pool", dtype=dtype)(x)


def _check_size(label, shape, smallest):
    for side, n in zip(("height", "width"), shape[:2], strict=True):
        if n is not None and n < smallest:
            raise ValueError(
                f"{label}: the image {side} must be at least {smallest} pixels. "
                f"Received: {side}={n} in input_shape={shape}."
            )
