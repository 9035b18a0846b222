"""Stochastic depth, patch dropout and LayerScale."""

import keras
from keras import ops


def check_rate(rate, name, owner):
    """Raises ValueError unless 0 <= rate < 1."""
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"{owner}: {name} must be in [0, 1). Received: {name}={rate}.")


@keras.saving.register_keras_serializable(package="keras_vit")
class DropPath(keras.layers.Layer):
    """Stochastic depth: drops a residual branch for whole samples and scales the others by 1 / (1 - rate).

    Shapes: input and output (B, ...). Inactive unless `training` is true.

    Args:
        rate: probability of dropping a sample, in [0, 1).
        seed: int or None.

    Source: Huang et al. 2016; timm/layers/drop.py.
    """

    def __init__(self, rate, seed=None, **kwargs):
        super().__init__(**kwargs)
        check_rate(rate, "rate", self.name)
        self.rate = rate
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def call(self, inputs, training=None):
        if not training or self.rate == 0.0:
            return inputs
        shape = (ops.shape(inputs)[0],) + (1,) * (len(inputs.shape) - 1)
        keep = keras.random.uniform(shape, seed=self.seed_generator) >= self.rate  # (B, 1, ...)
        return inputs * ops.cast(keep, inputs.dtype) / (1.0 - self.rate)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchDropout(keras.layers.Layer):
    """Keeps a random subset of the patch tokens of every sample, in their order; prefix tokens always stay.

    Shapes: input (B, prefix + N, D); output (B, prefix + K, D) with K = max(1, floor(N * (1 - rate)))
    in training, the input itself otherwise.

    Args:
        rate: share of the patches to drop, in [0, 1).
        prefix: number of leading tokens that are not patches.
        seed: int or None.

    Raises:
        ValueError: the number of tokens is not known when the layer is built.

    Source: Liu et al. 2022 (PatchDropout); timm/layers/patch_dropout.py.
    """

    def __init__(self, rate, prefix=1, seed=None, **kwargs):
        super().__init__(**kwargs)
        check_rate(rate, "rate", self.name)
        self.rate = rate
        self.prefix = prefix
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, input_shape):
        if self.rate and input_shape[1] is None:
            raise ValueError(
                "Patch dropout needs a static image size. Received: tokens of shape "
                f"{tuple(input_shape)}. Give input_shape with height and width, or patch_dropout_rate=0."
            )

    def call(self, inputs, training=None):
        if not training or self.rate == 0.0:
            return inputs
        patches = inputs.shape[1] - self.prefix
        keep = max(1, int(patches * (1.0 - self.rate)))
        noise = keras.random.uniform((ops.shape(inputs)[0], patches), seed=self.seed_generator)
        index = ops.sort(ops.argsort(noise, axis=1)[:, :keep], axis=1)  # (B, K)
        index = ops.expand_dims(index + self.prefix, -1)
        kept = ops.take_along_axis(inputs, index, axis=1)  # (B, K, D)
        return ops.concatenate([inputs[:, : self.prefix], kept], axis=1)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], None if self.rate else input_shape[1], input_shape[2])

    def get_config(self):
        return {**super().get_config(), "rate": self.rate, "prefix": self.prefix, "seed": self.seed}


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerScale(keras.layers.Layer):
    """Multiplies every channel by a learnable factor.

    Shapes: input and output (B, N, D).

    Args:
        initial: initial value of the factors.

    Weights: gamma (D,).
    Source: CaiT (Touvron et al. 2021), section 3.1.
    """

    def __init__(self, initial=1e-5, **kwargs):
        super().__init__(**kwargs)
        self.initial = initial

    def build(self, input_shape):
        self.gamma = self.add_weight(
            shape=(input_shape[-1],),
            initializer=keras.initializers.Constant(self.initial),
            name="gamma",
        )

    def call(self, inputs):
        return inputs * ops.cast(self.gamma, inputs.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "initial": self.initial}
