"""What a file is, is told by its bytes; what is no checkpoint is called by its name."""

import json
import pathlib
import pickle
import tarfile

import numpy as np
import pytest

from keras_vit.weights.readers import CheckpointError, read

FILES = pathlib.Path(__file__).parents[2] / "goldens" / "files"


@pytest.mark.parametrize(
    ("name", "container"),
    [
        ("01_state_dict.pth", "torch"),
        ("02_legacy.pth", "torch"),
        ("14_opt_target.npz", "npz"),
        ("16_dtypes.safetensors", "safetensors"),
        ("17_sharded", "safetensors"),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".npz", ".pth", ".weights.h5"])
def test_name_does_not_matter(tmp_path, name, container, suffix):
    (tmp_path / f"x{suffix}").symlink_to(FILES / name)
    with read(tmp_path / f"x{suffix}") as checkpoint:
        assert checkpoint.container == container


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", r"the file is empty \(0 bytes\)"),
        (b"\x1f\x8b\x08\x00", "packed with gzip; unpack it first"),
        (b"BZh91AY", "packed with bzip2"),
        (b"\xfd7zXZ\x00\x00", "packed with xz"),
        (b"\x93NUMPY\x01\x00v\x00", "a single .npy array without a name"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid x\nsize 1234567\n",
            "LFS.* 1,234,567 by",
        ),
        (b"version https://git-lfs.github.com/spec/v1", "a Git-LFS pointer"),
        (b"\n <html><body>Sign in</body>", "an HTML page, beginning '.n <html><body>Sign in"),
        (b"<?xml version='1.0'?><Error>NoSuchKey", "text, beginning .*<Error>NoSuchKey"),
        (b'{"error": "Repository not found"}', "text, beginning .*Repository not found"),
        (b'{"err": {"a": 1}}', "text, beginning"),
        (b"{" * 50, "text, beginning"),
        ("\ufeffNicht gefunden: \u00fcber".encode(), "text, beginning .*über"),
        (pickle.dumps({"a": 1}, protocol=4), "a Python pickle that torch.save did not write"),
        (b"\x00\x01\x02\x03", "unknown or damaged, beginning with the bytes 00 01 02 03"),
        (b"PK\x03\x04 and no more", "zip archive: truncated or damaged"),
    ],
)
def test_other_files_are_called_by_their_name(tmp_path, data, match):
    (tmp_path / "x.npz").write_bytes(data)
    with pytest.raises(CheckpointError, match=match) as refusal:
        read(tmp_path / "x.npz")
    assert str(refusal.value).startswith(str(tmp_path / "x.npz") + ": ")
    if not data.startswith(b"PK"):
        assert "Expected weights: a .npz, .safetensors, torch .pth" in str(refusal.value)


def test_tar_archive(tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    with tarfile.open(tmp_path / "x.pth.tar", "w") as archive:
        archive.add(tmp_path / "a", "a")
    with pytest.raises(CheckpointError, match="a tar archive; unpack it first"):
        read(tmp_path / "x.pth.tar")


def test_other_json_is_refused(tmp_path):
    (tmp_path / "x").write_text(json.dumps({"weight_map": {"a": "pytorch_model.bin"}}))
    with pytest.raises(CheckpointError, match="an index of other files than .safetensors"):
        read(tmp_path / "x")


def test_missing_path_is_named_with_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=f"^nope/x.npz: no such file .* from {tmp_path}"):
        read("nope/x.npz")


def test_files_are_closed_after_a_refusal(tmp_path):
    np.savez(tmp_path / "x", a=np.array([None]))  # an open file would warn: warnings are errors
    with pytest.raises(CheckpointError, match="'a': only arrays of numbers"):
        read(tmp_path / "x.npz")
