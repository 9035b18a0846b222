"""vit_jax and big_vision checkpoints (.npz, flax names)."""

from keras_vit.weights import rules as t
from keras_vit.weights.formats import Format, Numerics, positioned
from keras_vit.weights.rules import Rule

_BIG_VISION = ("MultiHeadDotProductAttention_0", "LayerNorm_0", "LayerNorm_1", "MlpBlock_0")
# Files from before flax.linen number the sub-modules of a block in one row.
_PRE_LINEN = ("MultiHeadDotProductAttention_1", "LayerNorm_0", "LayerNorm_2", "MlpBlock_3")


def _norm(target, source, stacked=False):
    return [
        Rule(f"{target}/gamma", f"{source}/scale", stacked=stacked),
        Rule(f"{target}/beta", f"{source}/bias", stacked=stacked),
    ]


def _dense(target, source, stacked=False):
    return [
        Rule(f"{target}/kernel", f"{source}/kernel", stacked=stacked),
        Rule(f"{target}/bias", f"{source}/bias", stacked=stacked),
    ]


def _attention(target, source, stacked=False):
    rules = []
    for name in ("query", "key", "value"):
        for part in ("kernel", "bias"):
            rules.append(
                Rule(
                    f"{target}/{name}/{part}",
                    f"{source}/{name}/{part}",
                    t.join_output_heads,
                    stacked,
                )
            )
    rules.append(
        Rule(f"{target}/output/kernel", f"{source}/out/kernel", t.join_input_heads, stacked)
    )
    rules.append(Rule(f"{target}/output/bias", f"{source}/out/bias", stacked=stacked))
    return rules


def _block(source, names, stacked=False):
    attention, first_norm, second_norm, mlp = names
    return [
        *_norm("block_{i}/attention_norm", f"{source}/{first_norm}", stacked),
        *_attention("block_{i}/attention", f"{source}/{attention}", stacked),
        *_norm("block_{i}/mlp_norm", f"{source}/{second_norm}", stacked),
        *_dense("block_{i}/mlp/hidden", f"{source}/{mlp}/Dense_0", stacked),
        *_dense("block_{i}/mlp/output", f"{source}/{mlp}/Dense_1", stacked),
    ]


def _group_norm(target, source):
    # (C,), or (1, 1, 1, C) in the published files
    return [
        Rule(f"{target}/gamma", f"{source}/scale", t.reshaped),
        Rule(f"{target}/beta", f"{source}/bias", t.reshaped),
    ]


def _residual(conv, norm, source):
    ours, theirs = "stage_{s}/unit_{u}", "block{s}/unit{u}"
    return [
        Rule(f"{ours}/{conv}/kernel", f"{theirs}/conv{source}/kernel"),
        *_group_norm(f"{ours}/{norm}", f"{theirs}/gn{source}"),
    ]


_RULES = (
    Rule("root_conv/kernel", "conv_root/kernel", t.first_kernel_hwio),
    *_group_norm("root_norm", "gn_root"),
    *_residual("conv_1", "norm_1", "1"),
    *_residual("conv_2", "norm_2", "2"),
    *_residual("conv_3", "norm_3", "3"),
    *_residual("projection", "projection_norm", "_proj"),
    Rule("patch_encoder/projection/kernel", "embedding/kernel", t.patch_kernel_hwio),
    Rule("patch_encoder/projection/bias", "embedding/bias"),
    Rule("patch_encoder/class_token", "cls", t.reshaped),
    Rule("patch_encoder/positions", "Transformer/posembed_input/pos_embedding", t.positions),
    Rule("patch_encoder/positions", "pos_embedding", t.positions),
    *_block("Transformer/encoderblock_{i}", _PRE_LINEN),
    *_block("Transformer/encoderblock_{i}", _BIG_VISION),
    *_block("Transformer/encoderblock", _BIG_VISION, stacked=True),
    *_norm("encoder_norm", "Transformer/encoder_norm"),
    Rule("map_pooling/probe", "MAPHead_0/probe"),
    *_attention("map_pooling", "MAPHead_0/MultiHeadDotProductAttention_0"),
    *_norm("map_pooling/norm", "MAPHead_0/LayerNorm_0"),
    *_dense("map_pooling/mlp/hidden", "MAPHead_0/MlpBlock_0/Dense_0"),
    *_dense("map_pooling/mlp/output", "MAPHead_0/MlpBlock_0/Dense_1"),
    *_dense("pre_logits", "pre_logits"),
    *_dense("head", "head"),
)


def _structure(source, grid):
    stacked = "Transformer/encoderblock/LayerNorm_0/scale" in source
    block = "Transformer/encoderblock" + ("" if stacked else "_0")
    attention, _, _, mlp = next(
        names for names in (_PRE_LINEN, _BIG_VISION) if f"{block}/{names[0]}/query/kernel" in source
    )
    embedding = source.shape("embedding/kernel")
    found = {
        "patch": embedding[0],
        "width": embedding[3],
        "depth": source.shape(f"{block}/LayerNorm_0/scale")[0]
        if stacked
        else source.count("Transformer/encoderblock_{i}/LayerNorm_0/scale"),
        "heads": source.shape(f"{block}/{attention}/query/kernel")[-2],
        "mlp": source.shape(f"{block}/{mlp}/Dense_0/kernel")[-1],
        "tokens": ("class",) if "cls" in source else (),
        "registers": 0,
        "stages": None,
        "positions": "sincos-2d",
        "positioned_tokens": 0,
        "representation_size": None,
        "classes": source.shape("head/kernel")[1] if "head/kernel" in source else 0,
    }
    for name in ("Transformer/posembed_input/pos_embedding", "pos_embedding"):
        if name in source:
            found["positions"] = "learned-1d"
            candidates = (len(found["tokens"]), 0)
            found["positioned_tokens"] = positioned(source.shape(name)[-2], candidates, grid)
            found["rows"] = source.shape(name)[-2]
    if "conv_root/kernel" in source:
        found["stages"] = source.stages("block{s}/unit{u}/conv1/kernel", first=1)
        found["stem_width"] = source.shape("conv_root/kernel")[-1]
    if "pre_logits/kernel" in source:
        found["representation_size"] = source.shape("pre_logits/kernel")[1]
    if "MAPHead_0/probe" in source:
        found["classifier"] = ("map",)
    else:
        found["classifier"] = ("token", "gap") if found["tokens"] else ("gap",)
    return found


GOOGLE = Format(
    name="Google ViT (vit_jax, big_vision)",
    anchor="embedding/kernel",
    evidence=(
        "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel",
        "Transformer/encoderblock_0/MultiHeadDotProductAttention_0/query/kernel",
        "Transformer/encoderblock/MultiHeadDotProductAttention_0/query/kernel",
    ),
    prefixes=("", "img/"),
    rules=_RULES,
    numerics=lambda source: Numerics(1e-6, "gelu_tanh", "google", 1e-6, "google"),
    structure=_structure,
    ignored=("txt/.*", "t", "b"),  # the text half of SigLIP
    statistics="half",
)
