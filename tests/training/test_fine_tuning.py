import contextlib
import dataclasses
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time
import types

import keras
import numpy as np
import pytest
from PIL import Image

from keras_vit.training.callbacks import LastState, read_history
from keras_vit.training.fine_tuning import finetune
from keras_vit.training.settings import Settings

COLOURS = ("red", "green", "blue")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Three classes of 24x24 pictures: which colour they are."""
    folder = tmp_path_factory.mktemp("pictures")
    generator = np.random.default_rng(0)
    for channel, colour in enumerate(COLOURS):
        (folder / colour).mkdir()
        for k in range(12):
            image = generator.integers(0, 90, (24, 24, 3)).astype("uint8")
            image[..., channel] += 150
            Image.fromarray(image).save(folder / colour / f"{k}.png")
    (folder / "notes.txt").write_text("not a picture")
    return folder


def settings(pictures, **changes):
    return Settings(
        **{
            "data": str(pictures),
            "model": "Tiny",
            "recipe": "vit-finetune",
            "epochs": 3,
            "batch_size": 8,
            "validation_share": 0.25,
            "learning_rate": 0.1,
            **changes,
        }
    )


def probe_settings(pictures, recipe):
    return settings(pictures, recipe=recipe, epochs=None, learning_rate=None)


def quietly(line):
    pass


def test_a_run_writes_what_it_says(tiny, pictures, tmp_path):
    lines = []
    evaluation = finetune(settings(pictures), tmp_path / "run", say=lines.append, verbose=0)
    run = tmp_path / "run"
    assert {path.name for path in run.iterdir()} == {
        "config.json",
        "classes.json",
        "split.json",
        "history.csv",
        "best.keras",
        "last.npz",
        "tensorboard",
        "curves.png",
        "metrics.json",
        "confusion.csv",
        "confusion.png",
    }
    assert json.loads((run / "classes.json").read_text()) == sorted(COLOURS)
    assert len(evaluation.labels) == 9
    rows = read_history(run / "history.csv")
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert evaluation.top(1) == pytest.approx(max(row["val_accuracy"] for row in rows), abs=1e-6)
    assert rows[-1]["loss"] < rows[0]["loss"]
    plan = "\n".join(lines)
    assert "3 classes (" in plan and "27 to train, 9 to validate" in plan
    assert "left out, not in the folder of a class" in plan and "notes.txt" in plan
    with Image.open(run / "curves.png") as curves:
        assert curves.size[0] > 500
    model = keras.models.load_model(run / "best.keras", compile=False)
    assert model.output_shape == (None, 3)


def test_a_second_run_in_the_same_folder_is_refused(tiny, pictures, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="run in .* already. Go on with it by --resume"):
        finetune(settings(pictures), tmp_path, say=quietly, verbose=0)


def test_resume_needs_a_run_and_its_own_settings(tiny, pictures, tmp_path):
    with pytest.raises(ValueError, match="no run to resume"):
        finetune(None, tmp_path, resume=True, say=quietly)
    stored = dataclasses.asdict(settings(pictures))
    (tmp_path / "config.json").write_text(json.dumps(stored))
    with pytest.raises(ValueError, match="batch_size=4 .the run has 8"):
        finetune(settings(pictures, batch_size=4), tmp_path, resume=True, say=quietly)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"recipe": "adam"}, "recipe='adam'.*vit-finetune.*knn"),
        ({"precision": "half"}, "precision='half'"),
        ({"distribute": True}, "distribute must be one of none, data, model. Received: .*True"),
        ({"steps": 5}, "epochs=3, steps=5"),
        ({"validation_share": 1.0}, "validation_share=1.0"),
        ({"lora_rank": 2, "frozen_blocks": 1}, "LoRA freezes .*lora_rank=2, frozen_blocks=1"),
        ({"recipe": "knn"}, "knn trains no weights .*epochs=3, learning_rate=0.1"),
    ],
)
def test_settings_out_of_range(pictures, change, text):
    with pytest.raises(ValueError, match=text):
        settings(pictures, **change)


def test_diverged_training_is_an_error(tiny, pictures, tmp_path):
    with pytest.raises(ValueError, match="no longer a number"):
        finetune(settings(pictures, learning_rate=1e38), tmp_path / "run", say=quietly, verbose=0)


def test_steps_instead_of_epochs_resume_too(tiny, pictures, tmp_path, monkeypatch):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    four = settings(pictures, epochs=None, steps=4)  # 2 epochs of 2 steps; the pictures make 3
    finetune(four, whole, say=quietly, verbose=0)
    assert len(read_history(whole / "history.csv")) == 2

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(LastState, "on_epoch_begin", lambda self, epoch, logs=None: epoch and stop())
        finetune(four, stopped, say=quietly, verbose=0)
    finetune(None, stopped, resume=True, say=quietly, verbose=0)
    compare_states(whole / "last.npz", stopped / "last.npz", 0, epochs=2)


def test_a_wrong_option_does_not_occupy_the_folder(tiny, pictures, tmp_path):
    with pytest.raises(ValueError, match="2 blocks to freeze. Received: blocks=99"):
        finetune(settings(pictures, frozen_blocks=99), tmp_path, say=quietly, verbose=0)
    assert [path.name for path in tmp_path.iterdir()] == ["split.json"]
    finetune(settings(pictures, epochs=1), tmp_path, say=quietly, verbose=0)


@pytest.mark.parametrize("recipe", ["knn", "vit-finetune"])
def test_a_full_disk_is_an_error_before_training(tiny, pictures, tmp_path, monkeypatch, recipe):
    monkeypatch.setattr("shutil.disk_usage", lambda _: types.SimpleNamespace(free=1000))
    with pytest.raises(OSError, match="too full: the run needs about 0.0 GB. Received: 0.0 GB"):
        finetune(probe_settings(pictures, recipe), tmp_path, say=quietly, verbose=0)
    assert not (tmp_path / "config.json").exists()


def test_foreign_hidden_files_stay(tiny, pictures, tmp_path):
    (tmp_path / ".pre-commit-config.yaml").write_text("")
    (tmp_path / ".0123abcd-last.npz").write_text("half")
    finetune(settings(pictures, epochs=1), tmp_path, say=quietly, verbose=0)
    finetune(None, tmp_path, resume=True, say=quietly, verbose=0)
    assert (tmp_path / ".pre-commit-config.yaml").exists()
    assert not (tmp_path / ".0123abcd-last.npz").exists()


@pytest.mark.parametrize("recipe", ["few-shot", "linear-probe", "knn"])
def test_probes(tiny, pictures, tmp_path, recipe):
    run = tmp_path / "run"
    evaluation = finetune(probe_settings(pictures, recipe), run, say=quietly)
    assert evaluation.top(1) > 0.6
    json.loads((run / "metrics.json").read_text(), parse_constant=pytest.fail)  # no NaN
    assert (run / "confusion.png").exists()
    assert (run / "best.keras").exists() == (recipe != "knn")


def test_a_run_starts_from_another_one_at_a_higher_resolution(tiny, pictures, tmp_path):
    first = probe_settings(pictures, "few-shot")
    finetune(first, tmp_path / "first", say=quietly)
    higher = settings(
        pictures,
        weights=str(tmp_path / "first" / "best.keras"),
        image_size=(48, 32),
        learning_rate=1e-4,
        epochs=1,
    )
    finetune(higher, tmp_path / "second", say=quietly, verbose=0)
    first_head, head = (
        keras.models.load_model(tmp_path / run / "best.keras", compile=False).layers[-2]
        for run in ("first", "second")
    )
    # The classes are the same ones, so the head goes on from where it was.
    np.testing.assert_allclose(head.kernel, first_head.kernel, atol=0.05)


PROGRAM = """
import os, signal, sys
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
name, times = os.environ.get("KILLED_BEFORE", "nothing 1").split()
replace, left = os.replace, [None] * int(times)
def replace_or_die(source, target):
    if os.path.basename(target) == name and left.pop() is None and not left:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)
