"""The Vision Transformer.

Source: Dosovitskiy et al. 2021 (arXiv:2010.11929), Steiner et al. 2021 (arXiv:2106.10270), Chen et al.
2021 (arXiv:2106.01548), Zhai et al. 2022 (arXiv:2106.04560); github.com/google-research/vision_transformer.
"""

import dataclasses as _dataclasses

from keras_vit.models import plain as _plain
from keras_vit.preprocessing import decode_predictions as decode_predictions
from keras_vit.preprocessing import make_preprocess_input as _make_preprocess_input
from keras_vit.registry import Weights as _Weights
from keras_vit.registry import variant as _variant
from keras_vit.weights import augreg as _augreg
from keras_vit.weights.google_files import original as _original
from keras_vit.weights.google_files import original21k as _original21k
from keras_vit.weights.google_files import published as _published
from keras_vit.weights.google_files import tuned as _tuned

preprocess_input = _make_preprocess_input("half")

_replace = _dataclasses.replace
_BASE = _plain.Config(patch=16, width=768, depth=12, heads=12, mlp=3072)
_TINY = _replace(_BASE, width=192, heads=3, mlp=768)
_SMALL = _replace(_BASE, width=384, heads=6, mlp=1536)
_LARGE = _replace(_BASE, width=1024, depth=24, heads=16, mlp=4096)
_HUGE = _replace(_BASE, patch=14, width=1280, depth=32, heads=16, mlp=5120)
_GIANT = _replace(_BASE, patch=14, width=1408, depth=40, heads=16, mlp=6144)
_GIGANTIC = _replace(_BASE, patch=14, width=1664, depth=48, heads=16, mlp=8192)


def _sam(model):
    """Trained on ImageNet-1k alone with sharpness-aware minimisation."""
    return _published("sam-imagenet", f"sam/ViT-{model}", 1000, 224, "arXiv:2106.01548")


_TI16 = "Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0"
_S32 = "S_32-i21k-300ep-lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0"
_S32_README = "S_32-i21k-300ep-lr_0.001-aug_none-wd_0.1-do_0.0-sd_0.0"
_S16 = "S_16-i21k-300ep-lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0"
_S16_1K = "S_16-i1k-300ep-lr_0.001-aug_medium2-wd_0.1-do_0.0-sd_0.0"
_B32 = "B_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.03-do_0.0-sd_0.0"
_B32_README = "B_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0"
_B32_1K = "B_32-i1k-300ep-lr_0.001-aug_medium2-wd_0.1-do_0.1-sd_0.1"
_B16 = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"
_B16_1K = "B_16-i1k-300ep-lr_0.001-aug_strong2-wd_0.1-do_0.1-sd_0.1"
_B8 = "B_8-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"
_B8_NOTEBOOK = "B_8-i21k-300ep-lr_0.001-aug_medium2-wd_0.1-do_0.0-sd_0.0"
_L16 = "L_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1"
_L16_README = "L_16-i21k-300ep-lr_0.001-aug_strong1-wd_0.1-do_0.0-sd_0.0"

