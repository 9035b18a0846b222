"""The hybrids: a residual network makes the feature map from which a Vision Transformer takes its tokens.

In a name the number after R counts the layers of the network, the last one the pixels of the image
per token; only `R_Ti16`, named as published, has 32. The feature maps of the network are the outputs
of its stages:

    model = keras_vit.R50_B16()
    maps = [model.get_layer(f"r50_b16_stage_{s}").output for s in (1, 2, 3)]
    backbone = keras.Model(model.inputs, maps)

Source: Dosovitskiy et al. 2021 (arXiv:2010.11929), Steiner et al. 2021 (arXiv:2106.10270);
github.com/google-research/vision_transformer.
"""

import dataclasses as _dataclasses

from keras_vit.models import plain as _plain
from keras_vit.preprocessing import decode_predictions as decode_predictions
from keras_vit.preprocessing import make_preprocess_input as _make_preprocess_input
from keras_vit.registry import variant as _variant
from keras_vit.weights import augreg as _augreg
from keras_vit.weights.google_files import original as _original
from keras_vit.weights.google_files import original21k as _original21k
from keras_vit.weights.google_files import tuned as _tuned

preprocess_input = _make_preprocess_input("half")

_replace = _dataclasses.replace
_BASE = _plain.Config(
    patch=1,
    width=768,
    depth=12,
    heads=12,
    mlp=3072,
    stem=_plain.residual_stem,
    stem_stride=16,
    stages=(3, 4, 9),
)
_TINY = _replace(_BASE, patch=8, width=192, heads=3, mlp=768, stem_stride=4, stages=())
_BASE32 = _replace(_BASE, stem_stride=32, stages=(2, 2, 2, 2))
_SMALL = _replace(_BASE32, width=384, heads=6, mlp=1536)
_LARGE = _replace(
    _BASE, width=1024, depth=24, heads=16, mlp=4096, stem_stride=32, stages=(3, 4, 6, 3)
)

_R_TI16 = "R_Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0"
_R26_S32 = "R26_S_32-i21k-300ep-lr_0.001-aug_medium2-wd_0.03-do_0.0-sd_0.0"
_R26_S32_224 = "R26_S_32-i21k-300ep-lr_0.001-aug_light0-wd_0.03-do_0.1-sd_0.1"
_R26_S32_README = "R26_S_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0"
_R50_L32 = "R50_L_32-i21k-300ep-lr_0.001-aug_medium2-wd_0.1-do_0.0-sd_0.0"
_R50_L32_README = "R50_L_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1"

# Names as in vit.py.
R_Ti16 = _variant(
    "R_Ti16",
    _TINY,
    _plain.build,
    parameters=6_337_704,
    weights=(
        _tuned("imagenet", _R_TI16, 0.03, 224, 71.800),
        _tuned("imagenet-384", _R_TI16, 0.03, 384, 75.962),
        _augreg.weights("imagenet21k", _R_TI16),
    ),
)
R26_S32 = _variant(
    "R26_S32",
    _SMALL,
    _plain.build,
    parameters=36_431_912,
    weights=(
        _tuned("imagenet", _R26_S32_224, 0.03, 224, 81.856),
        _tuned("imagenet-384", _R26_S32, 0.03, 384, 84.066),
        _augreg.weights("imagenet21k", _R26_S32),
        _tuned("recommended-imagenet-384", _R26_S32_README, 0.01, 384, 83.85),
        _augreg.weights("recommended-imagenet21k", _R26_S32_README),
    ),
)
R26_B32 = _variant(
    "R26_B32",
    _BASE32,
    _plain.build,
    parameters=101_383_976,
    weights=(_original21k("imagenet21k", "R26+ViT-B_32"),),
)
R50_B16 = _variant(
    "R50_B16",
    _BASE,
    _plain.build,
    parameters=98_659_112,
    weights=(
        _original("imagenet", "R50+ViT-B_16", top1=83.72),
        _original21k("imagenet21k", "R50+ViT-B_16"),
    ),
)
R50_L32 = _variant(
    "R50_L32",
    _LARGE,
    _plain.build,
    parameters=328_994_856,
    weights=(
        _tuned("imagenet", _R50_L32_README, 0.01, 224, 84.434),
        _tuned("imagenet-384", _R50_L32, 0.01, 384, 86.188),
        _augreg.weights("imagenet21k", _R50_L32),
        _tuned("recommended-imagenet-384", _R50_L32_README, 0.01, 384, 85.99),
        _augreg.weights("recommended-imagenet21k", _R50_L32_README),
        _original21k("original-imagenet21k", "R50+ViT-L_32"),
    ),
)
