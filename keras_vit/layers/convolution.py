"""Convolutions with standardised kernels, and the normalization over groups of channels between them."""

import keras
from keras import ops

from keras_vit.layers.block import decoded, encoded

# The factor that gives a kernel unit variance, by the source of the weights.
STANDARDIZATIONS = {
    "google": lambda variance: 1.0 / (ops.sqrt(variance) + 1e-5),  # vit_jax
    "bit": lambda variance: ops.rsqrt(variance + 1e-10),  # bit_jax, bit_pytorch
    "timm": lambda variance: ops.rsqrt(variance + 1e-8),
}


@keras.saving.register_keras_serializable(package="keras_vit")
class StandardizedConv2D(keras.layers.Conv2D):
    """Convolution whose kernel has mean 0 and variance 1 for every filter.

    Mean and variance are taken over height, width and input channels, in float32 under every dtype
    policy. A file of this layer says which rule it was made with.

    Shapes: input (B, H, W, C); output (B, h, w, filters), as `keras.layers.Conv2D`.

    Args:
        filters: channels of the output.
        kernel_size: side of the kernel in pixels.
        standardization: where the epsilon stands, "google" (added to the deviation), "bit" or "timm"
            (added to the variance), see `STANDARDIZATIONS`.

    All other arguments are those of `keras.layers.Conv2D`.

    Raises:
        ValueError: unknown standardization.

    Source: Qiao et al. 2019 (arXiv:1903.10520); vit_jax/models_resnet.py, weight_standardize.
    """

    def __init__(self, filters, kernel_size, standardization="google", **kwargs):
        super().__init__(filters, kernel_size, **kwargs)
        if standardization not in STANDARDIZATIONS:
            raise ValueError(
                f"Unknown standardization. Received: standardization={standardization!r}. "
                f"Available: {', '.join(map(repr, STANDARDIZATIONS))}."
            )
        self.standardization = standardization

    def add_weight(self, *args, name=None, **kwargs):
        if name == "kernel":
            kwargs["autocast"] = False  # it is standardised in float32
        return super().add_weight(*args, name=name, **kwargs)

    def convolution_op(self, inputs, kernel):
        return super().convolution_op(inputs, ops.cast(self._standardized(kernel), inputs.dtype))

    def _standardized(self, kernel):
        kernel = ops.cast(kernel, "float32")
        mean, variance = ops.moments(kernel, axes=(0, 1, 2), keepdims=True)
        return (kernel - mean) * STANDARDIZATIONS[self.standardization](variance)

    def save_own_variables(self, store):
        super().save_own_variables(store)
        store["standardization"] = encoded(self.standardization)

    def load_own_variables(self, store):
        values = _without_numerics(self, store, "standardization", self.standardization)
        super().load_own_variables(values)

    def get_config(self):
        return {**super().get_config(), "standardization": self.standardization}


@keras.saving.register_keras_serializable(package="keras_vit")
class GroupNorm(keras.layers.GroupNormalization):
    """`keras.layers.GroupNormalization` of images, computed in the way that is fastest on a CPU.

    Mean and mean square are taken of every channel, then of every group, in float32 under every
    dtype policy; what remains is one factor and one summand a channel. A file of this layer says
    which epsilon it was made with.

    Shapes: input (B, H, W, C); output the same.

    Args:
        groups: number of groups of neighbouring channels; must divide C.
        epsilon: added to the variance.

    `axis`, `center` and `scale` of `keras.layers.GroupNormalization` keep their defaults.

    Weights: gamma, beta (C,).
    Source: Wu & He 2018 (arXiv:1803.08494); the variance as in flax.linen.GroupNorm.
    """

    def call(self, inputs):
        x = ops.cast(inputs, "float32")
        mean, square = (self._of_groups(ops.mean(y, axis=(1, 2))) for y in (x, ops.square(x)))
        variance = ops.maximum(square - ops.square(mean), 0.0)
        factor = self.gamma * ops.rsqrt(variance + self.epsilon)  # (B, C)
        summand = self.beta - mean * factor
        x = x * factor[:, None, None] + summand[:, None, None]
        return ops.cast(x, self.compute_dtype)

    def _of_groups(self, values):
        """Means over the channels of every group, for every channel: (B, C) -> (B, C)."""
        channels = values.shape[-1]
        size = channels // self.groups
        means = ops.mean(ops.reshape(values, (-1, self.groups, size)), axis=-1)
        return ops.repeat(means, size, axis=-1)

    def save_own_variables(self, store):
        super().save_own_variables(store)
        store["epsilon"] = encoded(str(self.epsilon))

    def load_own_variables(self, store):
        super().load_own_variables(_without_numerics(self, store, "epsilon", str(self.epsilon)))


def _without_numerics(layer, store, name, ours):
    """What a layer's file holds besides its numerics.

    Raises:
        ValueError: the numerics are others than the layer's.
    """
    values = {key: store[key] for key in store.keys()}
    theirs = decoded(values.pop(name))
    if theirs != ours:
        raise ValueError(
            f"{layer.name}: the file was written by a model with {name}={theirs}, "
            f"this one has {name}={ours}. Build the model with weights=<that file>."
        )
    return values
