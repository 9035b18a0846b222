"""DeepViT: deep Vision Transformers whose attention maps do not become alike.

In a deep ViT the maps of the later blocks collapse into one. `ReAttention` mixes the maps of the
heads, which the `DeepViT_*` do in all blocks (16B, 24B, 32B) or in the last ones (S, L), after a
convolutional stem and with scaled branches. `PlainViT_*` are the paper's ViTs of the same shape.
The paper's other remedy, tokens in a higher dimension, is a number:

    config = keras_vit.registry.get_variant("PlainViT_16B").config
    config = dataclasses.replace(config, depth=12, width=768, heads=24, mlp=2304)
    keras_vit.models.plain.model(config)

The released files are linked from the repository's README; give the path of one as `weights`. One
without the normalisation of the mixed maps loads into a model without it.

Source: Zhou et al. 2021 (arXiv:2103.11886); github.com/zhoudaquan/dvit_repo.
"""

import dataclasses as _dataclasses

import keras as _keras
from keras import ops as _ops

from keras_vit.layers import TransformerBlock as _TransformerBlock
from keras_vit.models import plain as _plain
from keras_vit.preprocessing import decode_predictions as decode_predictions
from keras_vit.preprocessing import make_preprocess_input as _make_preprocess_input
from keras_vit.registry import variant as _variant

preprocess_input = _make_preprocess_input("half")

_replace = _dataclasses.replace
_PLAIN16 = _plain.Config(
    patch=16, width=384, depth=16, heads=12, mlp=1152, activation="gelu", resampling="timm"
)
_PLAIN24 = _replace(_PLAIN16, depth=24)
_PLAIN32 = _replace(_PLAIN16, depth=32)


def _scaled_re_attention(config, **kwargs):
    return _plain.re_attention(config, scale=(config.width // config.heads) ** -0.5, **kwargs)


_SMALL = _replace(
    _PLAIN16,
    patch=8,
    stem=_plain.conv_stem,
    stem_stride=2,
    width=396,
    mlp=1188,
    scale_adjustment=0.5,
    attention=_plain.runs((_plain.self_attention, 11), (_scaled_re_attention, 5)),
)
_LARGE = _replace(
    _SMALL,
    width=420,
    depth=32,
    mlp=1260,
    attention=_plain.runs((_plain.self_attention, 20), (_plain.re_attention, 12)),
)


def _declare(name, config, parameters):
    return _variant(
        name, config, _plain.build, parameters=parameters, counted="trainable, with 1,000 classes"
    )


def _with_re_attention(config):
    return _replace(config, attention=_plain.re_attention)


DeepViT_16B = _declare("DeepViT_16B", _with_re_attention(_PLAIN16), 24_426_664)
DeepViT_24B = _declare("DeepViT_24B", _with_re_attention(_PLAIN24), 36_261_448)
DeepViT_32B = _declare("DeepViT_32B", _with_re_attention(_PLAIN32), 48_096_232)
DeepViT_S = _declare("DeepViT_S", _SMALL, 27_312_632)
DeepViT_L = _declare("DeepViT_L", _LARGE, 58_883_708)
DeepViT_L_384 = _declare("DeepViT_L_384", _replace(_LARGE, image=(384, 384)), 59_043_308)
PlainViT_16B = _declare("PlainViT_16B", _PLAIN16, 24_423_784)
PlainViT_24B = _declare("PlainViT_24B", _PLAIN24, 36_257_128)
PlainViT_32B = _declare("PlainViT_32B", _PLAIN32, 48_090_472)


def map_similarity(maps, pairs=None):
    """How alike the attention maps of successive blocks are; 0.1 times it is the paper's CosReg loss.

    Args:
        maps: maps of the blocks in order, each (B, heads, N, N).
        pairs: number of pairs of neighbours that count, from the first block on; None for all.

    Returns:
        Scalar in [-1, 1]: the cosine between the vectors over the heads, averaged over batch,
        queries, keys and pairs.

    Raises:
        ValueError: `pairs` is not in 1..len(maps) - 1.

    Source: dvit_repo loss/cross_entropy.py.
    """
    pairs = _checked_pairs(pairs, len(maps))
    directions = [_ops.normalize(_ops.cast(m, "float32"), axis=1, epsilon=1e-8) for m in maps]
    cosines = [_ops.mean(_ops.sum(directions[i] * directions[i + 1], axis=1)) for i in range(pairs)]
    return sum(cosines) / pairs


def with_cos_reg(model, weight=0.1, pairs=None):
    """A model with the same layers whose training holds the maps of neighbouring blocks apart.

    Its loss in `fit` is that of `compile` plus `weight` times the `map_similarity` of the maps that
    meet the values. Train it, then save and use `model`, which shares its weights. Gradient
    checkpointing has no effect here, as the maps must be kept.

    Args:
        model: a model of this package.
        weight: factor of the similarity.
        pairs: see `map_similarity`.

    Returns:
        A functional `keras.Model` of the same outputs.

    Raises:
        ValueError: `pairs` is not in 1..depth - 1.

    Source: CosReg of dvit_repo (loss/cross_entropy.py): 0.1, 12 pairs for 32 blocks.
    """
    maps = []

    def call(layer, *inputs, **options):
        if not isinstance(layer, _TransformerBlock):
            return layer(*inputs, **options)
        tokens, attention = _WithMap(layer, name=f"{layer.name}_with_map")(*inputs, **options)
        maps.append(attention)
        return tokens

    same = _keras.models.clone_model(model, clone_function=lambda x: x, call_function=call)
    _checked_pairs(pairs, len(maps))
    outputs = _CosReg(weight, pairs, name="cos_reg")([same.output, *maps])
    return _keras.Model(same.inputs, outputs, name=model.name)


class _WithMap(_keras.layers.Layer):
    """A block that gives its map as well; Keras wants a layer to give as many outputs in every call."""

    def __init__(self, block, **kwargs):
        super().__init__(dtype=block.dtype_policy, **kwargs)
        self.block = block

    def call(self, inputs, training=None):
        return self.block(inputs, training=training, return_attention=True)

    def compute_output_spec(self, inputs, training=None):
        return self.block.compute_output_spec(inputs, return_attention=True)


def _checked_pairs(pairs, count):
    """How many pairs of neighbours count among so many maps, or ValueError."""
    pairs = count - 1 if pairs is None else pairs
    if not 1 <= pairs < count:
        raise ValueError(
            "pairs must be at least 1 and less than the number of maps. "
            f"Received: pairs={pairs}, {count} maps."
        )
    return pairs


class _CosReg(_keras.layers.Layer):
    """Passes on its first input; in training adds `weight` times the `map_similarity` of the others to the loss."""

    def __init__(self, weight, pairs, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.weight = weight
        self.pairs = pairs

    def call(self, inputs, training=None):
        outputs, *maps = inputs
        if training:
            self.add_loss(self.weight * map_similarity(maps, self.pairs))
        return outputs
