"""Labelled pictures from folders, CSV files and TensorFlow Datasets."""

import sys

import numpy as np
import pytest

from keras_vit.training import list_splits, open_samples, tfds


def test_classes_of_a_folder_are_in_plain_string_order(folder):
    samples = open_samples(folder({"2": 1, "10": 2, "1": 3}))
    assert samples.class_names == ("1", "10", "2")
    assert samples.labels.tolist() == [0, 0, 0, 1, 1, 2]
    assert samples.names == ("1/0.jpg", "1/1.jpg", "1/2.jpg", "10/0.jpg", "10/1.jpg", "2/0.jpg")
    assert samples.load(3).shape == (40, 60, 3)


def test_folder_is_searched_below_its_classes_and_odd_files_are_listed(folder, tmp_path):
    root = folder({"cat": 2, "dog": 1})
    (root / "dog" / "deep" / "deeper").mkdir(parents=True)
    (root / "cat" / "0.jpg").rename(root / "dog" / "deep" / "deeper" / "PHOTO.JPG")
    (root / "empty").mkdir()
    (root / ".git").mkdir()
    (root / ".git" / "a.jpg").write_bytes(b"")
    for name in ("notes.txt", ".DS_Store", "cat/Thumbs.db", "cat/.hidden.jpg"):
        (root / name).write_text("")
    linked = folder({"fox": 2}, "elsewhere") / "fox"
    (root / "fox").symlink_to(linked)
    samples = open_samples(root)
    assert samples.class_names == ("cat", "dog", "fox")
    assert samples.counts().tolist() == [1, 2, 2]
    assert sorted(path.name for path, _ in samples.skipped) == ["Thumbs.db", "empty", "notes.txt"]


@pytest.mark.parametrize("names", [("train", "val", "test"), ("training", "validation", "testing")])
def test_splits_share_the_classes_of_the_training_part(folder, names):
    counts = ({"a": 1, "b": 1, "c": 1}, {"c": 2, "a": 1}, {"b": 1})
    for name, count in zip(names, counts, strict=True):
        root = folder(count, f"data/{name}").parent
    assert list_splits(root) == ("train", "validation", "test")
    validation = open_samples(root, "validation")
    assert validation.class_names == ("a", "b", "c")
    assert validation.labels.tolist() == [0, 2, 2]
    assert open_samples(root, "test").labels.tolist() == [1]
    with pytest.raises(ValueError, match="divided into train, validation, test. .*split=None"):
        open_samples(root)


def test_class_that_training_lacks_is_refused(folder):
    folder({"a": 1, "b": 1}, "data/train")
    root = folder({"a": 1, "zebra": 1}, "data/val").parent
    with pytest.raises(ValueError, match="has classes that the training data.*\n.*'zebra'"):
        open_samples(root, "validation")


def test_classes_may_be_called_like_splits(folder):
    samples = open_samples(folder({"plane": 1, "train": 1}))
    assert samples.class_names == ("plane", "train")
    assert list_splits(folder({"test": 1, "train": 1}, "other")) == ()


def test_given_classes_decide_the_labels(folder):
    root = folder({"dog": 1, "cat": 2})
    samples = open_samples(root, class_names=["dog", "fox", "cat"])
    assert samples.class_names == ("dog", "fox", "cat")
    assert samples.labels.tolist() == [2, 2, 0]
    assert samples.counts().tolist() == [1, 0, 2]


def test_folders_without_enough_classes_are_refused(folder, tmp_path):
    with pytest.raises(ValueError, match="at least two classes .*'cat'"):
        open_samples(folder({"cat": 2}))
    with pytest.raises(ValueError, match="one sub-folder with pictures for every class"):
        open_samples(tmp_path / "data" / "cat")
    with pytest.raises(ValueError, match="does not exist"):
        open_samples(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="not divided into splits.*split='train'"):
        open_samples(folder({"a": 1, "b": 1}, "two"), "train")


@pytest.mark.parametrize(
    "text",
    [
        "a/0.jpg,cat\nb/0.jpg,dog\n\nb/1.jpg,cat\n",
        "path,label\na/0.jpg,cat\nb/0.jpg,dog\nb/1.jpg,cat\n",
        "\ufeffsource,Label,Filename\nx,cat,a/0.jpg\ny,dog,b/0.jpg\nz, cat ,b/1.jpg\n",
    ],
)
def test_csv_with_and_without_header(folder, text):
    root = folder({"a": 1, "b": 2})
    (root / "list.csv").write_text(text, encoding="utf-8")
    samples = open_samples(root / "list.csv")
    assert samples.class_names == ("cat", "dog")
    assert samples.labels.tolist() == [0, 1, 0]
    assert samples.names == ("a/0.jpg", "b/0.jpg", "b/1.jpg")
    assert samples.load(2).shape == (41, 60, 3)


def write_csv(root, labels):
    path = root / "list.csv"
    path.write_text("".join(f"a/{k}.jpg,{label}\n" for k, label in enumerate(labels)))
    return path


