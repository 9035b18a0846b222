"""The AugReg checkpoints (Steiner et al. 2021): over 50,000 files whose names say what they hold."""

import re

from keras_vit.registry import Weights

BUCKET = "https://storage.googleapis.com/vit_models/"
ORIGIN = "arXiv:2106.10270, github.com/google-research/vision_transformer"

_MODELS = {
    "Ti_16": "ViT_Ti16",
    "S_32": "ViT_S32",
    "S_16": "ViT_S16",
    "B_32": "ViT_B32",
    "B_16": "ViT_B16",
    "B_8": "ViT_B8",
    "L_16": "ViT_L16",
    "R_Ti_16": "R_Ti16",
    "R26_S_32": "R26_S32",
    "R50_L_32": "R50_L32",
}

_NAME = re.compile(
    r"(?P<model>[A-Za-z0-9_]+?)-(?P<data>i21k|i1k)-\d+ep-lr_[\d.e-]+-aug_\w+-wd_[\d.]+-do_[\d.]+-sd_[\d.]+"
    r"(--(?P<task>\w+)-steps_\w+-lr_[\d.]+-res_(?P<size>\d+))?"
)
_CLASSES = {
    "i21k": 21843,
    "i1k": 1000,
    "imagenet2012": 1000,
    "cifar100": 100,
    "cifar10": 10,
    "oxford_iiit_pet": 37,
    "oxford_flowers102": 102,
    "resisc45": 45,
    "kitti": 4,
}


def weights_of(variant_name, text):
    """The `Weights` of an AugReg file, read off its name.

    Args:
        variant_name: the model that is to take it, such as "ViT_B16".
        text: "augreg/" and the file's name as published, with or without ".npz".

    Raises:
        ValueError: not such a name, or of another model.
    """
    name = text.removeprefix("augreg/").removesuffix(".npz")
    row = weights(f"augreg/{name}", name)
    model = _MODELS.get(_NAME.fullmatch(name)["model"])
    if model != variant_name:
        raise ValueError(
            f"{variant_name}: this AugReg file belongs to {model or 'a model that is not here'}. "
            f"Received: weights={text!r}."
        )
    return row


def weights(set_name, file_name, top1=None):
    """The `Weights` row of an AugReg file, with what its name says.

    Args:
        set_name: name of the set for users.
        file_name: as published, without ".npz".
        top1: published accuracy in percent.

    Raises:
        ValueError: not the name of an AugReg file.
    """
    match = _NAME.fullmatch(file_name)
    if match is None:
        raise ValueError(
            f"Not the name of an AugReg file. Received: {file_name!r}. Expected one such as "
            "'B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"
            "--imagenet2012-steps_20k-lr_0.01-res_224'."
        )
    size = int(match["size"] or 224)
    task = match["task"] or match["data"]
    if task not in _CLASSES:
        raise ValueError(
            f"The number of classes of this AugReg file is not known. Received: {file_name!r}, "
            f"task {task!r}. Known: {', '.join(_CLASSES)}. Download it and give its path."
        )
    return Weights(
        set_name,
        f"{BUCKET}augreg/{file_name}.npz",
        classes=_CLASSES[task],
        image=(size, size),
        statistics="half",
        crop_fraction=1.0 if size > 224 else 0.9,
        licence="Apache-2.0",
        origin=ORIGIN,
        top1=top1,
    )
