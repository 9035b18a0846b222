"""Our own .weights.h5 and .keras files."""

import math
import re

import numpy as np

from keras_vit.layers.block import decoded
from keras_vit.weights import rules as t
from keras_vit.weights.formats import Format, Numerics
from keras_vit.weights.rules import Rule

_OWN = ("class_token", "register_tokens", "positions", "row_positions", "column_positions")


def _pair(target, source, names=("kernel", "bias")):
    return [Rule(f"{target}/{name}", f"layers/{source}/vars/{k}") for k, name in enumerate(names)]


def _norm(target, source):
    return _pair(target, source, ("gamma", "beta"))


def _layers(target, source, names):
    # The attribute of the last dense layer is `projection`, its variable path says "output".
    rules = []
    for name in names:
        attribute = "projection" if name == "output" else name
        rules += _pair(f"{target}/{name}", f"{source}/{attribute}")
    return rules


def _batch_norm(target, source):
    return _pair(target, source, ("gamma", "beta", "moving_mean", "moving_variance"))


_ATTENTION = ("query", "key", "value", "output")
_BLOCK = "transformer_block_{i}"
ROOT = "layers/standardized_conv2d/vars"


def residual_stages(kind):
    """Rules of the stages of one class, whose name in files is `kind`."""
    ours, theirs = "stage_{s}/unit_{u}", f"{kind}_{{s}}/unit_{{u}}"
    rules = []
    for conv, norm in (
        ("conv_1", "norm_1"),
        ("conv_2", "norm_2"),
        ("conv_3", "norm_3"),
        ("projection", "projection_norm"),
    ):
        rules += _pair(f"{ours}/{conv}", f"{theirs}/{conv}", ("kernel",))
        rules += _norm(f"{ours}/{norm}", f"{theirs}/{norm}")
    return rules


_RULES = (
    *_pair("root_conv", "standardized_conv2d", ("kernel",)),
    *_norm("root_norm", "group_norm"),
    *residual_stages("residual_stage"),
    *_pair("patch_encoder/projection", "patch_encoder/projection"),
    *(
        Rule(f"patch_encoder/{name}", f"layers/patch_encoder/vars/{name}", t.own_variable(name))
        for name in _OWN
    ),
    *_norm("block_{i}/attention_norm", f"{_BLOCK}/attention_norm"),
    *_layers("block_{i}/attention", f"{_BLOCK}/attention", _ATTENTION),
    *_norm("block_{i}/attention/query_norm", f"{_BLOCK}/attention/query_norm"),
    *_norm("block_{i}/attention/key_norm", f"{_BLOCK}/attention/key_norm"),
    *_pair("block_{i}/attention", f"{_BLOCK}/attention", ("mixing_kernel", "mixing_bias")),
    *_batch_norm("block_{i}/attention/norm", f"{_BLOCK}/attention/norm"),
    *_pair("block_{i}/attention_scale", f"{_BLOCK}/attention_scale", ("gamma",)),
    *_norm("block_{i}/mlp_norm", f"{_BLOCK}/mlp_norm"),
    *_layers("block_{i}/mlp", f"{_BLOCK}/mlp", ("hidden", "gate", "value", "output")),
    *_pair("block_{i}/mlp_scale", f"{_BLOCK}/mlp_scale", ("gamma",)),
    *_pair("stem/conv_1", "conv_stem/conv_1", ("kernel",)),
    *_batch_norm("stem/norm_1", "conv_stem/norm_1"),
    *_pair("stem/conv_2", "conv_stem/conv_2", ("kernel",)),
    *_batch_norm("stem/norm_2", "conv_stem/norm_2"),
    *_norm("encoder_norm", "layer_normalization"),
    *_norm("fc_norm", "layer_normalization"),
    *_pair("map_pooling", "attention_pooling", ("probe",)),
    *_layers("map_pooling", "attention_pooling", _ATTENTION),
    *_norm("map_pooling/norm", "attention_pooling/norm"),
    *_layers("map_pooling/mlp", "attention_pooling/mlp", ("hidden", "output")),
    *_pair("pre_logits", "pre_logits"),
    *_pair("head", "head"),
)


class KerasNames:
    """A Keras file under names that can be tabled: every block numbered, dense layers by their role.

    Blocks count from 0, the stages of residual networks from 1.

    Keras names a layer's group by its class and a running number, the first without one.
    """

    def __init__(self, checkpoint):
        self.checkpoint = checkpoint
        self.path = checkpoint.path
        self.metadata = checkpoint.metadata
        dense = sorted(
            {m[0] for name in checkpoint if (m := re.match(r"layers/dense(_1)?/", name))}
        )
        roles = {1: ("head",), 2: ("pre_logits", "head")}.get(len(dense), ())
        self._names = {}
        for name in checkpoint:
            new = name.replace("layers/transformer_block/", "layers/transformer_block_0/")
            new = re.sub(r"layers/(residual|pre_activation)_stage(_\d+)?/", _from_1, new)
            for group, role in zip(dense, roles, strict=False):
                if name.startswith(group):
                    new = f"layers/{role}/{name.removeprefix(group)}"
            self._names[new] = name

    def __iter__(self):
        return iter(self._names)

    def __getitem__(self, name):
        return self.checkpoint[self._names[name]]

    def shape(self, name):
        """Shape of the array `name`."""
        return self.checkpoint.shape(self._names[name])


