"""Small layers that read the token sequence."""

import keras
from keras import ops

from keras_vit.grids import grid_of


@keras.saving.register_keras_serializable(package="keras_vit")
class TakeToken(keras.layers.Layer):
    """Takes one token of the sequence: (B, N, D) -> (B, D).

    Args:
        index: position of the token; the class token is 0.
    """

    def __init__(self, index=0, **kwargs):
        super().__init__(**kwargs)
        self.index = index

    def call(self, inputs):
        return inputs[:, self.index]

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[2])

    def get_config(self):
        return {**super().get_config(), "index": self.index}


_REDUCTIONS = {
    "avg": lambda x: ops.mean(x, axis=1),
    "max": lambda x: ops.max(x, axis=1),
    "avgmax": lambda x: 0.5 * (ops.mean(x, axis=1) + ops.max(x, axis=1)),
}


@keras.saving.register_keras_serializable(package="keras_vit")
class PoolPatches(keras.layers.Layer):
    """Pools the patch tokens, without the prefix tokens: (B, prefix + N, D) -> (B, D).

    Args:
        mode: "avg", "max", or "avgmax" (the mean of both).
        prefix: number of leading tokens that are not patches.

    Raises:
        ValueError: unknown mode.
    """

    def __init__(self, mode="avg", prefix=1, **kwargs):
        super().__init__(**kwargs)
        if mode not in _REDUCTIONS:
            raise ValueError(
                f"Unknown pooling mode. Received: mode={mode!r}. Available: {sorted(_REDUCTIONS)}."
            )
        self.mode = mode
        self.prefix = prefix

    def call(self, inputs):
        patches = ops.cast(inputs[:, self.prefix :], "float32")  # sums of many tokens need float32
        return ops.cast(_REDUCTIONS[self.mode](patches), inputs.dtype)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[2])

    def get_config(self):
        return {**super().get_config(), "mode": self.mode, "prefix": self.prefix}


@keras.saving.register_keras_serializable(package="keras_vit")
class TokensToGrid(keras.layers.Layer):
    """Lays the patch tokens out as a feature map: (B, prefix + h * w, D) -> (B, h, w, D).

    Called as `layer(tokens, images)`; of the images only height and width are read.

    Args:
        patch_size: pixels of an image per grid cell.
        prefix: number of leading tokens that are not patches.
    """

    def __init__(self, patch_size, prefix=1, **kwargs):
        super().__init__(**kwargs)
        self.patch_size = patch_size
        self.prefix = prefix

    def call(self, tokens, images):
        shape = ops.shape(images)
        grid = grid_of(shape[1:3], self.patch_size)
        return ops.reshape(tokens[:, self.prefix :], (shape[0], *grid, tokens.shape[-1]))

    def compute_output_shape(self, tokens_shape, images_shape):
        return (tokens_shape[0], *grid_of(images_shape[1:3], self.patch_size), tokens_shape[2])

    def get_config(self):
        return {**super().get_config(), "patch_size": self.patch_size, "prefix": self.prefix}
