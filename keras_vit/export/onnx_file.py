"""ONNX files."""

import dataclasses
import json
import pathlib

from keras_vit.export import servable, signatures
from keras_vit.export.precision import float32_copy
from keras_vit.files import replacing

OPSET = 18
LIMIT = 2**31 - 2**20  # bytes of weights: protobuf ends at 2^31, less what the graph takes


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
        ValueError: as `saved_model`; the model is quantised, or larger than the 2 GB that an ONNX
            file holds.
        OSError: the file cannot be written.
    """
    servable.check_backend()
    recipe = servable.check_model(model)
    labels = servable.labels_of(model, classes)
    if 4 * model.count_params() > LIMIT:
        raise ValueError(
            f"An ONNX file holds at most {LIMIT} bytes. Received: {model.name}, whose "
            f"{model.count_params()} parameters take {4 * model.count_params()} bytes. "
            "Export it as a SavedModel."
        )
    try:
        import tf2onnx
    except ImportError as error:
        raise ImportError(
            'ONNX files need an extra: pip install "keras-vit-zoo[onnx]". '
            f"Received: {type(error).__name__}: {error}."
        ) from error
    copy = float32_copy(model)
    weights = {f"weight_{i}": variable for i, variable in enumerate(copy.variables)}
    function = _with_weights_as_inputs(signatures.prediction(copy), weights)
    proto, _ = tf2onnx.convert.from_function(function, function.input_signature, opset=OPSET)
    _hold(proto.graph, weights)
    metadata = {"recipe": json.dumps(dataclasses.asdict(recipe))}
    if labels:
        metadata["class_names"] = "\n".join(labels)
    for key, value in metadata.items():
        proto.metadata_props.add(key=key, value=value)
    with replacing(path) as partial:
        partial.write_bytes(proto.SerializeToString())


def _with_weights_as_inputs(function, weights):
    """The function of images as one of (images, weights), so that the converter need not copy these."""
    import keras
    import tensorflow as tf

    specs = [tf.TensorSpec(v.shape, tf.float32, name) for name, v in weights.items()]

    @tf.function(input_signature=[*function.input_signature, *specs], autograph=False)
    def separate(images, *values):
        mapping = list(zip(weights.values(), values, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            return function.python_function(images)

    return separate


def _hold(graph, weights):
    """Turns the inputs that are weights into constants of the graph."""
    from onnx import numpy_helper

    inputs = [value for value in graph.input if value.name not in weights]
    del graph.input[:]
    graph.input.extend(inputs)
    used = {name for node in graph.node for name in node.input}  # the seeds of dropout are not
    for name in sorted(used & set(weights)):
        graph.initializer.append(numpy_helper.from_array(weights[name].numpy(), name))


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
