"""SavedModels for TensorFlow Serving."""

import dataclasses
import json
import os
import pathlib

import keras

from keras_vit.export import signatures, warm_up
from keras_vit.export.decoding import MAX_PIXELS
from keras_vit.files import temporary
from keras_vit.preprocessing import class_names, recipe_of


def saved_model(
    model, path, classes=None, version=None, *, jit_compile=False, max_pixels=MAX_PIXELS
):
    """Writes a model as a SavedModel with preprocessing and class names, for TensorFlow Serving.

    The signatures are those of `keras_vit.export.signatures.functions`: float32 or uint8 images,
    encoded image files, features, attention. The folder also holds the recipe and the class names in
    `assets/`, and requests with which the server warms up in `assets.extra/`. It appears under its
    number when it is complete, so a running server never sees half of it.

    Args:
        model: a model of this package that normalises its pictures itself, or a model that holds
            one, such as a fine-tuned one.
        path: folder of all versions of the model.
        classes: the class names in label order, str or (identifier, name); None takes those of
            ImageNet-1k for 1,000 classes, of ImageNet-21k for 21,843, else "class 0", ...
        version: a positive integer; None for one more than the highest in `path`.
        jit_compile: let XLA compile the model on the server. The first request of every batch size
            then takes long.
        max_pixels: larger pictures are refused unread in "serving_bytes".

    Returns:
        `pathlib.Path` of the version's folder.

    Raises:
        ValueError: the Keras backend is not TensorFlow; the model takes no pictures of 3 channels,
            or does not normalise them; it has several outputs; the number of class names is not that
            of the classes; the version exists already.
        OSError: the folder cannot be written.
    """
    check_backend()
    recipe = check_model(model)
    labels = labels_of(model, classes)
    folder = next_folder(pathlib.Path(path), version)
    folder.parent.mkdir(parents=True, exist_ok=True)
    import tensorflow as tf

    module = tf.Module()
    module.served_variables = [variable.value for variable in model.variables]
    concrete = signatures.functions(model, labels, jit_compile, max_pixels)
    with temporary(folder) as partial, temporary(folder) as texts:
        texts.mkdir()
        module.assets = [
            tf.saved_model.Asset(str(asset)) for asset in _write_assets(texts, recipe, labels)
        ]
        tf.saved_model.save(module, str(partial), signatures=concrete)
        warm_up.write(partial, concrete, model.name)
        _publish(partial, folder)
    return folder


def check_backend():
    """Raises ValueError unless Keras runs on TensorFlow."""
    if keras.config.backend() != "tensorflow":
        raise ValueError(
            "Models are exported through TensorFlow. Received: Keras backend "
            f"{keras.config.backend()!r}. Save the model as .keras, and export that with "
            "KERAS_BACKEND=tensorflow."
        )


def check_model(model):
    """The recipe of a model that can be exported.

    Raises:
        ValueError: not a model of pictures, or one of several outputs.
    """
    if not isinstance(model, keras.Model):
        raise ValueError(f"`model` must be a keras.Model. Received: {type(model)}.")
    if len(getattr(model, "inputs", None) or ()) != 1 or len(model.outputs) != 1:
        raise ValueError(
            f"The model must be built, with one input and one output. Received: {model.name}."
        )
    if len(model.input_shape) != 4:
        raise ValueError(
            "The model must take images (B, H, W, 3). "
            f"Received: {model.name} with input shape {model.input_shape}."
        )
    return recipe_of(model)


def labels_of(model, classes):
    """Name of every class in order; None of a model without classes.

    Raises:
        ValueError: not as many names as classes.
    """
    outputs = signatures.outputs_of(model).output
    if "probabilities" not in outputs:
        return None
    count = outputs["probabilities"].shape[-1]
    if classes is None:
        dataset = {1000: "imagenet", 21843: "imagenet21k"}.get(count)
        classes = class_names(dataset) if dataset else [f"class {k}" for k in range(count)]
    if len(classes) != count:
        raise ValueError(
            "There must be one name a class. "
            f"Received: {len(classes)} names for the {count} classes of {model.name}."
        )
    return [name if isinstance(name, str) else name[-1] for name in classes]


def versions(path):
    """The version numbers in a folder, in order."""
    path = pathlib.Path(path)
    names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
    return sorted(int(name) for name in names if name.isdigit())


def next_folder(path, version):
    """The folder of a version, which does not exist yet; `version` None for the next one."""
    if version is None:
        return path / str(max(versions(path), default=0) + 1)
    if not isinstance(version, int) or version < 1:
        raise ValueError(f"`version` must be a positive integer. Received: version={version!r}.")
    if version in versions(path):
        raise ValueError(_EXISTS.format(path / str(version)))
    return path / str(version)


_EXISTS = "This version exists already, and served versions never change. Received: '{}'. Take the next number."


def _write_assets(folder, recipe, labels):
    files = [folder / "recipe.json"]
    files[0].write_text(json.dumps(dataclasses.asdict(recipe), indent=2) + "\n")
    if labels:
        files.append(folder / "class_names.txt")
        files[1].write_text("\n".join(labels) + "\n", encoding="utf-8")
    return files


def _publish(partial, folder):
    """Renames, which fails if another process has written this version in the meantime."""
    try:
        os.rename(partial, folder)
    except OSError as error:
        if folder.exists():
            raise ValueError(_EXISTS.format(folder)) from error
        raise
