"""DINOv2: self-supervised Vision Transformers, with and without registers.

Source: Oquab et al. 2023 (arXiv:2304.07193), Darcet et al. 2023 (arXiv:2309.16588);
github.com/facebookresearch/dinov2.
"""

import dataclasses as _dataclasses

from keras_vit.models import plain as _plain
from keras_vit.preprocessing import decode_predictions as decode_predictions
from keras_vit.preprocessing import make_preprocess_input as _make_preprocess_input
from keras_vit.registry import Weights as _Weights
from keras_vit.registry import variant as _variant

preprocess_input = _make_preprocess_input("imagenet")

_URL = "https://dl.fbaipublicfiles.com/dinov2/"
_SMALL = _plain.Config(
    patch=14,
    width=384,
    depth=12,
    heads=6,
    mlp=1536,
    image=(518, 518),
    layer_scale=1e-5,
    activation="gelu",
    resampling="dinov2",
)
_replace = _dataclasses.replace
_BASE = _replace(_SMALL, width=768, heads=12, mlp=3072)
_LARGE = _replace(_SMALL, width=1024, depth=24, heads=16, mlp=4096)
_GIANT = _replace(_SMALL, width=1536, depth=40, heads=24, mlp=4096, feed_forward=_plain.swiglu)


def _sets(base, name, top1):
    """The backbone with the linear head on one block, with that on four, and alone."""
    common = {
        "url": f"{_URL}{base}/{name}_pretrain.pth",
        "image": (518, 518),
        "statistics": "imagenet",
        "crop_fraction": 1.0,
        "licence": "Apache-2.0",
        "origin": "arXiv:2304.07193, github.com/facebookresearch/dinov2",
    }
    return (
        _Weights(
            "imagenet",
            classes=1000,
            head_url=f"{_URL}{base}/{name}_linear_head.pth",
            top1=top1,
            **common,
        ),
        _Weights(
            "imagenet-linear4",
            classes=1000,
            head_url=f"{_URL}{base}/{name}_linear4_head.pth",
            **common,
        ),
        _Weights("lvd142m", classes=0, **common),
    )


def _declare(name, config, base, parameters, top1, top1_registers):
    """The variant without registers, and the one with four."""
    common = {"statistics": "imagenet", "counted": "without a head and mask token"}
    registers = _replace(config, registers=4, resampling="dinov2-registers")
    return (
        _variant(
            name,
            config,
            _plain.build,
            parameters=parameters,
            weights=_sets(base, base, top1),
            **common,
        ),
        _variant(
            f"{name}_reg4",
            registers,
            _plain.build,
            parameters=parameters + 4 * config.width,
            weights=_sets(base, f"{base}_reg4", top1_registers),
            **common,
        ),
    )


DINOv2_S14, DINOv2_S14_reg4 = _declare(
    "DINOv2_S14", _SMALL, "dinov2_vits14", 22_056_192, 81.1, 80.9
)
DINOv2_B14, DINOv2_B14_reg4 = _declare("DINOv2_B14", _BASE, "dinov2_vitb14", 86_579_712, 84.5, 84.6)
DINOv2_L14, DINOv2_L14_reg4 = _declare(
    "DINOv2_L14", _LARGE, "dinov2_vitl14", 304_367_616, 86.3, 86.7
)
DINOv2_g14, DINOv2_g14_reg4 = _declare(
    "DINOv2_g14", _GIANT, "dinov2_vitg14", 1_136_479_232, 86.5, 87.1
)
