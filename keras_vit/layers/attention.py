"""Multi-head self-attention, and attention pooling."""

import keras
from keras import ops

from keras_vit.devices import has_accelerator
from keras_vit.layers.quantized import QuantizedParts


def _dense(units, name, use_bias, dtype):
    return keras.layers.Dense(
        units, use_bias=use_bias, kernel_initializer="glorot_uniform", dtype=dtype, name=name
    )


def _head_size(width, heads, owner):
    if heads < 1 or width % heads:
        raise ValueError(
            f"{owner}: the width must be a multiple of the number of heads. "
            f"Received: width={width}, heads={heads}."
        )
    return width // heads


@keras.saving.register_keras_serializable(package="keras_vit")
class MultiHeadSelfAttention(keras.layers.Layer):
    """softmax(q k^T / sqrt(d)) v over `heads` heads of size d = D / heads.

    The query is scaled before the product and the softmax runs in float32, so that half precision
    neither overflows nor loses the small probabilities.

    Shapes: input (B, N, D); output (B, N, D); with `return_attention=True` also the attention map
    (B, heads, N, N), whose rows sum to 1.

    Args:
        heads: number of heads; must divide D.
        use_bias: whether query, key and value have biases.
        query_key_epsilon: if given, query and key pass a LayerNormalization with this epsilon over
            each head.
        dropout: rate on the attention probabilities, in [0, 1).
        output_dropout: rate after the output projection, in [0, 1).

    Raises:
        ValueError: D is not a multiple of `heads`.

    Weights: query, key, value, output: each a kernel (D, D) and a bias (D,).
    Source: Vaswani et al. 2017, section 3.2; ViT paper, appendix A.
    """

    fused = True  # a subclass with a `mix` of its own needs the map itself

    def __init__(
        self,
        heads,
        use_bias=True,
        query_key_epsilon=None,
        dropout=0.0,
        output_dropout=0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.heads = heads
        self.use_bias = use_bias
        self.query_key_epsilon = query_key_epsilon
        self.dropout_rate = dropout
        self.output_dropout_rate = output_dropout
        self.attention_dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self.output_dropout = keras.layers.Dropout(output_dropout, dtype=self.dtype_policy)

    def build(self, input_shape):
        width = input_shape[-1]
        self.head_size = _head_size(width, self.heads, self.name)
        self.query, self.key, self.value = (
            _dense(width, name, self.use_bias, self.dtype_policy)
            for name in ("query", "key", "value")
        )
        self.projection = _dense(width, "output", True, self.dtype_policy)
        for layer in (self.query, self.key, self.value, self.projection, self.output_dropout):
            layer.build(input_shape)
        self.attention_dropout.build((None, self.heads, None, None))
        if self.query_key_epsilon is not None:
            self.query_norm, self.key_norm = (
                keras.layers.LayerNormalization(
                    epsilon=self.query_key_epsilon, dtype=self.dtype_policy, name=name
                )
                for name in ("query_norm", "key_norm")
            )
            self.query_norm.build((None, None, self.heads, self.head_size))
            self.key_norm.build((None, None, self.heads, self.head_size))

    def call(self, inputs, training=None, return_attention=False):
        query, key = self._query_and_key(inputs)
        value = self._split(self.value(inputs))  # (B, N, heads, d)
        if return_attention or not self.fused or (training and self.dropout_rate):
            attention = attention_probabilities(query, key)  # (B, heads, N, N)
            attention = self.attention_dropout(attention, training=training)
            attention = self.mix(attention, training=training)
            outputs = _weighted(attention, value)
        else:
            outputs = _attended(query, key, value)
        outputs = ops.reshape(outputs, ops.shape(inputs))  # (B, N, D)
        outputs = self.output_dropout(self.projection(outputs), training=training)
        return (outputs, attention) if return_attention else outputs

    def mix(self, attention, training=None):
        """What becomes of the map (B, heads, N, N) before it meets the values: here nothing."""
        return attention

    def probabilities(self, inputs):
        """The softmax (B, heads, N, N) before dropout and `mix`; rows sum to 1.

        Args:
            inputs: tokens (B, N, D), with values: not a symbolic Keras tensor.
        """
        return attention_probabilities(*self._query_and_key(inputs))

    def _query_and_key(self, inputs):
        """Scaled query and key, each (B, N, heads, d)."""
        query, key = self._split(self.query(inputs)), self._split(self.key(inputs))
        if self.query_key_epsilon is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        return query * self.head_size**-0.5, key

    def _split(self, x):
        shape = ops.shape(x)
        return ops.reshape(x, (shape[0], shape[1], self.heads, self.head_size))

    def compute_output_spec(self, inputs, training=None, return_attention=False):
        outputs = keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)
        if not return_attention:
            return outputs
        batch, count, _ = inputs.shape
        maps = keras.KerasTensor((batch, self.heads, count, count), dtype=self.compute_dtype)
        return outputs, maps

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "heads": self.heads,
            "use_bias": self.use_bias,
            "query_key_epsilon": self.query_key_epsilon,
            "dropout": self.dropout_rate,
            "output_dropout": self.output_dropout_rate,
        }


