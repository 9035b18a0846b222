"""The wheel holds the package, all of it, and nothing else."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    source = tmp_path_factory.mktemp("source") / "project"
    kept = ("keras_vit", "applications", "tests", "tutorials", "benchmarks")
    source.mkdir()
    for name in kept:
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__", "goldens")
            shutil.copytree(ROOT / name, source / name, ignore=ignore)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    run = subprocess.run([*command, "-w", "dist", "."], cwd=source, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    (path,) = (source / "dist").glob("*.whl")
    return path


def test_contents(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert {n for n in top if not n.endswith(".dist-info")} == {"keras_vit"}
    files = [
        p for p in (ROOT / "keras_vit").rglob("*") if p.is_file() and "__pycache__" not in p.parts
    ]
    wanted = {str(p.relative_to(ROOT)) for p in files}
    assert wanted == {n for n in names if n.startswith("keras_vit/")}
    assert wheel.stat().st_size < 8_000_000


def test_metadata(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = (n for n in archive.namelist() if n.endswith("METADATA"))
    text = archive.read(name).decode()
    assert "Name: keras-vit-zoo" in text and re.search(r"License(-Expression)?: Apache-2.0", text)
    required = [line for line in text.splitlines() if line.startswith("Requires-Dist")]
    assert {line.split(":")[1].strip() for line in required if "extra ==" not in line} == {
        "keras>=3.12",
        "numpy",
        "pillow",
    }


def test_it_runs_from_the_wheel_alone(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "import keras_vit, pathlib; assert 'site' in keras_vit.__file__; "
        "print(keras_vit.ViT_Mini4().count_params())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split()[-1] == "459466"
