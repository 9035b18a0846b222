"""The plain encoder: its configuration, and the one functional-API builder of every family on it."""

import dataclasses
from collections.abc import Callable

import keras

from keras_vit import layers, registry
from keras_vit.grids import check_size
from keras_vit.layers.patches import POSITIONS
from keras_vit.layers.regularization import check_rate
from keras_vit.models import ends, fitting
from keras_vit.weights.loading import load_source


def self_attention(config, use_bias=True, query_key_norm=False, **kwargs):
    """The usual attention of a block."""
    epsilon = config.epsilon if query_key_norm else None
    return layers.MultiHeadSelfAttention(
        config.heads, use_bias=use_bias, query_key_epsilon=epsilon, **kwargs
    )


def re_attention(config, scale=1.0, **kwargs):
    """The attention of DeepViT: the heads' maps are mixed and normalised."""
    return layers.ReAttention(
        config.heads, normalization=config.attention_normalization, scale=scale, **kwargs
    )


def gelu_mlp(config, **kwargs):
    """The usual feed-forward network of a block."""
    return layers.Mlp(config.mlp, activation=config.activation, **kwargs)


def swiglu(config, **kwargs):
    """The gated feed-forward network of the largest DINOv2."""
    return layers.SwiGLU(config.mlp, **kwargs)


def conv_stem(x, parts):
    """The convolutions before the patches of DeepViT-S and -L, with stride 2."""
    return layers.ConvStem(name=parts.name("stem"), dtype=parts.dtype)(x)


def residual_stem(x, parts):
    """The residual network before the patches of the hybrids."""
    config = parts.config
    numerics = {
        "groups": config.groups,
        "epsilon": config.group_epsilon,
        "standardization": config.standardization,
        "dtype": parts.dtype,
    }
    x = layers.StandardizedConv2D(
        config.stem_width,
        7,
        strides=2,
        padding="same",
        use_bias=False,
        standardization=config.standardization,
        kernel_initializer="lecun_normal",
        name=parts.name("root_conv"),
        dtype=parts.dtype,
    )(x)
    x = layers.GroupNorm(
        config.groups, epsilon=config.group_epsilon, name=parts.name("root_norm"), dtype=parts.dtype
    )(x)
    x = keras.layers.ReLU(name=parts.name("root_relu"), dtype=parts.dtype)(x)
    x = keras.layers.MaxPooling2D(3, 2, "same", name=parts.name("root_pool"), dtype=parts.dtype)(x)
    for i, units in enumerate(config.stages):
        stage = layers.ResidualStage(
            units,
            config.stem_width * 2**i,
            stride=1 if i == 0 else 2,
            **numerics,
            name=parts.name(f"stage_{i + 1}"),
        )
        x = stage(x)
    return x


def runs(*pairs):
    """Parts that change over depth: `runs((self_attention, 11), (re_attention, 5))`, 16 blocks."""
    return tuple(part for part, count in pairs for _ in range(count))


@dataclasses.dataclass(frozen=True)
class Config:
    """Numbers and parts of a plain encoder.

    Attributes:
        patch: side of a patch in pixels of the image, or of the feature map that `stem` makes.
        width: of the tokens.
        depth: number of blocks.
        heads: per block.
        mlp: hidden width of the feed-forward networks.
        image: native image size (height, width).
        tokens: names of the learned tokens before the patches.
        registers: number of register tokens.
        positions: see `PatchEncoder`.
        positioned_tokens: see `PatchEncoder`.
        classifier: what the head reads, a key of `CLASSIFIERS`.
        representation_size: width of the tanh layer before the head, or None.
        layer_scale: initial value, or None.
        epsilon: of the LayerNormalizations.
        activation: form of the GELU.
        resampling: rule for other grids.
        scale_adjustment: see `TransformerBlock`.
        attention_normalization: of the mixed maps, see `ReAttention`.
        stages: units of every stage of a `residual_stem`, which has stride 2 each after the first;
            None for a model without such a stem.
        stem_width: channels after the root of a `residual_stem`, and inside the units of its first
            stage; they double from stage to stage.
        groups: of the GroupNorms of a `residual_stem`.
        group_epsilon: of the GroupNorms.
        standardization: of the kernels of a `residual_stem`, see `StandardizedConv2D`.
        stem_stride: pixels of the image per pixel of the feature map.
        stem: part, function (images, parts) -> feature map (B, H / stem_stride, W / stem_stride, C);
            None for none.
        attention: part, function (config, dropout, output_dropout, name, dtype) -> layer; or one
            for every block, see `runs`.
        feed_forward: part, function (config, dropout, name, dtype) -> layer.

    Raises:
        ValueError: attention for another number of blocks than `depth`.
    """

    patch: int
    width: int
    depth: int
    heads: int
    mlp: int
    image: tuple = (224, 224)
    tokens: tuple = ("class",)
    registers: int = 0
    positions: str = "learned-1d"
    positioned_tokens: int | None = None
    classifier: str = "token"
    representation_size: int | None = None
    layer_scale: float | None = None
    epsilon: float = 1e-6
    activation: str = "gelu_tanh"
    resampling: str = "google"
    scale_adjustment: float | None = None
    attention_normalization: str = "batch"
    stages: tuple | None = None
    stem_width: int = 64
    groups: int = 32
    group_epsilon: float = 1e-6
    standardization: str = "google"
    stem_stride: int = 1
    stem: Callable | None = None
    attention: Callable | tuple = self_attention
    feed_forward: Callable = gelu_mlp

    def __post_init__(self):
        if isinstance(self.attention, tuple) and len(self.attention) != self.depth:
            raise ValueError(
                "attention must be one part, or one for every block. "
                f"Received: depth={self.depth}, attention for {len(self.attention)} blocks."
            )

    @property
    def pixels(self):
        """Side of a patch in pixels of the image."""
        return self.patch * self.stem_stride

    def attention_of(self, block):
        """The part of one block."""
        return self.attention[block] if isinstance(self.attention, tuple) else self.attention

    @property
    def prefix(self):
        """Number of tokens before the patches."""
        return len(self.tokens) + self.registers


