"""Checkpoints of Big Transfer: the official .npz files, timm's, and our own."""

from keras_vit.weights import rules as t
from keras_vit.weights.formats import Format, Numerics
from keras_vit.weights.rules import Rule
from keras_vit.weights.tables.keras_names import KERAS, ROOT, residual_numerics, residual_stages
from keras_vit.weights.tables.torch_names import norm, residual_units


def _group_norm(target, source):
    return [Rule(f"{target}/gamma", f"{source}/gamma"), Rule(f"{target}/beta", f"{source}/beta")]


_KERNEL = "standardized_conv2d/kernel"
_NPZ_ROOT = f"resnet/root_block/{_KERNEL}"
_UNIT, _OUR_UNIT = "resnet/block{s}/unit{u:02d}", "stage_{s}/unit_{u}"

_NPZ = (
    Rule("root_conv/kernel", _NPZ_ROOT, t.first_kernel_hwio),
    *(
        Rule(f"{_OUR_UNIT}/conv_{k}/kernel", f"{_UNIT}/{letter}/{_KERNEL}")
        for k, letter in enumerate("abc", start=1)
    ),
    *(
        rule
        for k, letter in enumerate("abc", start=1)
        for rule in _group_norm(f"{_OUR_UNIT}/norm_{k}", f"{_UNIT}/{letter}/group_norm")
    ),
    Rule(f"{_OUR_UNIT}/projection/kernel", f"{_UNIT}/a/proj/{_KERNEL}"),
    *_group_norm("norm", "resnet/group_norm"),
    Rule("head/kernel", "resnet/head/conv2d/kernel", t.reshaped),
    Rule("head/bias", "resnet/head/conv2d/bias"),
)

_TIMM = (
    Rule("root_conv/kernel", "stem.conv.weight", t.first_kernel_oihw),
    *residual_units(),
    *norm("norm", "norm"),
    Rule("head/kernel", "head.fc.weight", t.pointwise_kernel),
    Rule("head/bias", "head.fc.bias"),
)

_OWN = (
    Rule("root_conv/kernel", f"{ROOT}/0", t.first_kernel_hwio),
    *residual_stages("pre_activation_stage"),
    Rule("norm/gamma", "layers/group_norm/vars/0"),
    Rule("norm/beta", "layers/group_norm/vars/1"),
    Rule("head/kernel", "layers/head/vars/0"),
    Rule("head/bias", "layers/head/vars/1"),
)


def _structure(root, kernel, first, first_unit, head, axis):
    """The `structure` of a format.

    Args:
        root: name of the first kernel.
        kernel: name of the 3x3 kernel of a unit, the stage as {s}, the unit as {u}.
        first: number of the first stage.
        first_unit: number of the first unit, as the names have it.
        head: name of the head's kernel.
        axis: of the output channels in the kernels.
    """

    def structure(source, grid):
        stages = source.stages(kernel, first)
        kernels = (kernel.format(s=first + k, u=first_unit) for k in range(len(stages)))
        return {
            "stages": stages,
            "stem_width": source.shape(root)[axis],
            "filters": tuple(source.shape(name)[axis] for name in kernels),
            "classes": source.shape(head)[axis] if head in source else 0,
        }

    return structure


BIT_NPZ = Format(
    name="Big Transfer",
    anchor=_NPZ_ROOT,
    evidence=(f"resnet/block1/unit01/a/{_KERNEL}",),
    prefixes=("",),
    rules=_NPZ,
    numerics=lambda source: Numerics(None, None, None, 1e-5, "bit"),
    structure=_structure(
        _NPZ_ROOT,
        f"resnet/block{{s}}/unit{{u}}/b/{_KERNEL}",
        1,
        "01",
        "resnet/head/conv2d/kernel",
        -1,
    ),
    statistics="half",
)

BIT_TIMM = Format(
    name="timm ResNetV2",
    anchor="stem.conv.weight",
    evidence=("stages.0.blocks.0.conv1.weight",),
    prefixes=("",),
    rules=_TIMM,
    numerics=lambda source: Numerics(None, None, None, 1e-5, "timm"),
    structure=_structure(
        "stem.conv.weight", "stages.{s}.blocks.{u}.conv2.weight", 0, "0", "head.fc.weight", 0
    ),
    statistics="half",
)

BIT_KERAS = Format(
    name=KERAS.name,
    anchor=f"{ROOT}/0",
    evidence=("layers/pre_activation_stage_1/unit_1/conv_1/vars/0",),
    prefixes=("",),
    rules=_OWN,
    numerics=lambda source: Numerics(None, None, None, *residual_numerics(source)),
    structure=_structure(
        f"{ROOT}/0",
        "layers/pre_activation_stage_{s}/unit_{u}/conv_2/vars/0",
        1,
        "1",
        "layers/head/vars/0",
        -1,
    ),
    ignored=KERAS.ignored,
)
