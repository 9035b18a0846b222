"""The pre-norm encoder block."""

import keras
import numpy as np

from keras_vit.layers.attention import serialize_part
from keras_vit.layers.quantized import QuantizedParts
from keras_vit.layers.regularization import DropPath, LayerScale


@keras.saving.register_keras_serializable(package="keras_vit")
class TransformerBlock(QuantizedParts):
    """Pre-norm encoder block that receives its parts.

        x = x + drop_path(layer_scale(attention(norm(x))))
        x = x + drop_path(layer_scale(mlp(norm(x))))

    With a `scale_adjustment` s it is norm(s * x), and what is added is divided by s.

    Shapes: input (B, N, D); output (B, N, D); with `return_attention=True` also the attention map
    (B, heads, N, N).

    Args:
        attention: layer (B, N, D) -> (B, N, D), for example `MultiHeadSelfAttention`.
        mlp: layer (B, N, D) -> (B, N, D), for example `Mlp` or `SwiGLU`.
        layer_scale: initial value of the `LayerScale` of both branches; None for none.
        drop_path: stochastic-depth rate of both branches, in [0, 1).
        epsilon: of both LayerNormalizations.
        gradient_checkpointing: recompute the block in the backward pass instead of keeping its
            activations.
        scale_adjustment: the number s, or None for none.

    Source: ViT paper, equations 2 and 3; scale adjustment: dvit_repo models/layers.py.
    """

    def __init__(
        self,
        attention,
        mlp,
        layer_scale=None,
        drop_path=0.0,
        epsilon=1e-6,
        gradient_checkpointing=False,
        scale_adjustment=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.attention = attention
        self.mlp = mlp
        self.layer_scale = layer_scale
        self.drop_path_rate = drop_path
        self.epsilon = epsilon
        self.gradient_checkpointing = gradient_checkpointing
        self.scale_adjustment = scale_adjustment
        self.attention_norm, self.mlp_norm = (
            keras.layers.LayerNormalization(epsilon=epsilon, dtype=self.dtype_policy, name=name)
            for name in ("attention_norm", "mlp_norm")
        )
        if layer_scale is not None:
            self.attention_scale, self.mlp_scale = (
                LayerScale(layer_scale, dtype=self.dtype_policy, name=name)
                for name in ("attention_scale", "mlp_scale")
            )
        self.drop_path = DropPath(drop_path, dtype=self.dtype_policy)

    def build(self, input_shape):
        for layer in (self.attention_norm, self.attention, self.mlp_norm, self.mlp, self.drop_path):
            if not layer.built:
                layer.build(input_shape)
        if self.layer_scale is not None:
            self.attention_scale.build(input_shape)
            self.mlp_scale.build(input_shape)

    def call(self, inputs, training=None, return_attention=False):
        if return_attention:
            x = self._normalized(inputs, self.attention_norm)
            branch, attention = self.attention(x, training=training, return_attention=True)
            return self._rest(inputs, branch, training), attention
        if self.gradient_checkpointing and training:
            return self._checkpointed(inputs)
        return self._forward(inputs, training)

    def probabilities(self, inputs):
        """The softmax of the attention (B, heads, N, N), before dropout and mixing; rows sum to 1.

        Args:
            inputs: tokens (B, N, D), with values: not a symbolic Keras tensor.
        """
        return self.attention.probabilities(self._normalized(inputs, self.attention_norm))

    def _forward(self, inputs, training):
        x = self._normalized(inputs, self.attention_norm)
        branch = self.attention(x, training=training)
        return self._rest(inputs, branch, training)

    def _checkpointed(self, inputs):
        """`_forward` in training, recomputed in the backward pass with the same random numbers.

        For that the states of random generators and moving statistics go in as values and come out
        as outputs.
        """
        weights = self.trainable_variables
        # A frozen weight is cast for the computation, and must not be written back like that.
        cast = self.compute_dtype if self.compute_dtype != self.variable_dtype else None
        others = [v for v in self.non_trainable_variables if v.dtype != cast]
        states = [v.value * 1 for v in others]  # copies: under TensorFlow they are the variables

        def forward(x, *values):
            known = zip((*weights, *others), (*values, *states), strict=True)
            with keras.StatelessScope(list(known)) as scope:
                x = self._forward(x, training=True)
            return x, *map(scope.get_current_value, others)

        outputs, *states_after = keras.remat(forward)(inputs, *(v.value for v in weights))
        for variable, state in zip(others, states_after, strict=True):
            variable.assign(state)
        return outputs

    def _normalized(self, x, norm):
        return norm(x if self.scale_adjustment is None else x * self.scale_adjustment)

    def _rest(self, inputs, branch, training):
        """Everything after the attention: first residual, then the whole second branch."""
        if self.layer_scale is not None:
            branch = self.attention_scale(branch)
        x = self._sum(inputs, branch, training)
        branch = self.mlp(self._normalized(x, self.mlp_norm), training=training)
        if self.layer_scale is not None:
            branch = self.mlp_scale(branch)
        return self._sum(x, branch, training)

    def _sum(self, x, branch, training):
        if self.scale_adjustment is not None:
            branch = branch * (1.0 / self.scale_adjustment)
        return x + self.drop_path(branch, training=training)

    def compute_output_spec(self, inputs, training=None, return_attention=False):
        return self.attention.compute_output_spec(inputs, return_attention=return_attention)

    def compute_output_shape(self, input_shape):
        return input_shape

    def _numerics(self):
        return {
            "epsilon": str(self.epsilon),
            "activation": self.mlp.activation,
            "scale_adjustment": str(self.scale_adjustment),
        }

    def save_own_variables(self, store):
        """Weights are worth nothing under other numerics, so a file says which ones it was made with."""
        for name, text in self._numerics().items():
            store[name] = encoded(text)

    def load_own_variables(self, store):
        for name, text in self._numerics().items():
            found = decoded(store[name])
            if found != text:
                raise ValueError(
                    f"{self.name}: the file was written by a model with {name}={found}, "
                    f"this one has {name}={text}. Build the model with weights=<that file>."
                )

    def get_config(self):
        return {
            **super().get_config(),
            "attention": serialize_part(self.attention),
            "mlp": serialize_part(self.mlp),
            "layer_scale": self.layer_scale,
            "drop_path": self.drop_path_rate,
            "epsilon": self.epsilon,
            "gradient_checkpointing": self.gradient_checkpointing,
            "scale_adjustment": self.scale_adjustment,
        }

    @classmethod
    def from_config(cls, config):
        parts = {
            name: keras.saving.deserialize_keras_object(config[name])
            for name in ("attention", "mlp")
        }
        return cls(**{**config, **parts})


def encoded(text):
    """A text as an array, to be stored beside variables."""
    return np.frombuffer(text.encode(), dtype="uint8")


def decoded(array):
    """The text of an array made by `encoded`."""
    return bytes(np.array(array)).decode()