# What the head reads. Each entry: (encoder outputs, parts) -> (B, features).
#   outputs: tokens after every block, before the final norm
#   parts: `_Parts`, which makes the layers


def _token(outputs, parts):
    return layers.TakeToken(name=parts.name("token"))(parts.normalized(outputs[-1]))


def _gap(outputs, parts):
    return parts.pool("avg")(parts.normalized(outputs[-1]))


def _norm_after(mode):
    def classifier(outputs, parts):
        return parts.norm("fc_norm")(parts.pool(mode)(outputs[-1]))

    return classifier


def _map(outputs, parts):
    return parts.map_pooling()(parts.normalized(outputs[-1]))


def _linear(count):
    def classifier(outputs, parts):
        if len(outputs) < count:
            raise ValueError(
                f"classifier='linear{count}' reads the last {count} blocks. "
                f"Received: a model of {len(outputs)} blocks."
            )
        norm = parts.norm("encoder_norm")
        normalized = [norm(tokens) for tokens in outputs[-count:]]
        tokens = [
            layers.TakeToken(name=parts.name(f"token_{k}"))(tokens)
            for k, tokens in enumerate(normalized)
        ]
        features = [*tokens, parts.pool("avg")(normalized[-1])]
        return keras.layers.Concatenate(name=parts.name("features"), dtype=parts.dtype)(features)

    return classifier


CLASSIFIERS = {
    "token": _token,  # the class token after the final norm
    "gap": _gap,  # mean of the patch tokens after the final norm (Google)
    "avg": _norm_after("avg"),  # mean of the patch tokens, then a norm (timm)
    "avgmax": _norm_after("avgmax"),  # mean of average and maximum, then a norm (timm)
    "map": _map,  # attention pooling after the final norm
    "linear": _linear(1),  # class token and mean of the patch tokens (DINOv2)
    "linear4": _linear(
        4
    ),  # class tokens of the last four blocks, mean of the patch tokens (DINOv2)
}
NORM_AFTER_POOLING = ("avg", "avgmax")
WITHOUT_TOKEN = ("gap", "avg", "avgmax", "map")
POOLING = (None, "token", "avg", "max", "map")


