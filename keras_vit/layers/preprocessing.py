"""The normalisation that a model carries."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vit")
class Normalize(keras.layers.Layer):
    """Normalises images of the range 0..255 by (x / 255 - mean) / std, in float32.

    Shapes: input (B, H, W, C) of any real dtype; output the same, float32 or the layer's dtype.

    Args:
        mean: a number per colour, in the range 0..1.
        std: a number per colour.
        recipe: how the evaluation resizes and crops, kept for whoever prepares images: a dict of
            `keras_vit.preprocessing.Recipe` fields, or None.

    One channel takes the mean of the colours' numbers; other counts repeat them in turn.
    """

    def __init__(self, mean, std, recipe=None, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.mean = tuple(mean)
        self.std = tuple(std)
        self.recipe = recipe

    def build(self, input_shape):
        channels = input_shape[-1]

        def fitted(values):
            if channels == 1:
                return [sum(values) / len(values)]
            return [values[c % len(values)] for c in range(channels)]

        mean, std = fitted(self.mean), fitted(self.std)
        self._scale = [1.0 / (255.0 * s) for s in std]
        self._offset = [-m / s for m, s in zip(mean, std, strict=True)]

    def call(self, images):
        x = ops.cast(images, "float32")
        x = x * ops.convert_to_tensor(self._scale, "float32")
        x = x + ops.convert_to_tensor(self._offset, "float32")
        return ops.cast(x, self.compute_dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "mean": list(self.mean),
            "std": list(self.std),
            "recipe": self.recipe,
        }
