"""ViT-B/16 or S/16 of every Keras library that is installed: 224 px, 1000 classes, random weights, logits out.

The models normalise nothing and have no softmax: all of them compute the same function.
"""

import functools
import importlib

SIZES = {"ViT_B16": (768, 12), "ViT_S16": (384, 6)}  # width and heads, both of 12 blocks


def _keras_vit(module, name):
    build = getattr(module, name)
    return build(weights=None, include_preprocessing=False, classifier_activation=None)


def _keras_hub(module, name):
    width, heads = SIZES[name]
    backbone = module.ViTBackbone(
        (224, 224, 3),
        patch_size=16,
        num_layers=12,
        num_heads=heads,
        hidden_dim=width,
        mlp_dim=4 * width,
    )
    return module.ViTImageClassifier(backbone, num_classes=1000, preprocessor=None, activation=None)


def _vit_keras(module, name):
    return module.vit_b16(classes=1000, pretrained=False, pretrained_top=False)


def _zeromodels(module, name):
    width, heads = SIZES[name]
    return module.ViTImageClassify(
        embed_dim=width, num_heads=heads, num_classes=1000, classifier_activation="linear"
    )


# name -> the module that holds its models, the function that builds one, and those it builds
LIBRARIES = {
    "keras_vit": ("keras_vit", _keras_vit, SIZES),
    "keras_hub": ("keras_hub.models", _keras_hub, SIZES),
    "vit_keras": ("vit_keras.vit", _vit_keras, ["ViT_B16"]),
    "zeromodels": ("zeromodels.models.vit", _zeromodels, SIZES),
}


def builders(name="ViT_B16"):
    """Functions that build the model, of the libraries that can be imported; what is wrong with the others."""
    found, missing = {}, {}
    for library, (module, build, names) in LIBRARIES.items():
        if name not in names:
            continue
        try:
            module = importlib.import_module(module)
        except ImportError as error:
            if library == "keras_vit":
                raise
            missing[library] = str(error)
        else:
            found[library] = functools.partial(build, module, name)
    return found, missing