@dataclasses.dataclass(frozen=True)
class _Parts:
    """Makes the layers after the blocks, under the names of the model."""

    config: Config
    prefix: str
    dtype: object

    def name(self, name):
        return self.prefix + name

    def norm(self, name):
        return keras.layers.LayerNormalization(
            epsilon=self.config.epsilon, name=self.name(name), dtype=self.dtype
        )

    def normalized(self, tokens):
        return self.norm("encoder_norm")(tokens)

    def pool(self, mode):
        return layers.PoolPatches(
            mode, self.config.prefix, name=self.name("pool"), dtype=self.dtype
        )

    def map_pooling(self):
        mlp = gelu_mlp(self.config, name="mlp", dtype=self.dtype)
        return layers.AttentionPooling(
            self.config.heads,
            mlp,
            epsilon=self.config.epsilon,
            name=self.name("map_pooling"),
            dtype=self.dtype,
        )


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
    classifier=None,
    representation_size=None,
    positions=None,
    dropout_rate=0.0,
    attention_dropout_rate=0.0,
    drop_path_rate=0.0,
    patch_dropout_rate=0.0,
    gradient_checkpointing=False,
    dtype=None,
):
    """Arguments and their order are those of `keras.applications`.

    Shapes: input (B, H, W, C), 0..255 of any real dtype (see `include_preprocessing`); output
    (B, classes), or with `include_top=False` the tokens (B, N, width) after the final norm, or
    (B, width) with `pooling`. Scores and probabilities are float32 under every dtype policy.

    Args:
        include_top: whether the model ends in its classification head.
        weights: None for random ones; a named set; a path or address of a checkpoint file
            (official .npz, timm / transformers / DINOv2 .safetensors or .pth, .weights.h5, .keras);
            "hf://owner/name".
        input_tensor: Keras tensor to build on; the layers before it stay part of the model.
        input_shape: (H, W, C). H and W must be multiples of the patch size; None for either is a
            dynamic size. The default is the native size of the weights. With another C than 3 the
            patch kernel of the weights is summed (1) or tiled and rescaled.
        pooling: with `include_top=False`: None for all tokens, "token" for the class token, "avg" or
            "max" over the patch tokens, "map" for the attention pooling of the weights.
        classes: number of outputs.
        classifier_activation: "softmax", "sigmoid", None, or what `keras.activations.get` takes.
        name: of the model; also the beginning of its layers' names.
        include_preprocessing: whether the model normalises its input itself. If not, images go
            through the family's `preprocess_input(..., include_preprocessing=False)` before.
        pretrained_top: whether the head comes from the weights; if not it is new and zero, as the
            paper fine-tunes, and `classes` is free.
        classifier: what the head reads: "token", "gap", "avg", "avgmax", "map", "linear", "linear4"
            (see `keras_vit.models.plain.CLASSIFIERS`); None for what the weights have, else "token".
        representation_size: width of a tanh layer before the head; None for what the weights have.
        positions: "learned-1d", "learned-2d", "sincos-2d" or "none"; None for what the weights have.
        dropout_rate: after the positions, the attention projection and the layers of the MLP.
        attention_dropout_rate: on the attention probabilities.
        drop_path_rate: stochastic depth of the last block; it grows linearly from 0.
        patch_dropout_rate: share of the patch tokens dropped in training.
        gradient_checkpointing: recompute each block in the backward pass to save memory.
        dtype: dtype or dtype policy of the layers; None for the global one.

    Returns:
        A functional `keras.Model` whose input is named "images".

    Raises:
        ValueError: an argument out of its range, or weights that do not fit.
    """
    label = variant.name
    name = name or variant.model_name
    ends.check_arguments(
        label,
        classes,
        pooling=(pooling, POOLING),
        classifier=(classifier, (None, *CLASSIFIERS)),
        positions=(positions, (None, *POSITIONS)),
    )
    rates = _Rates(dropout_rate, attention_dropout_rate, drop_path_rate, patch_dropout_rate)
    rates.check(label)
    if input_tensor is not None and input_shape is None:
        input_shape = tuple(input_tensor.shape[1:])
    chosen = {
        "classifier": classifier,
        "representation_size": representation_size,
        "positions": positions,
    }
    row, source = fitting.open_weights(variant, weights, include_top and pretrained_top)
    found = {}
    config = variant.config
    if source is not None:
        found = source.format.structure(source, fitting.grid_of(config, input_shape))
        config = fitting.fitted(variant, source, found)
        if row is not None:
            fitting.check_row(label, row, config, found)
        if include_top:
            fitting.refuse_contradictions(label, source, found, chosen, pretrained_top)
            if pretrained_top:
                fitting.check_head(label, weights, source, found, classes)
    elif classifier in WITHOUT_TOKEN:
        config = dataclasses.replace(config, tokens=())  # nothing would read the class token
    if not include_top or not pretrained_top:
        config = dataclasses.replace(config, representation_size=None)
    config = dataclasses.replace(config, **{k: v for k, v in chosen.items() if v is not None})
    image = row.image if row is not None else fitting.native_image(config, found, input_shape)
    shape = ends.image_shape(label, input_shape, image)
    check_size(shape[:2], config.pixels, f"{label}: input_shape={shape}")

    images = keras.Input(shape, name="images") if input_tensor is None else input_tensor
    parts = _Parts(config, f"{name}_", dtype)
    x = images
    if include_preprocessing:
        statistics = fitting.statistics_of(variant, row, source)
        recipe = fitting.recipe_of(row, image)
        x = ends.normalized(x, statistics, recipe, parts.name("normalize"), dtype)
    table_image = image if None in shape[:2] else shape[:2]
    grid = (table_image[0] // config.pixels, table_image[1] // config.pixels)
    outputs = _encode(x, parts, grid, rates, gradient_checkpointing)
    if include_top:
        x = CLASSIFIERS[config.classifier](outputs, parts)
        x = _head(x, parts, classes, classifier_activation)
    else:
        x = _features(label, outputs, parts, pooling)
    inputs = images if input_tensor is None else keras.utils.get_source_inputs(input_tensor)
    model = keras.Model(inputs, x, name=name)
    if source is not None:
        load_source(model, source, new_head=include_top and not pretrained_top)
    return model


def model(config, name="vit", **arguments):
    """A model of numbers that no registered one has.

        small = keras_vit.registry.get_variant("ViT_S16").config
        plain.model(dataclasses.replace(small, depth=8, width=256, heads=8, mlp=1024), classes=10)

    Args:
        config: a `Config`.
        name: of the model.
        arguments: those of the registered models, see `build`; `weights` is None or a file.

    Returns:
        A functional `keras.Model`.

    Raises:
        ValueError: as `build`.
    """
    variant = registry.Variant(
        name,
        family="plain",
        config=config,
        parameters=None,
        counted="",
        weights=(),
        default=None,
        classes=1000,
        statistics="half",
        build=build,
    )
    return build(variant, **{"weights": None, **arguments})


@dataclasses.dataclass(frozen=True)
class _Rates:
    """Dropout rates, each in [0, 1)."""

    dropout_rate: float
    attention_dropout_rate: float
    drop_path_rate: float
    patch_dropout_rate: float

    def check(self, label):
        for name, rate in dataclasses.asdict(self).items():
            check_rate(rate, name, label)


def _encode(x, parts, grid, rates, gradient_checkpointing):
    """Images to the tokens after every block, a list of (B, N, D)."""
    config, dtype = parts.config, parts.dtype
    if config.stem is not None:
        x = config.stem(x, parts)
    patches = layers.Patches(config.patch, name=parts.name("patches"), dtype=dtype)(x)
    encoder = layers.PatchEncoder(
        config.width,
        grid,
        tokens=config.tokens,
        registers=config.registers,
        positions=config.positions,
        positioned_tokens=config.positioned_tokens,
        resampling=config.resampling,
        dropout=rates.dropout_rate,
        name=parts.name("patch_encoder"),
        dtype=dtype,
    )
    x = encoder(patches) if patches.shape[1] is not None else encoder(patches, x)
    if rates.patch_dropout_rate:
        x = layers.PatchDropout(
            rates.patch_dropout_rate, config.prefix, name=parts.name("patch_dropout"), dtype=dtype
        )(x)
    outputs = []
    for i in range(config.depth):
        attention = config.attention_of(i)(
            config,
            dropout=rates.attention_dropout_rate,
            output_dropout=rates.dropout_rate,
            name="attention",
            dtype=dtype,
        )
        mlp = config.feed_forward(config, dropout=rates.dropout_rate, name="mlp", dtype=dtype)
        block = layers.TransformerBlock(
            attention,
            mlp,
            layer_scale=config.layer_scale,
            epsilon=config.epsilon,
            drop_path=rates.drop_path_rate * i / max(1, config.depth - 1),
            gradient_checkpointing=gradient_checkpointing,
            scale_adjustment=config.scale_adjustment,
            name=parts.name(f"block_{i}"),
            dtype=dtype,
        )
        x = block(x)
        outputs.append(x)
    return outputs


def _head(x, parts, classes, activation):
    if parts.config.representation_size:
        x = keras.layers.Dense(
            parts.config.representation_size,
            activation="tanh",
            kernel_initializer="lecun_normal",
            name=parts.name("pre_logits"),
            dtype=parts.dtype,
        )(x)
    return ends.head(x, classes, activation, parts.prefix)


def _features(label, outputs, parts, pooling):
    """The output of a model without a head."""
    config = parts.config
    if pooling == "token" and not config.tokens:
        raise ValueError(
            f"{label}: pooling='token' needs a class token, which these weights do not have. "
            "Take pooling='avg'."
        )
    if pooling == "map":
        return CLASSIFIERS["map"](outputs, parts)
    after = config.classifier in NORM_AFTER_POOLING
    x = outputs[-1] if after else parts.normalized(outputs[-1])
    if pooling is None:
        return x
    if pooling == "token":
        x = layers.TakeToken(name=parts.name("token"), dtype=parts.dtype)(x)
    else:
        x = parts.pool(pooling)(x)
    return parts.norm("fc_norm")(x) if after else x
