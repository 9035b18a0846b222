"""Big Transfer: residual networks with standardised kernels and GroupNorm, and no attention.

The feature maps are the outputs of the four stages, of 1/4, 1/8, 1/16 and 1/32 of the image's size:

    model = keras_vit.BiT_R50x1(input_shape=(None, None, 3))
    maps = [model.get_layer(f"bit_r50x1_stage_{s}").output for s in (1, 2, 3, 4)]
    backbone = keras.Model(model.inputs, maps)

They are not normalised; the output of a model with `include_top=False` is.

Source: Kolesnikov et al. 2020 (arXiv:1912.11370), Beyer et al. 2022 (arXiv:2106.05237; the distilled
sets and their teachers); github.com/google-research/big_transfer.
"""

from keras_vit.models import residual as _residual
from keras_vit.preprocessing import decode_predictions as decode_predictions
from keras_vit.preprocessing import make_preprocess_input as _make_preprocess_input
from keras_vit.registry import Weights as _Weights
from keras_vit.registry import variant as _variant

preprocess_input = _make_preprocess_input("half")


def _config(stages, factor):
    filters = tuple(factor * width for width in (64, 128, 256, 512))
    return _residual.Config(stages, filters, 64 * factor)


def _set(
    name,
    file_name,
    classes,
    size,
    interpolation="bilinear",
    top1=None,
    crop_fraction=1.0,
    paper="arXiv:1912.11370",
):
    return _Weights(
        name,
        f"https://storage.googleapis.com/bit_models/{file_name}.npz",
        classes=classes,
        image=(size, size),
        statistics="half",
        crop_fraction=crop_fraction,
        interpolation=interpolation,
        licence="Apache-2.0",
        origin=f"{paper}, github.com/google-research/big_transfer",
        top1=top1,
    )


def _published(model, top1, size=448):
    """Pre-trained on ImageNet-21k (M) and fine-tuned; pre-trained alone; trained on ImageNet-1k (S)."""
    return (
        _set("imagenet", f"BiT-M-{model}-ILSVRC2012", 1000, size, top1=top1),
        _set("imagenet21k", f"BiT-M-{model}", 21843, 224, crop_fraction=0.875),
        _set("imagenet1k", f"BiT-S-{model}", 1000, 224, crop_fraction=0.875),
    )


def _distillation(name, file_name, size, top1):
    """A network distilled from `BiT_R152x2`, or that teacher."""
    return _set(
        name,
        f"distill/{file_name}",
        1000,
        size,
        "bicubic",
        top1,
        crop_fraction=1.0 if size > 224 else 0.875,
        paper="arXiv:2106.05237",
    )


# Sizes, crops and top-1 are timm's; those of the distilled set of 160 pixels the authors'.
BiT_R50x1 = _variant(
    "BiT_R50x1",
    _config((3, 4, 6, 3), 1),
    _residual.build,
    parameters=25_549_352,
    weights=(
        *_published("R50x1", 80.386),
        _distillation("distilled-imagenet", "R50x1_224", 224, 82.820),
        _distillation("distilled-imagenet-160", "R50x1_160", 160, 80.5),
    ),
)
BiT_R50x3 = _variant(
    "BiT_R50x3",
    _config((3, 4, 6, 3), 3),
    _residual.build,
    parameters=217_319_080,
    weights=_published("R50x3", 83.982),
)
BiT_R101x1 = _variant(
    "BiT_R101x1",
    _config((3, 4, 23, 3), 1),
    _residual.build,
    parameters=44_541_480,
    weights=_published("R101x1", 82.332),
)
BiT_R101x3 = _variant(
    "BiT_R101x3",
    _config((3, 4, 23, 3), 3),
    _residual.build,
    parameters=387_934_888,
    weights=_published("R101x3", 84.430),
)
BiT_R152x2 = _variant(
    "BiT_R152x2",
    _config((3, 8, 36, 3), 2),
    _residual.build,
    parameters=236_335_208,
    weights=(
        *_published("R152x2", 84.468),
        _distillation("teacher-imagenet", "R152x2_T_224", 224, 82.918),
        _distillation("teacher-imagenet-384", "R152x2_T_384", 384, 83.858),
    ),
)
BiT_R152x4 = _variant(
    "BiT_R152x4",
    _config((3, 8, 36, 3), 4),
    _residual.build,
    parameters=936_533_224,
    weights=_published("R152x4", 84.936, size=480),
)
