import json
import shutil

import numpy as np
import pytest
from PIL import Image

from keras_vit.cli import main
from keras_vit.cli.demo import DATA

NAMES = {1: "trousers", 5: "sandal", 8: "bag"}


@pytest.fixture(scope="module")
def clothes(tmp_path_factory):
    """A folder of Fashion-MNIST pictures of three classes, ten of each."""
    folder = tmp_path_factory.mktemp("clothes")
    with np.load(DATA) as file:
        images, labels = file["train_images"], file["train_labels"]
    for label, name in NAMES.items():
        (folder / name).mkdir()
        for k, index in enumerate(np.flatnonzero(labels == label)[:10]):
            Image.fromarray(images[index]).save(folder / name / f"{k}.png")
    return folder


@pytest.fixture(scope="module")
def run(clothes, tmp_path_factory):
    """A run of a probe, and what it printed."""
    out = tmp_path_factory.mktemp("runs") / "clothes"
    arguments = ["--data", str(clothes), "--model", "ViT_Mini4", "--out", str(out)]
    assert main(["finetune", *arguments, "--recipe", "few-shot", "--precision", "float32"]) == 0
    return out


def test_classify_names_the_classes_of_the_run(run, clothes, capsys):
    picture = clothes / "bag" / "0.png"
    assert main(["classify", str(picture), "--model", str(run / "best.keras"), "--top", "1"]) == 0
    assert "bag" in capsys.readouterr().out


def test_evaluate_tells_and_writes_the_numbers(run, clothes, tmp_path, capsys):
    arguments = ["evaluate", "--data", str(clothes), "--model", str(run / "best.keras")]
    assert main([*arguments, "--json", str(tmp_path / "numbers.json")]) == 0
    shown = capsys.readouterr().out
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert numbers["images"] == 30 and numbers["top1"] > 0.9
    assert "top1" in shown and "trousers" in shown
    assert {c["name"]: c["images"] for c in numbers["classes"]} == dict.fromkeys(NAMES.values(), 10)


def test_data_of_other_classes_are_refused(run, clothes, tmp_path, capsys):
    for name in ("bag", "hat"):
        (tmp_path / "data" / name).mkdir(parents=True)
        Image.new("RGB", (28, 28)).save(tmp_path / "data" / name / "0.png")
    code = main(["evaluate", "--data", str(tmp_path / "data"), "--model", str(run / "best.keras")])
    assert code == 2 and "'hat'" in capsys.readouterr().err


def test_a_bad_picture_stops_or_is_left_out(run, clothes, tmp_path, capsys):
    for name in NAMES.values():
        (tmp_path / name).mkdir()
        for k in range(2):
            shutil.copy(clothes / name / f"{k}.png", tmp_path / name)
    (tmp_path / "bag" / "broken.jpg").write_bytes(b"<html>")
    arguments = ["evaluate", "--data", str(tmp_path), "--model", str(run / "best.keras")]
    assert main(arguments) == 2
    assert "broken.jpg" in capsys.readouterr().err
    assert main([*arguments, "--skip-bad"]) == 0
    assert "broken.jpg" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["finetune", "--out", "run"], "--data"),
        (["evaluate"], "--data"),
        (["finetune", "--out", "run", "--data", "nowhere"], "does not exist"),
        (["finetune", "--out", "run", "--data", ".", "--model", "ViT_g14"], "--weights none"),
        (["finetune", "--out", "run", "--resume"], "no run to resume"),
        (
            ["finetune", "--out", "run", "--resume", "--epochs", "50", "--skip-bad"],
            "its own settings. Received: --skip-bad, --epochs 50.",
        ),
    ],
)
def test_what_is_missing_is_said(arguments, text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert text in capsys.readouterr().err
