"""Import, build and load times of ViT-B/16, and the memory that a load takes.

    python benchmarks/start_up.py [--rounds 7] [--out benchmarks/results]

Import: seconds of `import keras_vit` (and of the other libraries) after `import keras`, each in a fresh
process. Build: a model with random weights, and its variables without any layer. Load: an official
.npz, written here from random numbers, against `numpy.load` of all its arrays and their assignment to
the same variables; the file is in the page cache. Memory: peak of the process over what the built
model took, in sizes of the file.
Expected time on two CPU cores: 5 minutes.
"""

import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import measuring
import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

WIDTH, DEPTH, HEADS, MLP, PATCH, TOKENS, CLASSES = 768, 12, 12, 3072, 16, 197, 1000


def official_arrays():
    """Arrays of a ViT-B/16 checkpoint of vit_jax: (name, shape, path of the variable it belongs to)."""
    dense = (("kernel", "kernel"), ("bias", "bias"))
    norm = (("scale", "gamma"), ("bias", "beta"))
    head = WIDTH // HEADS
    shapes = {
        "query": ((WIDTH, HEADS, head), (HEADS, head)),
        "key": ((WIDTH, HEADS, head), (HEADS, head)),
        "value": ((WIDTH, HEADS, head), (HEADS, head)),
        "out": ((HEADS, head, WIDTH), (WIDTH,)),
        "norm": ((WIDTH,), (WIDTH,)),
        "Dense_0": ((WIDTH, MLP), (MLP,)),
        "Dense_1": ((MLP, WIDTH), (WIDTH,)),
        "embedding": ((PATCH, PATCH, 3, WIDTH), (WIDTH,)),
        "head": ((WIDTH, CLASSES), (CLASSES,)),
    }

    def pair(source, target, kind, parts):
        for (name, variable), shape in zip(parts, shapes[kind], strict=True):
            yield f"{source}/{name}", shape, f"{target}/{variable}"

    yield "cls", (1, 1, WIDTH), "patch_encoder/class_token"
    position = "Transformer/posembed_input/pos_embedding"
    yield position, (1, TOKENS, WIDTH), "patch_encoder/positions"
    yield from pair("embedding", "patch_encoder/projection", "embedding", dense)
    yield from pair("Transformer/encoder_norm", "encoder_norm", "norm", norm)
    yield from pair("head", "head", "head", dense)
    for i in range(DEPTH):
        source, target = f"Transformer/encoderblock_{i}", f"block_{i}"
        attention = f"{source}/MultiHeadDotProductAttention_1"
        for name in ("query", "key", "value"):
            yield from pair(f"{attention}/{name}", f"{target}/attention/{name}", name, dense)
        yield from pair(f"{attention}/out", f"{target}/attention/output", "out", dense)
        yield from pair(f"{source}/LayerNorm_0", f"{target}/attention_norm", "norm", norm)
        yield from pair(f"{source}/LayerNorm_2", f"{target}/mlp_norm", "norm", norm)
        mlp = f"{source}/MlpBlock_3"
        yield from pair(f"{mlp}/Dense_0", f"{target}/mlp/hidden", "Dense_0", dense)
        yield from pair(f"{mlp}/Dense_1", f"{target}/mlp/output", "Dense_1", dense)


def write(path):
    """Writes the checkpoint with random numbers."""
    rng = np.random.default_rng(0)
    np.savez(
        path, **{n: rng.standard_normal(shape, "float32") for n, shape, _ in official_arrays()}
    )


def import_(module):
    """Seconds of `import keras`, and of importing a module after it."""
    start = time.perf_counter()
    import keras  # noqa: F401

    between = time.perf_counter()
    __import__(module)
    return {"keras": between - start, "module": time.perf_counter() - between}


def build(rounds):
    """Seconds of building the model, by library; and of its variables without any layer."""
    import keras
    import libraries

    functions, missing = libraries.builders()
    kinds = [
        (v.shape, "glorot_uniform" if len(v.shape) == 2 else "zeros")
        for v in functions["keras_vit"]().weights
    ]
    functions["variables alone"] = lambda: [
        keras.Variable(initializer, shape=shape) for shape, initializer in kinds
    ]
    seconds = measuring.minima(functions, int(rounds), before=keras.backend.clear_session)
    return {"seconds": seconds, "missing": missing}