# Names: "imagenet" and "imagenet-384" are the sets that timm takes by default, with its top-1;
# "recommended-..." those of the table in the authors' README, with theirs; "...1k" never saw ImageNet-21k.
ViT_Ti16 = _variant(
    "ViT_Ti16",
    _TINY,
    _plain.build,
    parameters=5_717_416,
    weights=(
        _tuned("imagenet", _TI16, 0.03, 224, 75.452),
        _tuned("imagenet-384", _TI16, 0.03, 384, 78.438),
        _augreg.weights("imagenet21k", _TI16),
    ),
)
ViT_S8 = _variant("ViT_S8", _replace(_SMALL, patch=8), _plain.build, parameters=22_055_272)
ViT_S16 = _variant(
    "ViT_S16",
    _SMALL,
    _plain.build,
    parameters=22_050_664,
    weights=(
        _tuned("imagenet", _S16, 0.03, 224, 81.402),
        _tuned("imagenet-384", _S16, 0.03, 384, 83.814),
        _augreg.weights("imagenet21k", _S16),
        _tuned("imagenet1k", _S16_1K, 0.01, 224, 78.842),
        _tuned("imagenet1k-384", _S16_1K, 0.01, 384, 81.130),
        _sam("S_16"),
    ),
)
ViT_S32 = _variant(
    "ViT_S32",
    _replace(_SMALL, patch=32),
    _plain.build,
    parameters=22_878_952,
    weights=(
        _tuned("imagenet", _S32, 0.03, 224, 76.010),
        _tuned("imagenet-384", _S32, 0.03, 384, 80.476),
        _augreg.weights("imagenet21k", _S32),
        _tuned("recommended-imagenet-384", _S32_README, 0.01, 384, 79.58),
        _augreg.weights("recommended-imagenet21k", _S32_README),
    ),
)
ViT_B8 = _variant(
    "ViT_B8",
    _replace(_BASE, patch=8),
    _plain.build,
    parameters=86_576_872,
    weights=(
        _tuned("imagenet", _B8, 0.01, 224, 85.838),
        _augreg.weights("imagenet21k", _B8),
        _tuned("recommended-imagenet", _B8_NOTEBOOK, 0.03, 224, None),
        _original("original-imagenet-384", "ViT-B_8"),
        _original21k("original-imagenet21k", "ViT-B_8"),
    ),
)
ViT_B16 = _variant(
    "ViT_B16",
    _BASE,
    _plain.build,
    parameters=86_567_656,
    weights=(
        _tuned("imagenet", _B16, 0.01, 224, 84.534),
        _tuned("imagenet-384", _B16, 0.01, 384, 86.010),
        _augreg.weights("imagenet21k", _B16),
        _tuned("recommended-imagenet-384", _B16, 0.03, 384, 85.49),
        _tuned("imagenet1k", _B16_1K, 0.01, 224, 79.154),
        _tuned("imagenet1k-384", _B16_1K, 0.01, 384, 81.102),
        _original("original-imagenet", "ViT-B_16-224", 224, 81.2),
        _original("original-imagenet-384", "ViT-B_16", top1=84.53),
        _original21k("original-imagenet21k", "ViT-B_16"),
        _sam("B_16"),
    ),
)
ViT_B32 = _variant(
    "ViT_B32",
    _replace(_BASE, patch=32),
    _plain.build,
    parameters=88_224_232,
    weights=(
        _tuned("imagenet", _B32, 0.03, 224, 80.732),
        _tuned("imagenet-384", _B32_README, 0.03, 384, 83.358),
        _augreg.weights("imagenet21k", _B32),
        _tuned("recommended-imagenet-384", _B32_README, 0.01, 384, 83.59),
        _augreg.weights("recommended-imagenet21k", _B32_README),
        _tuned("imagenet1k", _B32_1K, 0.01, 224, 74.908),
        _tuned("imagenet1k-384", _B32_1K, 0.01, 384, 78.750),
        _original("original-imagenet-384", "ViT-B_32", top1=81.66),
        _original21k("original-imagenet21k", "ViT-B_32"),
        _sam("B_32"),
    ),
)
ViT_L16 = _variant(
    "ViT_L16",
    _LARGE,
    _plain.build,
    parameters=304_326_632,
    weights=(
        _tuned("imagenet", _L16, 0.01, 224, 85.856),
        _tuned("imagenet-384", _L16, 0.01, 384, 87.096),
        _augreg.weights("imagenet21k", _L16),
        _tuned("recommended-imagenet-384", _L16_README, 0.01, 384, 85.59),
        _augreg.weights("recommended-imagenet21k", _L16_README),
        _original("original-imagenet", "ViT-L_16-224", 224, 82.7),
        _original("original-imagenet-384", "ViT-L_16", top1=84.47),
        _original21k("original-imagenet21k", "ViT-L_16"),
        _sam("L_16"),
    ),
)
ViT_L32 = _variant(
    "ViT_L32",
    _replace(_LARGE, patch=32),
    _plain.build,
    parameters=306_535_400,
    weights=(
        _original("imagenet", "ViT-L_32", top1=81.89),
        _original21k("imagenet21k", "ViT-L_32"),
        _sam("L_32"),
    ),
)
ViT_H14 = _variant(
    "ViT_H14",
    _HUGE,
    _plain.build,
    parameters=632_045_800,
    weights=(_original21k("imagenet21k", "ViT-H_14"),),
)
ViT_g14 = _variant("ViT_g14", _GIANT, _plain.build, parameters=1_012_611_432)
ViT_G14 = _variant("ViT_G14", _GIGANTIC, _plain.build, parameters=1_844_440_680)

# The small model that ships with the package: 28x28 pictures, trained by applications/fashion_mnist.
ViT_Mini4 = _variant(
    "ViT_Mini4",
    _replace(_BASE, patch=4, width=96, depth=6, heads=3, mlp=192, image=(28, 28)),
    _plain.build,
    parameters=459_466,
    classes=10,
    counted="with 10 classes at 28x28",
    weights=(
        _Weights(
            "fashion-mnist",
            "package:vit_mini4_fashion_mnist.npz",
            classes=10,
            image=(28, 28),
            statistics="half",
            crop_fraction=1.0,
            licence="Apache-2.0",
            origin="applications/fashion_mnist, trained on Fashion-MNIST (MIT licence)",
            labels=(
                "T-shirt/top",
                "Trouser",
                "Pullover",
                "Dress",
                "Coat",
                "Sandal",
                "Shirt",
                "Sneaker",
                "Bag",
                "Ankle boot",
            ),
        ),
    ),
)
