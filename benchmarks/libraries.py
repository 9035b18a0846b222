"""ViT-B/16 of every Keras library that is installed: 224 px, 1000 classes, random weights, logits out.

The models normalise nothing and have no softmax: all of them compute the same function.
"""

import functools
import importlib


def _keras_vit(module):
    return module.ViT_B16(weights=None, include_preprocessing=False, classifier_activation=None)


def _keras_hub(module):
    backbone = module.ViTBackbone(
        (224, 224, 3), patch_size=16, num_layers=12, num_heads=12, hidden_dim=768, mlp_dim=3072
    )
    return module.ViTImageClassifier(backbone, num_classes=1000, preprocessor=None, activation=None)


def _vit_keras(module):
    return module.vit_b16(classes=1000, pretrained=False, pretrained_top=False)


def _zeromodels(module):
    return module.ViTImageClassify(num_classes=1000, classifier_activation="linear")


# name -> the module that holds its models, and the function that builds one
LIBRARIES = {
    "keras_vit": ("keras_vit", _keras_vit),
    "keras_hub": ("keras_hub.models", _keras_hub),
    "vit_keras": ("vit_keras.vit", _vit_keras),
    "zeromodels": ("zeromodels.models.vit", _zeromodels),
}


def builders():
    """Functions that build the model, of the libraries that can be imported; what is wrong with the others."""
    found, missing = {}, {}
    for name, (module, build) in LIBRARIES.items():
        try:
            module = importlib.import_module(module)
        except ImportError as error:
            if name == "keras_vit":
                raise
            missing[name] = str(error)
        else:
            found[name] = functools.partial(build, module)
    return found, missing
