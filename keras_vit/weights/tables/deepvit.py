"""Checkpoints of zhoudaquan/dvit_repo: the names of timm, re-attention and a convolutional stem."""

from keras_vit.weights import rules as t
from keras_vit.weights.formats import Format, Numerics
from keras_vit.weights.rules import Rule
from keras_vit.weights.tables.timm import TIMM
from keras_vit.weights.tables.torch_names import norm

_MATRIX = "blocks.{i}.attn.reatten_matrix.weight"


def _batch_norm(target, source):
    return [
        *norm(target, source),
        Rule(f"{target}/moving_mean", f"{source}.running_mean"),
        Rule(f"{target}/moving_variance", f"{source}.running_var"),
    ]


_RULES = (
    *TIMM.rules,
    Rule("block_{i}/attention/mixing_kernel", _MATRIX, t.pointwise_kernel),
    Rule("block_{i}/attention/mixing_bias", "blocks.{i}.attn.reatten_matrix.bias"),
    *_batch_norm("block_{i}/attention/norm", "blocks.{i}.attn.var_norm"),
    Rule("stem/conv_1/kernel", "patch_embed.conv1.weight", t.first_kernel_oihw),
    *_batch_norm("stem/norm_1", "patch_embed.bn1"),
    Rule("stem/conv_2/kernel", "patch_embed.conv2.weight", t.kernel_oihw),
    *_batch_norm("stem/norm_2", "patch_embed.bn2"),
)


def _structure(source, grid):
    found = TIMM.structure(source, grid)
    blocks = source.re_attention()
    if blocks:
        found["heads"] = source.shape(_MATRIX.format(i=blocks[0]))[0]
        normalized = f"blocks.{blocks[0]}.attn.var_norm.weight" in source
        found["attention_normalization"] = "batch" if normalized else "none"
    return found


DEEPVIT = Format(
    name="DeepViT",
    anchor=TIMM.anchor,
    evidence=("patch_embed.conv1.weight", *(_MATRIX.format(i=i) for i in range(100))),
    prefixes=("",),
    rules=_RULES,
    numerics=lambda source: Numerics(1e-6, "gelu", "timm"),
    structure=_structure,
    ignored=(r".*\.num_batches_tracked",),
    statistics="half",
    re_attention=_MATRIX,
)
