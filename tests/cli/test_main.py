"""Exit codes, errors and interruptions of the program."""

import os
import signal
import subprocess
import sys

import keras
import pytest

import keras_vit
from keras_vit import cli
from keras_vit.cli import listing

# The program's modules without the package around them, which loads Keras.
_ALONE = """
import sys, types
package = types.ModuleType("keras_vit")
package.__path__, package.__version__ = [sys.argv.pop(1)], "1.2.3"
sys.modules["keras_vit"] = package
from keras_vit.cli import main
try:
    main()
finally:
    heavy = {"keras", "numpy", "tensorflow", "jax", "rich", "PIL"} & set(sys.modules)
    assert not heavy, heavy
"""


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_answers_before_anything_heavy_is_loaded(argument):
    done = subprocess.run(
        [sys.executable, "-c", _ALONE, keras_vit.__path__[0], argument],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    expected = "keras-vit-zoo 1.2.3, Keras" if argument == "--version" else "usage: keras-vit"
    assert done.stdout.startswith(expected)


def test_version_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "keras_vit.cli", "--version"], capture_output=True, text=True
    )
    backend = keras.config.backend()
    expected = (
        f"keras-vit-zoo {keras_vit.__version__}, Keras {keras.__version__}, backend {backend}"
    )
    assert done.returncode == 0
    assert done.stdout.startswith(expected)


@pytest.mark.parametrize("environment", ["theano", None])
def test_version_names_the_backend_of_the_configuration(environment, tmp_path, monkeypatch, capsys):
    (tmp_path / "keras.json").write_text('{"backend": "jax"}')
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    if environment:
        monkeypatch.setenv("KERAS_BACKEND", environment)
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    last = "backend theano (not found)\n" if environment else "backend jax "
    assert last in capsys.readouterr().out


def test_a_command_is_required(capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main([])
    assert "required: COMMAND" in capsys.readouterr().err


def test_errors_are_one_line(run, monkeypatch):
    code, out, err = run("list", "no-such-model")
    assert (code, out) == (2, "")
    assert err == (
        "keras-vit: error: No model matches. Received: 'no-such-model'. See `keras-vit list`.\n"
    )
    monkeypatch.setenv("KERAS_VIT_DEBUG", "1")
    with pytest.raises(ValueError, match="No model matches"):
        run("list", "no-such-model")


def test_a_missing_backend_is_explained(run, monkeypatch):
    def start():
        raise ModuleNotFoundError("No module named 'tensorflow'")

    monkeypatch.setattr("keras_vit.cli.terminal.quiet", start)
    code, _, err = run("list")
    assert code == 2
    assert "No module named 'tensorflow'. Install one, such as `pip install" in err


def test_ctrl_c_is_one_line(run, monkeypatch):
    def interrupted(rows):
        raise KeyboardInterrupt

    monkeypatch.setattr(listing, "_numbers", interrupted)
    assert run("list") == (130, "", "keras-vit: interrupted\n")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_ctrl_c_from_outside_leaves_nothing_behind(tmp_path):
    keras_vit.ViT_Mini4(weights=None).save_weights(tmp_path / "mini.weights.h5")
    os.mkfifo(tmp_path / "endless.png")  # reading it waits for ever
    arguments = ["embed", tmp_path / "*.png", "-o", tmp_path / "out.npz"]
    arguments += ["--model", "ViT_Mini4", "--weights", tmp_path / "mini.weights.h5"]
    process = subprocess.Popen(
        [sys.executable, "-m", "keras_vit.cli", *arguments], stderr=subprocess.PIPE, text=True
    )
    with process:
        for line in process.stderr:
            if "28x28 pixels" in line:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert (process.returncode, rest) == (130, "keras-vit: interrupted\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["endless.png", "mini.weights.h5"]
