"""Files are written whole or not at all."""

import pytest

from keras_vit.files import replacing


def test_a_file_is_replaced_in_the_end(tmp_path):
    path = tmp_path / "out.weights.h5"
    path.write_text("old")
    with replacing(path) as partial:
        assert partial.name.endswith("out.weights.h5")
        partial.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "out.npz"
    path.write_text("old")
    with pytest.raises(error), replacing(path) as partial:
        partial.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_folders(tmp_path):
    path = tmp_path / "saved_model"
    for text in ("old", "new"):
        with replacing(path) as partial:
            partial.mkdir()
            (partial / text).touch()
    with pytest.raises(ValueError, match="half"), replacing(path) as partial:
        partial.mkdir()
        (partial / "half").touch()
        raise ValueError("half")
    assert [file.name for file in path.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [path]
