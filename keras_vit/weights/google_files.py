"""Rows of the files that google-research/vision_transformer publishes."""

from keras_vit.registry import Weights
from keras_vit.weights import augreg


def tuned(name, pretrained, rate, size, top1):
    """An AugReg file that was fine-tuned on ImageNet-1k."""
    file_name = f"{pretrained}--imagenet2012-steps_20k-lr_{rate}-res_{size}"
    return augreg.weights(name, file_name, top1)


def published(name, file_name, classes, size, origin, top1=None):
    """A file of the papers before AugReg."""
    return Weights(
        name,
        f"{augreg.BUCKET}{file_name}.npz",
        classes=classes,
        image=(size, size),
        statistics="half",
        crop_fraction=1.0 if size > 224 else 0.9,
        licence="Apache-2.0",
        origin=f"{origin}, github.com/google-research/vision_transformer",
        top1=top1,
    )


def original21k(name, model):
    """Pre-trained on ImageNet-21k in 2020; its head was published as zeros."""
    return published(name, f"imagenet21k/{model}", 21843, 224, "arXiv:2010.11929")


def original(name, model, size=384, top1=None):
    """The 2020 models, fine-tuned on ImageNet-1k."""
    file_name = f"imagenet21k+imagenet2012/{model}"
    return published(name, file_name, 1000, size, "arXiv:2010.11929", top1)