def attention_probabilities(query, key):
    """softmax over keys of query (B, Q, heads, d), already scaled, times key (B, K, heads, d): (B, heads, Q, K)."""
    logits = ops.einsum("bqhd,bkhd->bhqk", query, key)
    return ops.cast(ops.softmax(ops.cast(logits, "float32")), query.dtype)


def _weighted(attention, value):
    """The map (B, heads, Q, K) times value (B, K, heads, d): (B, Q, heads, d)."""
    return ops.einsum("bhqk,bkhd->bqhd", attention, value)


def _attended(query, key, value):
    """`_weighted(attention_probabilities(query, key), value)`, by a fused kernel where there is one.

    Keras has one for PyTorch, and for JAX on accelerators. Its function for TensorFlow passes once
    more over the map, that for JAX on the CPU is slower and does not know float16.
    """
    backend = keras.backend.backend()
    if backend == "torch" or (backend == "jax" and has_accelerator()):
        return ops.dot_product_attention(query, key, value, scale=1.0)
    return _weighted(attention_probabilities(query, key), value)


@keras.saving.register_keras_serializable(package="keras_vit")
class AttentionPooling(QuantizedParts):
    """Pools tokens with a learned probe: attention, then x + mlp(norm(x)) (the "map" head).

    Shapes: input (B, N, D); output (B, D).

    Args:
        heads: number of heads; must divide D.
        mlp: a feed-forward layer, for example `Mlp(4 * D)`.
        epsilon: of the LayerNormalization before the mlp.

    Weights: probe (1, 1, D); query, key, value, output; norm; mlp.
    Source: Lee et al. 2019 (Set Transformer); big_vision/models/vit.py, MAPHead.
    """

    def __init__(self, heads, mlp, epsilon=1e-6, **kwargs):
        super().__init__(**kwargs)
        self.heads = heads
        self.mlp = mlp
        self.epsilon = epsilon
        self.norm = keras.layers.LayerNormalization(
            epsilon=epsilon, dtype=self.dtype_policy, name="norm"
        )

    def build(self, input_shape):
        width = input_shape[-1]
        self.head_size = _head_size(width, self.heads, self.name)
        self.probe = self.add_weight(
            shape=(1, 1, width), initializer="glorot_uniform", name="probe"
        )
        for name in ("query", "key", "value", "projection"):
            path = "output" if name == "projection" else name
            layer = _dense(width, path, True, self.dtype_policy)
            layer.build(input_shape)
            setattr(self, name, layer)
        self.norm.build((None, width))
        if not self.mlp.built:
            self.mlp.build((None, 1, width))

    def call(self, inputs, training=None):
        shape = ops.shape(inputs)
        heads = (self.heads, self.head_size)
        probe = ops.cast(self.probe, inputs.dtype)
        query = ops.reshape(self.query(probe), (1, 1, *heads)) * self.head_size**-0.5
        query = ops.broadcast_to(query, (shape[0], 1, *heads))
        key = ops.reshape(self.key(inputs), (shape[0], shape[1], *heads))
        value = ops.reshape(self.value(inputs), (shape[0], shape[1], *heads))
        x = _attended(query, key, value)  # (B, 1, heads, d)
        x = self.projection(ops.reshape(x, (shape[0], 1, inputs.shape[-1])))  # (B, 1, D)
        x = x + self.mlp(self.norm(x), training=training)
        return ops.squeeze(x, axis=1)  # (B, D)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[-1])

    def get_config(self):
        return {
            **super().get_config(),
            "heads": self.heads,
            "mlp": serialize_part(self.mlp),
            "epsilon": self.epsilon,
        }

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "mlp": keras.saving.deserialize_keras_object(config["mlp"])})


def serialize_part(layer):
    """Config of a sub-layer that its owner builds.

    Without the build shapes, a part arrives unbuilt and its variables get their path from the
    owner again, so that paths stay unique after a reload.
    """
    config = keras.saving.serialize_keras_object(layer)
    config.pop("build_config", None)
    return config
