"""What an image may pass before it is cut into patches."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vit")
class ConvStem(keras.layers.Layer):
    """Convolution 7x7 with stride 2 and convolution 3x3, each with a BatchNormalization and ReLU.

    Shapes: input (B, H, W, C); output (B, ceil(H / 2), ceil(W / 2), filters).

    Args:
        filters: channels of both convolutions.

    Weights: conv_1 kernel (7, 7, C, filters), conv_2 kernel (3, 3, filters, filters); norm_1 and
        norm_2 with gamma, beta, moving_mean, moving_variance (filters,).
    Source: dvit_repo models/layers.py, PatchEmbed_CNN.
    """

    def __init__(self, filters=64, **kwargs):
        super().__init__(**kwargs)
        self.filters = filters
        # uniform up to 1 / sqrt(fan_in)
        initializer = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")
        self.conv_1, self.conv_2 = (
            keras.layers.Conv2D(
                filters,
                size,
                strides=stride,
                use_bias=False,
                kernel_initializer=initializer,
                data_format="channels_last",
                dtype=self.dtype_policy,
                name=name,
            )
            for name, size, stride in (("conv_1", 7, 2), ("conv_2", 3, 1))
        )
        self.norm_1, self.norm_2 = (
            keras.layers.BatchNormalization(
                momentum=0.9, epsilon=1e-5, dtype=self.dtype_policy, name=name
            )
            for name in ("norm_1", "norm_2")
        )

    def build(self, input_shape):
        inner_shape = (None, None, None, self.filters)
        self.conv_1.build((None, None, None, input_shape[-1]))
        for layer in (self.norm_1, self.conv_2, self.norm_2):
            layer.build(inner_shape)

    def call(self, images, training=None):
        # Padded by hand: at stride 2, "same" would pad one side less.
        x = self.conv_1(padded(images, 3))  # (B, H / 2, W / 2, filters)
        x = ops.relu(self.norm_1(x, training=training))
        x = self.conv_2(padded(x, 1))
        return ops.relu(self.norm_2(x, training=training))

    def compute_output_shape(self, input_shape):
        batch, *size, _ = input_shape
        return (batch, *(None if n is None else (n + 1) // 2 for n in size), self.filters)

    def get_config(self):
        return {**super().get_config(), "filters": self.filters}


def padded(x, margin):
    """Images with `margin` pixels of zeros on every side."""
    return ops.pad(x, [[0, 0], [margin, margin], [margin, margin], [0, 0]])