os.replace = replace_or_die
from keras_vit import registry
from keras_vit.models import plain
config = plain.Config(patch=8, width=16, depth=2, heads=2, mlp=32, image=(32, 32))
registry.variant("Tiny", config, plain.build, parameters=7898, classes=10)
from keras_vit.cli import main
sys.exit(main(sys.argv[1:]))
"""


def start(pictures, out, *arguments, **environment):
    """`keras-vit finetune` in a process of its own, which knows the model Tiny."""
    arguments = arguments or (
        "--data",
        str(pictures),
        "--model",
        "Tiny",
        "--weights",
        "none",
        "--epochs",
        "4",
        "--batch-size",
        "8",
    )
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "finetune", "--out", str(out), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=pathlib.Path(__file__).parents[2],
        env={**os.environ, **environment},
    )


def finish(process, timeout=200):
    """What it printed."""
    output, _ = process.communicate(timeout=timeout)
    assert process.returncode == 0, output
    return output


def compare_states(path, other, tolerance, epochs=4):
    """Compares everything that two runs ended with."""
    with np.load(path) as a, np.load(other) as b:
        assert int(a["epoch"]) == int(b["epoch"]) == epochs
        assert a["names"].tolist() == b["names"].tolist()
        for key in set(a.files) - {"names"}:
            np.testing.assert_allclose(a[key], b[key], rtol=0, atol=tolerance, err_msg=key)


def kill_after(path, writer, process):
    """Kills a process as soon as `writer` has written a file."""
    deadline = time.monotonic() + 200
    while not path.exists() and writer.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)


def test_a_run_killed_again_and_again_ends_with_the_same_weights(pictures, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start(pictures, whole))
    arguments = ()
    # Before anything can be resumed, in the middle of an epoch's files, after the last epoch.
    for moment in ("last.npz 1", "history.csv 3", "curves.png 1"):
        process = start(pictures, killed, *arguments, KILLED_BEFORE=moment)
        output, _ = process.communicate(timeout=200)
        assert process.returncode == -signal.SIGKILL, output
        arguments = ("--resume",)
    assert "all of them done" in finish(start(pictures, killed, "--resume"))
    assert {path.name for path in whole.iterdir()} == {path.name for path in killed.iterdir()}
    compare_states(whole / "last.npz", killed / "last.npz", 0)
    for row, other in zip(
        *(read_history(run / "history.csv") for run in (whole, killed)), strict=True
    ):
        assert {**row, "seconds": 0} == pytest.approx({**other, "seconds": 0})
    best, other = (
        keras.models.load_model(run / "best.keras", compile=False) for run in (whole, killed)
    )
    for variable, same in zip(best.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(variable, same)


def address():
    """Of a free port, below those that the system gives to others while our processes start."""
    while True:
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("localhost", random.randrange(20_000, 32_000)))
            return f"localhost:{free.getsockname()[1]}"


JAX = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}


def data_of(pictures, epochs=4):
    return [
        "--data",
        str(pictures),
        "--model",
        "Tiny",
        "--weights",
        "none",
        "--batch-size",
        "8",
        "--epochs",
        str(epochs),
    ]


def start_two(pictures, out, *arguments):
    shared = ["--distribute", "data", "--coordinator", address(), "--processes", "2"]
    return [
        start(pictures, out, *arguments, *shared, "--process-id", str(k), **JAX) for k in range(2)
    ]


def end(processes):
    for process in processes:
        process.kill()
        process.communicate()


def lose_one_of_two(pictures, out, data):
    """What process 0 printed after process 1 was killed in the second epoch, and its exit code."""
    first, other = start_two(pictures, out, *data)
    kill_after(out / "last.npz", first, other)
    try:
        output, _ = first.communicate(timeout=60)
    finally:
        end([first, other])
    return output, first.returncode


def finish_two(pictures, out):
    pair = start_two(pictures, out, "--resume")
    try:
        for process in pair:
            finish(process)
    finally:
        end(pair)


def test_devices_and_processes_train_as_one_even_if_one_is_lost(pictures, tmp_path):
    data = data_of(pictures, epochs=12)
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    output, code = lose_one_of_two(pictures, tmp_path / "two", data)
    assert code == 2, output
    assert (
        "This was process 0 of 2." in output and "start all of them again with --resume" in output
    )
    finish_two(pictures, tmp_path / "two")
    for process in [
        start(pictures, tmp_path / "one", *data, **JAX),
        start(pictures, tmp_path / "model", *data, "--distribute", "model", **JAX, **devices),
    ]:
        finish(process)
    one, model, two, last = (
        tmp_path / name / "last.npz" for name in ("one", "model", "two", "two/process-1")
    )
    compare_states(two, last, 0, epochs=12)
    compare_states(one, two, 1e-5, epochs=12)
    compare_states(one, model, 1e-5, epochs=12)
    for row, other in zip(
        *(read_history(tmp_path / run / "history.csv") for run in ("one", "two")), strict=True
    ):
        assert {**row, "seconds": 0} == pytest.approx({**other, "seconds": 0}, abs=1e-5)
