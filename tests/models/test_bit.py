"""Big Transfer: the official numbers, files, sizes, dtypes, training."""

import dataclasses
import json
import math
import pathlib

import keras
import numpy as np
import pytest
from golden_files import Golden, write_checkpoint
from keras import ops

import keras_vit
from keras_vit import registry
from keras_vit.models import plain, residual
from keras_vit.weights import load

PATHS = pathlib.Path(__file__).parent / "paths"
TINY = residual.Config(stages=(2, 1), filters=(4, 8), stem_width=8, groups=4, image=(32, 32))
GOLDENS = {
    "G01": residual.Config((2, 1, 1), (8, 16, 32), 16, groups=8),
    "G02": residual.Config((1, 1), (32, 32), 32),
}
OURS = {"stem_conv": "root_conv", "stem_pool": "root_pool", "norm": "relu", "pre_logits": "pool",
        "logits": "head"}  # fmt: skip


@pytest.fixture
def bit(declare):
    """Declares and builds: `bit(config, **arguments)`."""

    def function(config=TINY, **arguments):
        builder = declare(f"Bit{len(registry.list_models())}", config, build=residual.build)
        return builder(**{"weights": None, "name": "bit", "classes": 7, **arguments})

    return function


def randomized(model):
    generator = np.random.default_rng(0)
    for variable in model.weights:
        variable.assign(generator.normal(0.0, 0.2, variable.shape))
    return model


def images_for(model, size=(32, 32), batch=2):
    channels = model.input_shape[-1]
    return np.random.default_rng(1).uniform(0, 255, (batch, *size, channels)).astype("float32")


def compare(golden, model):
    """Largest difference of every map, feature and score, over max(1, largest value)."""
    x, want = golden.inputs[""], dict(golden.outputs)
    names = {layer.name.removeprefix("bit_"): layer for layer in model.layers}
    wanted = {ours: want.pop(theirs) for theirs, ours in OURS.items()}
    stages = {n: layer for n, layer in names.items() if n.startswith("stage_")}
    outputs = {n: names[n].output for n in wanted} | {n: s.input for n, s in stages.items()}
    found = keras.Model(model.inputs, outputs).predict(x, verbose=0)
    for s, stage in enumerate(stages.values()):
        x = found.pop(stage.name.removeprefix("bit_"))
        for u in range(stage.units):
            x = getattr(stage, f"unit_{u + 1}")(x)
            wanted[f"stage{s}_block{u}"] = want.pop(f"stage{s}_block{u}")
            found[f"stage{s}_block{u}"] = ops.convert_to_numpy(x)
    assert not want and found.keys() == wanted.keys()
    return max(
        float(np.abs(found[name][: len(value)] - value).max() / max(1.0, np.abs(value).max()))
        for name, value in wanted.items()
    )


@pytest.fixture
def official(bit, tmp_path):
    def function(stem, weights=None, **arguments):
        golden = Golden(stem)
        path = write_checkpoint(tmp_path / f"{stem}.npz", weights or golden.weights)
        return golden, bit(
            GOLDENS[stem], weights=path, input_shape=golden.inputs[""].shape[1:],
            include_preprocessing=False, classifier_activation=None, **arguments,
        )  # fmt: skip

    return function


@pytest.mark.parametrize("stem", GOLDENS)
def test_official_numbers(official, record_property, stem):
    worst = compare(*official(stem))
    record_property("maximum", worst)
    assert worst < 2e-5