def load(path, rounds):
    """Seconds of loading, and of reading and assigning by hand."""
    import keras_vit

    model = keras_vit.ViT_B16(weights=None)
    variables = {v.path.removeprefix("vit_b16_"): v for v in model.weights}
    arrays = list(official_arrays())
    if {target for _, _, target in arrays} != set(variables):
        raise SystemExit("The file of this benchmark does not belong to the model any more.")

    def read():
        with np.load(path) as archive:
            for name, _, _ in arrays:
                archive[name]

    def read_and_assign():
        with np.load(path) as archive:
            for name, _, target in arrays:
                variable = variables[target]
                variable.assign(archive[name].reshape(variable.shape))

    functions = {
        "load": lambda: keras_vit.weights.load(model, path),
        "read": read,
        "read and assign": read_and_assign,
    }
    return measuring.minima(functions, int(rounds))


def memory(path):
    """Bytes of the process before the load, and its peak after it."""
    import keras_vit

    model = keras_vit.ViT_B16(weights=None)
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    keras_vit.weights.load(model, path)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"before": pages * resource.getpagesize(), "peak": peak}


STEPS = {"write": write, "import": import_, "build": build, "load": load, "memory": memory}


def in_fresh_process(step, *values):
    """What a step returns; this process stays small, as its size would count as the child's peak."""
    command = [sys.executable, __file__, "--step", step, *map(str, values)]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    return json.loads(result.stdout.splitlines()[-1])


def importing(rounds):
    """Rows of the import times."""
    modules = ["keras_vit", "keras_hub", "vit_keras", "zeromodels"]
    found = [m for m in modules if not missing_module(m)]
    seconds = {name: [] for name in found}
    for _ in range(rounds):
        for name in found:
            seconds[name].append(in_fresh_process("import", name))
    return [
        {
            "library": name,
            "import keras, s": min(s["keras"] for s in seconds[name]),
            "the library after it, s": min(s["module"] for s in seconds[name]),
        }
        for name in found
    ]


def missing_module(name):
    """Whether a module cannot be imported."""
    command = [sys.executable, "-c", f"import {name}"]
    return subprocess.run(command, capture_output=True).returncode != 0


def main():
    if sys.argv[1:2] == ["--step"]:
        print(json.dumps(STEPS[sys.argv[2]](*sys.argv[3:])))
        return
    arguments = measuring.parser(__doc__, rounds=7).parse_args()
    rounds = arguments.rounds
    imports = importing(rounds)
    built = in_fresh_process("build", rounds)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "b16.npz")
        in_fresh_process("write", path)
        size = path.stat().st_size
        loaded = in_fresh_process("load", path, rounds)
        used = in_fresh_process("memory", path)
    variables = built["seconds"].pop("variables alone")
    over = (used["peak"] - used["before"]) / size
    targets = [measuring.target("import, s over keras", imports[0]["the library after it, s"], 0.3)]
    if "keras_hub" in built["seconds"]:
        share = built["seconds"]["keras_vit"] / built["seconds"]["keras_hub"]
        targets.append(measuring.target("build: time / keras_hub", share, 0.5))
    ratio = loaded["load"] / loaded["read and assign"]
    targets.append(measuring.target("load: time / numpy and assignment", ratio, 1.5))
    targets.append(measuring.target("load: peak memory, sizes of the file", over, 2.2))
    sections = {
        "Targets": targets,
        "Import": imports,
        "Build": [
            {"library": name, "s": s, "without the variables, s": s - variables}
            for name, s in {**built["seconds"], "the variables alone": variables}.items()
        ],
        "Load": [{"what": name, "s": s, "MB/s": size / s / 1e6} for name, s in loaded.items()],
        "Memory": [
            {
                "file, MB": size / 1e6,
                "model, MB": used["before"] / 1e6,
                "peak, MB": used["peak"] / 1e6,
            }
        ],
    }
    if built["missing"]:
        sections["Not measured"] = [
            {"library": name, "reason": reason} for name, reason in built["missing"].items()
        ]
    measuring.write(arguments.out, "start_up", "Start of ViT-B/16", sections, rounds)


if __name__ == "__main__":
    main()
