"""Shared by all tests: import path of the helpers, tiny models declared through the public statement."""

import gc
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(pathlib.Path(__file__).parent))

import keras  # noqa: E402
import pytest  # noqa: E402

from keras_vit import registry  # noqa: E402
from keras_vit.models import plain  # noqa: E402

gc.collect()
gc.freeze()  # collections then walk the objects of a test, not all of TensorFlow


def pytest_addoption(parser):
    parser.addoption(
        "--update-paths",
        action="store_true",
        help="write tests/models/paths from the models as they are",
    )


@pytest.fixture
def declare():
    """Declares models for one test: `declare(name, config, **row)`, as `registry.variant` does."""
    names = []

    def function(name, config, **row):
        row = {"parameters": 0, "build": plain.build, **row}
        names.append(name)
        return registry.variant(name, config, **row)

    yield function
    for name in names:
        registry.discard(name)


@pytest.fixture
def tiny(declare):
    """A tiny ViT: patch 8, width 16, depth 2, 2 heads, 32x32 pixels."""
    config = plain.Config(patch=8, width=16, depth=2, heads=2, mlp=32, image=(32, 32))
    return declare("Tiny", config, parameters=7_898, classes=10)


@pytest.fixture(autouse=True)
def fresh_state():
    """Every test starts from the same seed and global policy, and leaves no graph behind."""
    keras.utils.set_random_seed(0)
    policy = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(policy)
    keras.config.set_image_data_format("channels_last")
    keras.backend.clear_session()
    gc.freeze()  # what a module keeps for its tests


@pytest.fixture(autouse=True, scope="module")
def forget_the_module():
    """What a module kept goes with it."""
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()
