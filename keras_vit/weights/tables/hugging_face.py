"""transformers ViT and Dinov2 checkpoints, under the names that `save_pretrained` writes."""

from keras_vit.weights import rules as t
from keras_vit.weights.formats import Format, Numerics, positioned
from keras_vit.weights.rules import Rule
from keras_vit.weights.tables.torch_names import dense, fused_pair, norm

_KERNEL = "embeddings.patch_embeddings.projection.weight"
_LAYER = "encoder.layer.{i}"

_SHARED = (
    Rule("patch_encoder/projection/kernel", _KERNEL, t.patch_kernel_oihw),
    Rule("patch_encoder/projection/bias", "embeddings.patch_embeddings.projection.bias"),
    Rule("patch_encoder/class_token", "embeddings.cls_token", t.reshaped),
    Rule("patch_encoder/positions", "embeddings.position_embeddings", t.positions),
    *dense("block_{i}/attention/query", f"{_LAYER}.attention.attention.query"),
    *dense("block_{i}/attention/key", f"{_LAYER}.attention.attention.key"),
    *dense("block_{i}/attention/value", f"{_LAYER}.attention.attention.value"),
    *dense("block_{i}/attention/output", f"{_LAYER}.attention.output.dense"),
    *norm("encoder_norm", "layernorm"),
    *dense("head", "classifier"),
)

_VIT = (
    *_SHARED,
    *norm("block_{i}/attention_norm", f"{_LAYER}.layernorm_before"),
    *norm("block_{i}/mlp_norm", f"{_LAYER}.layernorm_after"),
    *dense("block_{i}/mlp/hidden", f"{_LAYER}.intermediate.dense"),
    *dense("block_{i}/mlp/output", f"{_LAYER}.output.dense"),
    *dense("pre_logits", "pooler.dense"),
)

_DINOV2 = (
    *_SHARED,
    Rule("patch_encoder/register_tokens", "embeddings.register_tokens"),
    *norm("block_{i}/attention_norm", f"{_LAYER}.norm1"),
    *norm("block_{i}/mlp_norm", f"{_LAYER}.norm2"),
    Rule("block_{i}/attention_scale/gamma", f"{_LAYER}.layer_scale1.lambda1"),
    Rule("block_{i}/mlp_scale/gamma", f"{_LAYER}.layer_scale2.lambda1"),
    *dense("block_{i}/mlp/hidden", f"{_LAYER}.mlp.fc1"),
    *dense("block_{i}/mlp/output", f"{_LAYER}.mlp.fc2"),
    *fused_pair("block_{i}/mlp/gate", "block_{i}/mlp/value", f"{_LAYER}.mlp.weights_in"),
    *dense("block_{i}/mlp/output", f"{_LAYER}.mlp.weights_out"),
)


def _common(source, grid):
    width, _, patch, _ = source.shape(_KERNEL)
    rows = source.shape("embeddings.position_embeddings")[1]
    return {
        "patch": patch,
        "width": width,
        "tokens": ("class",),
        "registers": 0,
        "stages": None,
        "positions": "learned-1d",
        "positioned_tokens": positioned(rows, (1,), grid),
        "rows": rows,
        "representation_size": None,
        "classes": source.shape("classifier.weight")[0] if "classifier.weight" in source else 0,
        "classifier": ("token", "gap"),
    }


def _vit_structure(source, grid):
    found = _common(source, grid)
    found["depth"] = source.count(f"{_LAYER}.layernorm_before.weight")
    found["mlp"] = source.shape("encoder.layer.0.intermediate.dense.weight")[0]
    found["layer_scale"] = None
    if "pooler.dense.weight" in source and not found["classes"]:
        found["representation_size"] = source.shape("pooler.dense.weight")[0]
    return found


def _dinov2_structure(source, grid):
    found = _common(source, grid)
    found["depth"] = source.count(f"{_LAYER}.norm1.weight")
    swiglu = "encoder.layer.0.mlp.weights_out.weight" in source
    name = "weights_out" if swiglu else "fc2"
    found["mlp"] = source.shape(f"encoder.layer.0.mlp.{name}.weight")[1]
    found["layer_scale"] = 1e-5
    if "embeddings.register_tokens" in source:
        found["registers"] = source.shape("embeddings.register_tokens")[1]
    if found["classes"]:
        found["classifier"] = ("linear",)
    return found


def _dinov2_numerics(source):
    rule = "dinov2-registers" if "embeddings.register_tokens" in source else "hf"
    return Numerics(1e-6, "gelu", rule)


HF_VIT = Format(
    name="transformers ViT",
    anchor=_KERNEL,
    evidence=("encoder.layer.0.layernorm_before.weight",),
    prefixes=("", "vit."),
    rules=_VIT,
    numerics=lambda source: Numerics(1e-12, "gelu", "hf"),
    structure=_vit_structure,
    ignored=("pooler\\..*",),
    statistics="half",
)

HF_DINOV2 = Format(
    name="transformers Dinov2",
    anchor=_KERNEL,
    evidence=("encoder.layer.0.norm1.weight",),
    prefixes=("", "dinov2.", "dinov2_with_registers."),
    rules=_DINOV2,
    numerics=_dinov2_numerics,
    structure=_dinov2_structure,
    ignored=("embeddings.mask_token",),  # of the masked pre-training alone
    statistics="imagenet",
)
