"""Real DINOv2 ViT-S/14 weights on real photographs, against the ONNX twin of the backbone.

Not part of the plain test command, since it needs files of 180 MB; see fetch.py beside this file.

    python tests/real_weights/fetch.py FOLDER
    KERAS_VIT_REAL_WEIGHTS=FOLDER pytest tests/real_weights/check_dinov2.py
"""

import os
import pathlib

import numpy as np
import onnx
import onnxruntime
import pytest
import skimage.data
from PIL import Image

import keras_vit
from keras_vit.preprocessing import normalize

FOLDER = pathlib.Path(os.environ["KERAS_VIT_REAL_WEIGHTS"])
WEIGHTS = FOLDER / "dinov2_small.safetensors"


@pytest.fixture(scope="module")
def photographs():
    pictures = [skimage.data.astronaut(), skimage.data.chelsea(), skimage.data.coffee()]
    resized = [Image.fromarray(p).resize((224, 224), Image.Resampling.BICUBIC) for p in pictures]
    return np.stack([np.asarray(p) for p in resized])


@pytest.fixture(scope="module")
def reference(photographs):
    """Tokens after the final norm, (3, 257, 384), by onnxruntime."""
    model = onnx.load(str(FOLDER / "dinov2_small.onnx"))
    weights = {"backbone.layernorm.weight"}
    (norm,) = [n for n in model.graph.node if weights & set(n.input)]
    add = next(n for n in model.graph.node if norm.output[0] in n.input)
    name = norm.output[0] if norm.op_type == "LayerNormalization" else add.output[0]
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    images = normalize(photographs, "imagenet").transpose(0, 3, 1, 2)
    feeds = session.get_inputs()[0].name
    return np.concatenate([session.run([name], {feeds: image[None]})[0] for image in images])


def test_tokens(photographs, reference):
    model = keras_vit.DINOv2_S14(weights=WEIGHTS, input_shape=(224, 224, 3), include_top=False)
    assert model.count_params() == 22_056_192 - (37 * 37 - 16 * 16) * 384
    tokens = model.predict(photographs, verbose=0)
    difference = np.abs(tokens - reference).max()
    print(f"DINOv2 ViT-S/14, three photographs: largest difference {difference:.2e}")
    assert tokens.shape == reference.shape == (3, 257, 384)
    assert difference < 1e-3


def test_the_resampling_rule_decides(photographs, reference):
    """The rule of the official code, with its 0.1 offset, is not the one these weights ran with."""
    model = keras_vit.DINOv2_S14(weights=WEIGHTS, input_shape=(224, 224, 3), include_top=False)
    encoder = model.get_layer("dinov2_s14_patch_encoder")
    assert encoder.resampling == "hf"
    table = keras_vit.weights.read(WEIGHTS)["embeddings.position_embeddings"][0]
    other = keras_vit.resampling.resample_positions(table, (37, 37), (16, 16), "dinov2")
    encoder.own["positions"].assign(other)
    assert np.abs(model.predict(photographs, verbose=0) - reference).max() > 1e-2


def test_features_know_what_is_alike(photographs):
    """The class token of a mirrored photograph is nearer to its own than to the others."""
    model = keras_vit.DINOv2_S14(
        weights=WEIGHTS, input_shape=(224, 224, 3), include_top=False, pooling="token"
    )
    a = model.predict(photographs, verbose=0)
    b = model.predict(photographs[:, :, ::-1], verbose=0)
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    similarity = a @ b.T
    assert (similarity.argmax(axis=1) == np.arange(3)).all()
    assert np.diag(similarity).min() > 0.8
