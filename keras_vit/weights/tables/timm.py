"""timm VisionTransformer and facebookresearch DINOv2 checkpoints, which share most names."""

from keras_vit.weights import rules as t
from keras_vit.weights.formats import Format, Numerics, positioned
from keras_vit.weights.rules import Rule
from keras_vit.weights.tables.torch_names import dense, fused_pair, fused_qkv, norm, residual_units

_ANCHOR = "patch_embed.proj.weight"

_SHARED = (
    Rule("patch_encoder/projection/kernel", _ANCHOR, t.patch_kernel_oihw),
    Rule("patch_encoder/projection/bias", "patch_embed.proj.bias"),
    Rule("patch_encoder/class_token", "cls_token", t.reshaped),
    Rule("patch_encoder/positions", "pos_embed", t.positions),
    *norm("block_{i}/attention_norm", "blocks.{i}.norm1"),
    *fused_qkv("block_{i}/attention", "blocks.{i}.attn.qkv"),
    *dense("block_{i}/attention/output", "blocks.{i}.attn.proj"),
    Rule("block_{i}/attention_scale/gamma", "blocks.{i}.ls1.gamma"),
    *norm("block_{i}/mlp_norm", "blocks.{i}.norm2"),
    *dense("block_{i}/mlp/hidden", "blocks.{i}.mlp.fc1"),
    *dense("block_{i}/mlp/output", "blocks.{i}.mlp.fc2"),
    Rule("block_{i}/mlp_scale/gamma", "blocks.{i}.ls2.gamma"),
    *norm("encoder_norm", "norm"),
)

_BACKBONE = "patch_embed.backbone."
_ROOTS = (f"{_BACKBONE}stem.", _BACKBONE)  # the second one for a backbone without stages

_TIMM = (
    *_SHARED,
    *(Rule("root_conv/kernel", f"{root}conv.weight", t.first_kernel_oihw) for root in _ROOTS),
    *(rule for root in _ROOTS for rule in norm("root_norm", f"{root}norm")),
    *residual_units(_BACKBONE),
    Rule("patch_encoder/register_tokens", "reg_token"),
    *norm("block_{i}/attention/query_norm", "blocks.{i}.attn.q_norm"),
    *norm("block_{i}/attention/key_norm", "blocks.{i}.attn.k_norm"),
    *dense("block_{i}/mlp/gate", "blocks.{i}.mlp.fc1_g"),
    *dense("block_{i}/mlp/value", "blocks.{i}.mlp.fc1_x"),
    *fused_pair("block_{i}/mlp/gate", "block_{i}/mlp/value", "blocks.{i}.mlp.fc1"),
    *norm("fc_norm", "fc_norm"),
    Rule("map_pooling/probe", "attn_pool.latent", t.reshaped),
    *dense("map_pooling/query", "attn_pool.q"),
    *fused_pair("map_pooling/key", "map_pooling/value", "attn_pool.kv"),
    *dense("map_pooling/output", "attn_pool.proj"),
    *norm("map_pooling/norm", "attn_pool.norm"),
    *dense("map_pooling/mlp/hidden", "attn_pool.mlp.fc1"),
    *dense("map_pooling/mlp/output", "attn_pool.mlp.fc2"),
    *dense("head", "head"),
)

_DINOV2 = (
    *_SHARED,
    Rule("patch_encoder/register_tokens", "register_tokens"),
    *fused_pair("block_{i}/mlp/gate", "block_{i}/mlp/value", "blocks.{i}.mlp.w12"),
    *dense("block_{i}/mlp/output", "blocks.{i}.mlp.w3"),
    *dense("head", "linear_head"),
)


def _common(source, grid, register_name, candidates):
    width, _, patch, _ = source.shape(_ANCHOR)
    tokens = ("class",) if "cls_token" in source else ()
    registers = source.shape(register_name)[1] if register_name in source else 0
    rows = source.shape("pos_embed")[1]
    return {
        "patch": patch,
        "width": width,
        "depth": source.count("blocks.{i}.norm1.weight"),
        "tokens": tokens,
        "registers": registers,
        "positions": "learned-1d",
        "positioned_tokens": positioned(rows, candidates(len(tokens), registers), grid),
        "rows": rows,
        "stages": None,
        "representation_size": None,
        "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in source else None,
    }


def _timm_structure(source, grid):
    found = _common(source, grid, "reg_token", lambda cls, reg: (cls + reg, 0))
    for root in _ROOTS:
        if f"{root}conv.weight" in source:
            units = "stages.{s}.blocks.{u}.conv1.weight"
            found["stages"] = source.stages(_BACKBONE + units, first=0)
            found["stem_width"] = source.shape(f"{root}conv.weight")[0]
    if "blocks.0.mlp.fc1_g.weight" in source:
        found["mlp"] = source.shape("blocks.0.mlp.fc1_g.weight")[0]
    else:  # a packed gate has twice the rows that the output layer takes
        found["mlp"] = source.shape("blocks.0.mlp.fc2.weight")[1]
    if "attn_pool.latent" in source:
        found["classifier"] = ("map",)
    elif "fc_norm.weight" in source:
        found["classifier"] = ("avg", "avgmax")
    else:
        found["classifier"] = ("token", "gap") if found["tokens"] else ("gap",)
    found["classes"] = source.shape("head.weight")[0] if "head.weight" in source else 0
    return found


def _dinov2_structure(source, grid):
    found = _common(source, grid, "register_tokens", lambda cls, reg: (cls,))
    swiglu = "blocks.0.mlp.w3.weight" in source
    found["mlp"] = source.shape(f"blocks.0.mlp.{'w3' if swiglu else 'fc2'}.weight")[1]
    found["classes"], found["classifier"] = 0, ("token", "gap")
    if "linear_head.weight" in source:
        found["classes"], features = source.shape("linear_head.weight")
        found["classifier"] = {2: ("linear",), 5: ("linear4",)}[features // found["width"]]
    return found


def _dinov2_numerics(source):
    rule = "dinov2-registers" if "register_tokens" in source else "dinov2"
    return Numerics(1e-6, "gelu", rule)


TIMM = Format(
    name="timm ViT",
    anchor=_ANCHOR,
    evidence=("blocks.0.attn.qkv.weight",),
    prefixes=("",),
    rules=_TIMM,
    numerics=lambda source: Numerics(1e-6, "gelu", "timm", 1e-5, "timm"),
    structure=_timm_structure,
)

DINOV2 = Format(
    name="DINOv2",
    anchor=_ANCHOR,
    evidence=("mask_token", "register_tokens"),
    prefixes=("", "backbone."),
    rules=_DINOV2,
    numerics=_dinov2_numerics,
    structure=_dinov2_structure,
    ignored=("mask_token",),  # of the masked pre-training alone
    statistics="imagenet",
)
