"""Every small weight file of the goldens is read, or refused, as its expectation says."""

import json
import os
import pathlib
import tracemalloc

import numpy as np
import pytest

from keras_vit.weights.readers import CheckpointError, read

FILES = pathlib.Path(__file__).parents[2] / "goldens" / "files"
EXPECTED = json.loads((FILES / "expected.json").read_text())


def named(outcome):
    return [name for name, row in EXPECTED.items() if row["outcome"] == outcome]


@pytest.fixture(scope="module")
def values():
    with np.load(FILES / "expected.npz") as arrays:
        return dict(arrays)


def assert_holds(checkpoint, rows, values):
    assert set(checkpoint) == {row["name"] for row in rows}
    for row in rows:
        name, expected = row["name"], values[row["key"]]
        assert checkpoint.shape(name) == tuple(row["shape"])
        assert checkpoint.dtype(name) == row["dtype"]
        array = checkpoint[name]
        assert array.dtype == expected.dtype and array.shape == expected.shape
        assert array.tobytes() == expected.tobytes(), name


def test_every_file_has_an_expectation():
    assert {path.name for path in FILES.iterdir() if path.name[:2].isdigit()} == set(EXPECTED)
    assert len(named("values") + named("refuse") + named("bounded")) == len(EXPECTED) == 26


@pytest.mark.parametrize("name", named("values"))
def test_reads(name, values):
    with read(FILES / name) as checkpoint:
        assert_holds(checkpoint, EXPECTED[name]["tensors"], values)


@pytest.mark.parametrize("name", named("refuse"))
def test_refuses(name, tmp_path, monkeypatch):
    work = tmp_path / "a" / "b"
    work.mkdir(parents=True)
    monkeypatch.chdir(work)
    mentions = "|".join(word.replace(".", r"\.") for word in EXPECTED[name]["mentions_one_of"])
    with pytest.raises(CheckpointError, match=f"(?i){mentions}") as refusal:
        with read(FILES / name) as checkpoint:
            list(checkpoint.values())
    assert name in str(refusal.value)
    for path in EXPECTED[name].get("must_not_exist", ()):
        assert not os.path.exists(path)
    assert not list(tmp_path.rglob("PWNED*"))


@pytest.mark.parametrize("name", named("bounded"))
def test_memory_is_bounded_until_an_array_is_asked_for(name, values):
    row = EXPECTED[name]
    tracemalloc.start()
    try:
        with read(FILES / name) as checkpoint:
            large, (small,) = row["large"], row["tensors"]
            assert checkpoint.shape(large["name"]) == tuple(large["shape"])
            assert checkpoint.dtype(large["name"]) == large["dtype"]
            np.testing.assert_array_equal(checkpoint[small["name"]], values[small["key"]])
        assert tracemalloc.get_traced_memory()[1] < row["limit_megabytes"] * 2**20
    finally:
        tracemalloc.stop()
