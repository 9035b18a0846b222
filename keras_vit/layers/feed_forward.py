"""Feed-forward networks of the encoder blocks, and their activations."""

import math

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vit")
def gelu(x):
    """Exact GELU, x * Phi(x), written with `ops.erf`.

    TensorFlow's own GELU is made of `Erfc`, which ONNX converters do not know.
    Source: Hendrycks and Gimpel 2016; the form that timm, DeiT and DINOv2 use.
    """
    return 0.5 * x * (1.0 + ops.erf(x * (1.0 / math.sqrt(2.0))))


@keras.saving.register_keras_serializable(package="keras_vit")
def gelu_tanh(x):
    """Tanh approximation of GELU, at most 4.8e-4 from the exact one.

    Source: flax.linen.gelu's default, hence the form of vit_jax and big_vision.
    """
    return 0.5 * x * (1.0 + ops.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


ACTIVATIONS = {"gelu": gelu, "gelu_tanh": gelu_tanh}


def activation_function(name):
    """Returns the activation called `name`, or raises ValueError listing the known names."""
    if name not in ACTIVATIONS:
        raise ValueError(
            f"Unknown activation. Received: activation={name!r}. Available: {sorted(ACTIVATIONS)}."
        )
    return ACTIVATIONS[name]


def _dense(units, name, dtype):
    return keras.layers.Dense(
        units,
        kernel_initializer="glorot_uniform",
        bias_initializer=keras.initializers.RandomNormal(stddev=1e-6),
        dtype=dtype,
        name=name,
    )


@keras.saving.register_keras_serializable(package="keras_vit")
class Mlp(keras.layers.Layer):
    """Two dense layers with a GELU between them.

    Shapes: input and output (B, N, D).

    Args:
        hidden: width of the hidden layer.
        activation: "gelu" (exact) or "gelu_tanh".
        dropout: rate after the activation and after the second layer, in [0, 1).

    Weights: hidden (D, hidden) and output (hidden, D), each with a bias.
    Source: ViT paper, section 3.1; vit_jax/models_vit.py, MlpBlock.
    """

    def __init__(self, hidden, activation="gelu", dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.hidden_units = hidden
        self.activation = activation
        self.dropout_rate = dropout
        self._activate = activation_function(activation)
        self.hidden = _dense(hidden, "hidden", self.dtype_policy)
        self.output_dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self.hidden_dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def build(self, input_shape):
        self.projection = _dense(input_shape[-1], "output", self.dtype_policy)
        hidden_shape = (*input_shape[:-1], self.hidden_units)
        self.hidden.build(input_shape)
        self.hidden_dropout.build(hidden_shape)
        self.projection.build(hidden_shape)
        self.output_dropout.build(input_shape)

    def call(self, inputs, training=None):
        shape = ops.shape(inputs)
        # TensorFlow fuses bias and GELU into products of matrices, not of rank 3.
        x = ops.reshape(inputs, (-1, shape[-1]))  # (B * N, D)
        x = self._activate(self.hidden(x))  # (B * N, hidden)
        x = self.hidden_dropout(x, training=training)
        x = ops.reshape(self.projection(x), shape)  # (B, N, D)
        return self.output_dropout(x, training=training)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "hidden": self.hidden_units,
            "activation": self.activation,
            "dropout": self.dropout_rate,
        }


@keras.saving.register_keras_serializable(package="keras_vit")
class SwiGLU(keras.layers.Layer):
    """Gated feed-forward network: output(silu(gate(x)) * value(x)).

    Shapes: input and output (B, N, D).

    Args:
        hidden: width of the gate and of the value.
        dropout: rate after the last layer, in [0, 1).

    Weights: gate and value (D, hidden), output (hidden, D), each with a bias.
    Source: Shazeer 2020; dinov2/layers/swiglu_ffn.py.
    """

    activation = "silu"

    def __init__(self, hidden, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.hidden_units = hidden
        self.dropout_rate = dropout
        self.gate = _dense(hidden, "gate", self.dtype_policy)
        self.value = _dense(hidden, "value", self.dtype_policy)
        self.output_dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def build(self, input_shape):
        self.projection = _dense(input_shape[-1], "output", self.dtype_policy)
        self.gate.build(input_shape)
        self.value.build(input_shape)
        self.projection.build((*input_shape[:-1], self.hidden_units))
        self.output_dropout.build(input_shape)

    def call(self, inputs, training=None):
        x = ops.silu(self.gate(inputs)) * self.value(inputs)  # (B, N, hidden)
        return self.output_dropout(self.projection(x), training=training)  # (B, N, D)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "hidden": self.hidden_units, "dropout": self.dropout_rate}
