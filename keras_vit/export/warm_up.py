"""Requests that TensorFlow Serving sends to a model before it answers others."""

import importlib.resources
import io

import numpy as np
from PIL import Image

_PATH = "assets.extra/tf_serving_warmup_requests"


def shipped_pictures(count):
    """Pictures of clothes that come with the package: uint8 (count, 28, 28, 3), at most 1,000."""
    file = importlib.resources.files("keras_vit") / "data" / "fashion_mnist.npz"
    with np.load(io.BytesIO(file.read_bytes())) as arrays:
        return np.repeat(arrays["test_images"][:count, ..., None], 3, axis=-1)


def write(folder, signatures, name):
    """Writes one request a signature into a SavedModel's folder.

    Args:
        folder: of the SavedModel, `pathlib.Path`.
        signatures: dict of name -> concrete function.
        name: of the model.
    """
    import tensorflow as tf

    path = folder / _PATH
    path.parent.mkdir()
    picture = shipped_pictures(1)[0]
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, function in signatures.items():
            (spec,) = tf.nest.flatten(function.structured_input_signature)
            tensor = tf.make_tensor_proto(_example(picture, spec), spec.dtype)
            request = prediction_log(name, signature, spec.name, tensor.SerializeToString())
            writer.write(request)


def _example(picture, spec):
    """A batch of one for an input."""
    if spec.dtype.name == "string":
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "JPEG")
        return [file.getvalue()]
    height, width = (side or 224 for side in spec.shape[1:3])
    return np.asarray(Image.fromarray(picture).resize((width, height)))[None]


def prediction_log(name, signature, argument, tensor):
    """A serialised `tensorflow.serving.PredictionLog` of one request.

    Written out here because its package, `tensorflow-serving-api`, would be needed for nothing else.

    Args:
        name: of the model.
        signature: its name.
        argument: name of the input.
        tensor: serialised TensorProto.

    Source: tensorflow_serving/apis/{model,predict,prediction_log}.proto.
    """
    model_spec = _field(1, name.encode()) + _field(3, signature.encode())
    inputs = _field(1, argument.encode()) + _field(2, tensor)  # an entry of a map
    request = _field(1, model_spec) + _field(2, inputs)
    return _field(6, _field(1, request))


def _field(number, payload):
    """A length-delimited field of a protocol buffer."""
    length, varint = len(payload), bytearray()
    while length > 127:
        varint.append(length % 128 + 128)
        length //= 128
    return bytes([number * 8 + 2, *varint, length]) + payload
