"""The path of what a command writes."""

import pytest

from keras_vit.cli.files import check_target


def test_check_target(tmp_path):
    path = tmp_path / "out.npz"
    assert check_target(path, [".npz"]) == path
    with pytest.raises(
        ValueError, match=r"must end with \.keras or \.weights\.h5\. Received: .*npz"
    ):
        check_target(path, [".keras", ".weights.h5"])
    with pytest.raises(ValueError, match=r"There is no folder .*nowhere"):
        check_target(tmp_path / "nowhere" / "out.npz", [".npz"])
    path.touch()
    assert check_target(path, [".npz"]) == path
    with pytest.raises(ValueError, match="exists already: .* Pass --force"):
        check_target(path, [".npz"], force=False)