def test_csv_of_whole_numbers_counts_from_zero(folder):
    root = folder({"a": 11})
    samples = open_samples(write_csv(root, range(11)))
    assert samples.labels.tolist() == list(range(11))
    assert samples.class_names[10] == "10"
    with pytest.raises(ValueError, match="labels up to 3, and none is 0"):
        open_samples(write_csv(root, [1, 2, 3]))
    samples = open_samples(write_csv(root, [0, 2]), class_names="xyz")
    assert samples.class_names == ("x", "y", "z") and samples.labels.tolist() == [0, 2]
    with pytest.raises(ValueError, match="from 0 to 2.*1 of them outside, such as 3"):
        open_samples(write_csv(root, [1, 2, 3]), class_names="xyz")


def test_csv_errors_name_the_lines(folder):
    root = folder({"a": 2})
    with pytest.raises(ValueError, match="1 of 3 files that do not exist:\n.*2.jpg"):
        open_samples(write_csv(root, "xyz"))
    with pytest.raises(ValueError, match="has classes that .*\n  'y'"):
        open_samples(write_csv(root, "xy"), class_names="xz")
    (root / "list.csv").write_text("a/0.jpg,x\na/1.jpg\n")
    with pytest.raises(ValueError, match="must be `path,label`.*'a/1.jpg', row 2"):
        open_samples(root / "list.csv")
    (root / "list.csv").write_text("a/0.jpg,x\na/1.jpg,x\na/0.jpg,y\n")
    with pytest.raises(ValueError, match="lists 1 files more than once:\n  a/0.jpg"):
        open_samples(root / "list.csv")
    with pytest.raises(ValueError, match="labels up to 4000000000, and none is 1"):
        open_samples(write_csv(root, [0, 4_000_000_000]))
    (root / "list.csv").write_text("path,label\n")
    with pytest.raises(ValueError, match="lists no pictures"):
        open_samples(root / "list.csv")
    (root / "list.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="CSV file in UTF-8"):
        open_samples(root / "list.csv")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A data directory with the grey pictures `spots` in splits train (6) and test (3)."""
    tfds = pytest.importorskip("tensorflow_datasets")
    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(shape=(5, 7, 1)),
            "label": tfds.features.ClassLabel(names=["zebra", "ant", "bee"]),
            "file_name": tfds.features.Text(),
        }
    )

    def rows(count):
        for k in range(count):
            image = np.full((5, 7, 1), 40 * k, "uint8")
            yield k, {"image": image, "label": k % 3, "file_name": f"{k}.png"}

    class Spots(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, manager):
            return {"train": rows(6), "test": rows(3)}

        def _generate_examples(self):
            raise NotImplementedError

    path = tmp_path_factory.mktemp("tfds")
    Spots(data_dir=path).download_and_prepare()
    return path


def test_tensorflow_datasets_are_read_from_disk(prepared):
    assert list_splits("tfds:spots", prepared) == ("train", "test")
    samples = open_samples("tfds:spots:train", data_dir=prepared)
    assert samples.class_names == ("zebra", "ant", "bee")
    assert len(samples) == 6
    for k in range(6):
        image = samples.load(k)
        assert image.shape == (5, 7, 3)
        assert image[0, 0, 0] // 40 % 3 == samples.labels[k] and (image == image[0, 0, 0]).all()
        assert samples.names[k] == f"{image[0, 0, 0] // 40}.png"  # as ReaL labels need them
    part = open_samples("tfds:spots", "test[:2]", ["bee", "ant", "zebra"], prepared)
    assert len(part) == 2 and part.class_names == ("bee", "ant", "zebra")
    assert [2 - part.load(k)[0, 0, 0] // 40 for k in range(2)] == part.labels.tolist()


@pytest.mark.parametrize("class_names", [None, ["bee", "ant", "zebra"]])
def test_labels_that_a_data_set_does_not_know_are_refused(prepared, monkeypatch, class_names):
    images, _, names, files = tfds.read("spots", "test", prepared)
    unlabelled = images, np.full(len(images), -1), names, files
    monkeypatch.setattr(tfds, "read", lambda *_: unlabelled)
    with pytest.raises(ValueError, match="from 0 to 2, .* such as -1"):
        open_samples("tfds:spots:test", class_names=class_names, data_dir=prepared)


def test_errors_of_tensorflow_datasets(prepared, monkeypatch):
    with pytest.raises(ValueError, match="not prepared in .*tfds:cats. Prepared: spots"):
        open_samples("tfds:cats", data_dir=prepared)
    with pytest.raises(ValueError, match="divided into train, test"):
        open_samples("tfds:spots", data_dir=prepared)
    with pytest.raises(ValueError, match="two splits"):
        open_samples("tfds:spots:train", "test", data_dir=prepared)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ValueError, match=r"keras-vit-zoo\[data\]"):
        open_samples("tfds:spots:train", data_dir=prepared)
