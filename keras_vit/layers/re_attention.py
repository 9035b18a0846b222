"""Re-attention: the heads' attention maps are mixed before they meet the values."""

import keras
from keras import ops

from keras_vit.layers.attention import MultiHeadSelfAttention

_EPSILON = 1e-5
_NORMALIZATIONS = {
    "batch": lambda **kwargs: keras.layers.BatchNormalization(momentum=0.9, **kwargs),
    "layer": lambda **kwargs: keras.layers.LayerNormalization(**kwargs),
    "none": None,
}


@keras.saving.register_keras_serializable(package="keras_vit")
class ReAttention(MultiHeadSelfAttention):
    """Self-attention whose maps are mixed between the heads and normalised: scale * norm(mix(map)) v.

    With map = softmax(q k^T / sqrt(d)) after its dropout, head g of the mixed map is
    sum_h kernel[h, g] * map[h] + bias[g]. Its rows need not sum to 1 and may be negative.

    Shapes: input (B, N, D); output (B, N, D); with `return_attention=True` also the map that meets
    the values (B, heads, N, N). The map before the mixing is that of `probabilities(inputs)`.

    Args:
        heads: number of heads; must divide D.
        normalization: of the mixed map, over the head axis: "batch" (BatchNormalization with
            epsilon 1e-5 and momentum 0.9, statistics of each head over batch, queries and keys),
            "layer" (LayerNormalization over the heads of each query and key) or "none".
        scale: constant factor on the normalised map.
        kwargs: those of `MultiHeadSelfAttention`.

    Raises:
        ValueError: unknown normalization; D is not a multiple of `heads`.

    Weights: those of `MultiHeadSelfAttention`; mixing_kernel (heads, heads) and mixing_bias
        (heads,); norm: gamma, beta (heads,), with "batch" also moving_mean, moving_variance.
    Source: Zhou et al. 2021 (arXiv:2103.11886), section 4.2; dvit_repo models/layers.py, whose
        normalisation is "batch".
    """

    fused = False

    def __init__(self, heads, normalization="batch", scale=1.0, **kwargs):
        super().__init__(heads, **kwargs)
        if normalization not in _NORMALIZATIONS:
            raise ValueError(
                f"{self.name}: unknown normalization of the mixed maps. Received: "
                f"normalization={normalization!r}. Available: {sorted(_NORMALIZATIONS)}."
            )
        self.normalization = normalization
        self.scale = scale

    def build(self, input_shape):
        super().build(input_shape)
        bound = self.heads**-0.5
        self.mixing_kernel, self.mixing_bias = (
            self.add_weight(
                shape=shape, initializer=keras.initializers.RandomUniform(-bound, bound), name=name
            )
            for name, shape in (
                ("mixing_kernel", (self.heads, self.heads)),
                ("mixing_bias", (self.heads,)),
            )
        )
        make = _NORMALIZATIONS[self.normalization]
        self.norm = make and make(axis=1, epsilon=_EPSILON, dtype=self.dtype_policy, name="norm")
        if self.norm is not None:
            self.norm.build((None, self.heads, None))

    def mix(self, attention, training=None):
        shape = ops.shape(attention)
        x = ops.reshape(attention, (shape[0], self.heads, shape[2] * shape[3]))  # (B, heads, N * N)
        full = self.variable_dtype
        kernel = ops.cast(ops.transpose(self.mixing_kernel), full)
        bias, norm, scale = ops.cast(self.mixing_bias, full), self.norm, self.scale
        if self.normalization == "batch" and not (training and norm.trainable):
            # With fixed statistics all three steps are one; the map is large, a pass over it costs.
            variables = (norm.gamma, norm.beta, norm.moving_mean, norm.moving_variance)
            gamma, beta, mean, variance = (ops.cast(v, full) for v in variables)
            factor = scale * gamma * ops.rsqrt(variance + norm.epsilon)
            kernel = ops.expand_dims(factor, 1) * kernel
            bias = factor * (bias - mean) + scale * beta
            norm, scale = None, 1.0
        x = ops.matmul(ops.cast(kernel, x.dtype), x) + ops.cast(ops.expand_dims(bias, 1), x.dtype)
        if norm is not None:
            x = norm(x, training=training)
        return ops.reshape(x if scale == 1.0 else x * scale, shape)

    def get_config(self):
        return {**super().get_config(), "normalization": self.normalization, "scale": self.scale}
