"""The pre-norm encoder block."""

import keras
import numpy as np

from keras_vit.layers.attention import serialize_part
from keras_vit.layers.regularization import DropPath, LayerScale


@keras.saving.register_keras_serializable(package="keras_vit")
class TransformerBlock(keras.layers.Layer):
    """Pre-norm encoder block that receives its parts.

        x = x + drop_path(layer_scale(attention(norm(x))))
        x = x + drop_path(layer_scale(mlp(norm(x))))

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

    Source: ViT paper, equations 2 and 3.
    """

    def __init__(
        self,
        attention,
        mlp,
        layer_scale=None,
        drop_path=0.0,
        epsilon=1e-6,
        gradient_checkpointing=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.attention = attention
        self.mlp = mlp
        self.layer_scale = layer_scale
        self.drop_path_rate = drop_path
        self.epsilon = epsilon
        self.gradient_checkpointing = gradient_checkpointing
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
            x = self.attention_norm(inputs)
            branch, attention = self.attention(x, training=training, return_attention=True)
            return self._rest(inputs, branch, training), attention
        if self.gradient_checkpointing and training:
            return self._checkpointed(inputs)
        return self._forward(inputs, training)

    def _forward(self, inputs, training):
        branch = self.attention(self.attention_norm(inputs), training=training)
        return self._rest(inputs, branch, training)

    def _checkpointed(self, inputs):
        """`_forward` in training, recomputed in the backward pass with the same random numbers.

        For that the states of the random generators go in as values and come out as outputs.
        """
        weights = self.weights
        seeds = [v for v in self.variables if keras.backend.is_int_dtype(v.dtype)]
        states = [seed.value * 1 for seed in seeds]  # a copy: under TensorFlow it is the variable

        def forward(x, *values):
            known = zip((*weights, *seeds), (*values, *states), strict=True)
            with keras.StatelessScope(list(known)) as scope:
                x = self._forward(x, training=True)
            return x, *map(scope.get_current_value, seeds)

        outputs, *states_after = keras.remat(forward)(inputs, *(v.value for v in weights))
        for seed, state in zip(seeds, states_after, strict=True):
            seed.assign(state)
        return outputs

    def _rest(self, inputs, branch, training):
        """Everything after the attention: first residual, then the whole second branch."""
        if self.layer_scale is not None:
            branch = self.attention_scale(branch)
        x = inputs + self.drop_path(branch, training=training)
        branch = self.mlp(self.mlp_norm(x), training=training)
        if self.layer_scale is not None:
            branch = self.mlp_scale(branch)
        return x + self.drop_path(branch, training=training)

    def compute_output_spec(self, inputs, training=None, return_attention=False):
        return self.attention.compute_output_spec(inputs, return_attention=return_attention)

    def compute_output_shape(self, input_shape):
        return input_shape

    def _numerics(self):
        return {"epsilon": str(self.epsilon), "activation": self.mlp.activation}

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
