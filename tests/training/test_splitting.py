"""Dividing samples: the same way every time."""

import json
import os

import numpy as np
import pytest

from keras_vit.training import Samples, few_shot, load_split, open_samples, save_split
from keras_vit.training import split_samples as split


def samples_of(*counts):
    labels = np.repeat(np.arange(len(counts)), counts)
    return Samples(np.zeros((len(labels), 2, 2), "uint8"), labels, "abcdef"[: len(counts)])


def test_every_class_is_divided_by_the_share():
    samples = samples_of(50, 20, 2, 3, 1)
    training, validation = split(samples, 0.1, seed=3)
    assert validation.counts().tolist() == [5, 2, 1, 1, 0]
    assert training.counts().tolist() == [45, 18, 1, 2, 1]
    assert sorted(training.names + validation.names) == sorted(samples.names)
    assert list(validation.names) == sorted(validation.names, key=int)


def test_large_share_leaves_one_of_every_class():
    training, validation = split(samples_of(2, 10), 0.99)
    assert training.counts().tolist() == [1, 1] and validation.counts().tolist() == [1, 9]


def test_split_follows_from_the_seed():
    samples = samples_of(40, 40)
    first, again, other = (split(samples, 0.25, seed)[1].names for seed in (1, 1, 2))
    assert first == again != other


def test_wrong_shares_are_refused():
    for fraction in (0, 1, -0.5):
        with pytest.raises(ValueError, match=f"between 0 and 1. Received: fraction={fraction}"):
            split(samples_of(4, 4), fraction)
    with pytest.raises(ValueError, match="at least two pictures"):
        split(samples_of(1, 1), 0.5)


def test_few_shot_takes_as_many_of_every_class():
    samples = samples_of(9, 4, 30)
    two, four = few_shot(samples, 2, seed=1), few_shot(samples, 4, seed=1)
    assert two.counts().tolist() == [2, 2, 2] and four.counts().tolist() == [4, 4, 4]
    assert set(two.names) < set(four.names)
    assert few_shot(samples, 2, seed=2).names != two.names
    with pytest.raises(ValueError, match="as few as 4 in class 'b'"):
        few_shot(samples, 5)
    with pytest.raises(ValueError, match="shots=0"):
        few_shot(samples, 0)


def test_saved_split_survives_a_move_and_new_pictures(folder, tmp_path):
    root = folder({"cat": 6, "dog": 4})
    training, validation = split(open_samples(root), 0.3)
    save_split(tmp_path / "split.json", training, validation)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["split.json"]
    moved = tmp_path / "moved"
    os.rename(root, moved)
    (moved / "cat" / "00.jpg").write_bytes((moved / "cat" / "0.jpg").read_bytes())
    parts = load_split(tmp_path / "split.json", open_samples(moved))
    for part, before in zip(parts, (training, validation), strict=True):
        assert part.names == before.names
        assert part.labels.tolist() == before.labels.tolist()
        assert part.load(0).shape[2] == 3


def test_split_of_other_data_is_refused(folder, tmp_path):
    root, path = folder({"cat": 3, "dog": 3}), tmp_path / "split.json"
    save_split(path, *split(open_samples(root), 0.4))
    (root / "cat" / "1.jpg").unlink()
    with pytest.raises(ValueError, match="Pictures of the split .* are missing in .*\n  cat/1.jpg"):
        load_split(path, open_samples(root))
    (root / "cat").rename(root / "fox")
    with pytest.raises(ValueError, match=r"only in the split: \['cat'\].*\['fox'\]"):
        load_split(path, open_samples(root))
    path.write_text(json.dumps({"training": []}))
    with pytest.raises(ValueError, match="not a file of `save_split`"):
        load_split(path, open_samples(root))