def _from_1(match):
    number = int((match[2] or "_0")[1:]) + 1
    return f"layers/{match[1]}_stage_{number}/"


def _structure(source, grid):
    own = "layers/patch_encoder/vars/"
    rows, width = source.shape("layers/patch_encoder/projection/vars/0")
    table_grid = tuple(int(n) for n in np.array(source[own + "grid"]))
    names = [name.removeprefix(own) for name in source.names if name.startswith(own)]
    tokens = tuple(name.removesuffix("_token") for name in names if name.endswith("_token"))
    found = {
        "patch_values": rows,
        "width": width,
        "depth": source.count("layers/transformer_block_{i}/attention_norm/vars/0"),
        "mlp": source.shape("layers/transformer_block_0/mlp/projection/vars/0")[0],
        "tokens": tuple(sorted(tokens)),  # "class" comes before "distillation"
        "registers": 0,
        "stages": None,
        "positioned_tokens": 0,
        "representation_size": None,
        "layer_scale": None,
        "grid": table_grid,
        "classes": 0,
        "classifier": ("token", "gap", "avg", "avgmax"),
    }
    if "register_tokens" in names:
        found["registers"] = source.shape(own + "register_tokens")[1]
    blocks = source.re_attention()
    if blocks:
        norm = f"layers/transformer_block_{blocks[0]}/attention/norm/vars"
        kind = "batch" if f"{norm}/2" in source else "layer" if f"{norm}/0" in source else "none"
        found["attention_normalization"] = kind
    if f"{ROOT}/0" in source:
        found["stages"] = source.stages("layers/residual_stage_{s}/unit_{u}/conv_1/vars/0", 1)
        found["stem_width"] = source.shape(f"{ROOT}/0")[-1]
    adjustment = decoded(source["layers/transformer_block_0/vars/scale_adjustment"])
    found["scale_adjustment"] = None if adjustment == "None" else float(adjustment)
    if "positions" in names:
        found["positions"] = "learned-1d"
        found["rows"] = source.shape(own + "positions")[0]
        found["positioned_tokens"] = found["rows"] - math.prod(table_grid)
    else:
        found["positions"] = "learned-2d" if "row_positions" in names else None
    if "layers/transformer_block_0/attention_scale/vars/0" in source:
        found["layer_scale"] = 1e-5
    if "layers/pre_logits/vars/0" in source:
        found["representation_size"] = source.shape("layers/pre_logits/vars/0")[1]
    if "layers/attention_pooling/vars/0" in source:
        found["classifier"] = ("map",)
    if "layers/head/vars/0" in source:
        features, found["classes"] = source.shape("layers/head/vars/0")
        if features != (found["representation_size"] or width):
            found["classifier"] = {2: ("linear",), 5: ("linear4",)}[features // width]
    return found


def _numerics(source):
    text = {
        name: decoded(source[f"layers/{group}/vars/{name}"])
        for group, name in (
            ("transformer_block_0", "epsilon"),
            ("transformer_block_0", "activation"),
            ("patch_encoder", "resampling"),
        )
    }
    encoder = float(text["epsilon"]), text["activation"], text["resampling"]
    return Numerics(*encoder, *(residual_numerics(source) if f"{ROOT}/0" in source else ()))


def residual_numerics(source):
    """`group_epsilon` and `standardization` of a file with a residual network."""
    epsilon = float(decoded(source["layers/group_norm/vars/epsilon"]))
    return epsilon, decoded(source[f"{ROOT}/standardization"])


KERAS = Format(
    name="keras_vit .keras or .weights.h5",
    anchor="layers/patch_encoder/projection/vars/0",
    evidence=("layers/transformer_block_0/attention_norm/vars/0",),
    prefixes=("",),
    rules=_RULES,
    numerics=_numerics,
    structure=_structure,
    re_attention="layers/transformer_block_{i}/attention/vars/0",
    ignored=(
        r"layers/patch_encoder/vars/(grid|resampling)",
        r"layers/transformer_block_\d+/vars/(epsilon|activation|scale_adjustment)",
        r".*/vars/(standardization|epsilon)",
        r".*seed_generator.*",
        r"optimizer/.*",
        r".*/metrics?/.*|compile_metrics/.*|_?loss_tracker/.*|metrics/.*",
    ),
)
