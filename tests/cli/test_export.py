"""`keras-vit export`"""

import keras
import pytest

pytest.importorskip("tensorflow")
if keras.config.backend() != "tensorflow":
    pytest.skip("The export runs on TensorFlow.", allow_module_level=True)


@pytest.fixture
def model_file(model, tmp_path):
    path = tmp_path / "mini.keras"
    model().save(path)
    return path


def test_a_saved_model_of_a_file(run, model_file, tmp_path, model):
    names = tmp_path / "names.txt"
    names.write_text("\n".join(f"name {k}" for k in range(10)))
    out = tmp_path / "served"
    code, stdout, err = run("export", model_file, "-o", out, "--classes-file", names)
    assert (code, err) == (0, "")
    title, *lines = stdout.splitlines()
    assert title == f"{out / '1'}: {model_file}"
    assert lines[0] == "  serving_default: images float32 -> logits, probabilities"
    assert "  attention: images float32 -> attention" in lines
    assert lines[-2].endswith(" MB")
    start, _, same = lines[-1].rpartition(", ")
    assert same == "same class for 32"
    assert float(start.split()[-1]) < 1e-5
    assert (out / "1" / "assets" / "class_names.txt").read_text() == names.read_text() + "\n"
    code, _, err = run("export", model_file, "-o", out, "--version", 1)
    assert code == 2
    assert err.startswith("keras-vit: error: This version exists already")


def test_an_onnx_file_of_a_named_model(run, mini, tmp_path):
    pytest.importorskip("tf2onnx")
    pytest.importorskip("onnxruntime")
    code, stdout, _ = run(
        "export", "--model", "Mini", "--weights", mini, "--format", "onnx", "-o", tmp_path / "out"
    )
    assert code == 0
    assert stdout.startswith(f"{tmp_path / 'out' / 'mini.onnx'}: Mini, weights {mini}\n")
    assert "same class for 32" in stdout


def test_a_litert_file_of_8_bits(run, model_file, photos, tmp_path):
    pytest.importorskip("ai_edge_litert")
    out = ("-o", tmp_path / "out", "--format", "litert", "--precision", "int8")
    code, stdout, _ = run("export", "--model", model_file, *out, "--calibration", photos)
    assert code == 0
    assert "  int8, built-in operations\n" in stdout
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mini.tflite"]
    code, _, err = run("export", model_file, *out)
    assert code == 2
    assert "measured on a folder of pictures" in err


@pytest.mark.parametrize(
    "options, message",
    [
        ((), "Name one model"),
        (("a.keras", "--model", "Mini"), "Name one model"),
        (("a.npz",), "must end with .keras"),
        (("a.keras", "--weights", "b.npz"), "has its own weights"),
        (("a.keras", "--format", "onnx", "--version", "2"), "are for SavedModels"),
        (("a.keras", "--precision", "int8"), "are for LiteRT"),
        (("missing.keras",), "missing.keras"),
    ],
)
def test_options_that_do_not_fit(run, tmp_path, options, message):
    code, _, err = run("export", *options, "-o", tmp_path / "out")
    assert code == 2
    assert message in err
    assert not (tmp_path / "out").exists()


def test_a_missing_extra(run, model_file, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tf2onnx", None)
    code, _, err = run("export", model_file, "--format", "onnx", "-o", tmp_path / "out")
    assert code == 2
    assert 'pip install "keras-vit-zoo[onnx]"' in err
    assert err.count("\n") == 1
    assert not list((tmp_path / "out").iterdir())


def test_layers_that_are_not_registered(run, tmp_path):
    class Unknown(keras.layers.Layer):
        pass

    path = tmp_path / "custom.keras"
    keras.Sequential([keras.Input((8, 8, 3)), Unknown()]).save(path)
    code, _, err = run("export", path, "-o", tmp_path / "out")
    assert code == 2
    assert "Unknown" in err
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written(run, model_file, tmp_path):
    code, _, err = run("export", model_file, "-o", model_file / "inside")
    assert code == 2
    assert err.startswith("keras-vit: error: ") and "mini.keras" in err


def test_pictures_are_needed(run, tmp_path):
    path = tmp_path / "dense.keras"
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]).save(path)
    code, _, err = run("export", path, "-o", tmp_path / "out")
    assert code == 2
    assert "must take images (B, H, W, 3)" in err
