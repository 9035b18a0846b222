"""ONNX files."""

import dataclasses
import json
import pathlib

from keras_vit.export import servable, signatures
from keras_vit.export.precision import float32_copy
from keras_vit.files import replacing

OPSET = 18


def onnx(model, path, classes=None):
    """Writes a model as an ONNX file of opset 18, in float32.

    Input `images`, float32 (B, H, W, 3), 0..255, B any number, H and W those of the model; outputs as
    `keras_vit.export.signatures.outputs_of` names them. The file's metadata hold the recipe by which
    pictures are cut (`recipe`, JSON) and the class names (`class_names`, a line each).

    Args:
        model, classes: as for `saved_model`. A model of half precision is rebuilt in float32.
        path: of the file to write; an older one is replaced.

    Raises:
        ImportError: the extra is not installed.
        ValueError: as `saved_model`; the model is quantised.
        OSError: the file cannot be written.
    """
    servable.check_backend()
    recipe = servable.check_model(model)
    labels = servable.labels_of(model, classes)
    try:
        import tf2onnx
    except ImportError as error:
        raise ImportError(
            'ONNX files need an extra: pip install "keras-vit-zoo[onnx]". '
            f"Received: {type(error).__name__}: {error}."
        ) from error
    function = signatures.prediction(float32_copy(model))
    proto, _ = tf2onnx.convert.from_function(function, function.input_signature, opset=OPSET)
    metadata = {"recipe": json.dumps(dataclasses.asdict(recipe))}
    if labels:
        metadata["class_names"] = "\n".join(labels)
    for key, value in metadata.items():
        proto.metadata_props.add(key=key, value=value)
    with replacing(path) as partial:
        partial.write_bytes(proto.SerializeToString())


def run_onnx(path):
    """A function of images, uint8 or float32 (B, H, W, 3), -> dict of arrays, by ONNX Runtime.

    Raises:
        ImportError: ONNX Runtime is not installed.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(pathlib.Path(path).read_bytes())
    names = [output.name for output in session.get_outputs()]

    def run(images):
        values = session.run(names, {"images": images.astype("float32")})
        return dict(zip(names, values, strict=True))

    return run
