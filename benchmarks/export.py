"""ViT-B/16 as SavedModel, ONNX and LiteRT files: what exporting costs, and how fast they run.

    python benchmarks/export.py [--model ViT_B16] [--rounds 10] [--out benchmarks/results]

Export: seconds and peak memory of the process over what the built model takes, each in a fresh process;
size of what was written. Load: seconds from the file to the first answer, in a fresh process that has
imported the runtime. Run: milliseconds of a batch of 1 (median and 95th percentile over the rounds) and
images per second at a batch of 8 (best round), of all formats and of Keras in turns, in one process.
If keras-hub is installed, its ViT-B/16 and what its `export` writes take part.
Expected time on two CPU cores: 10 minutes.
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
FORMATS = ["SavedModel", "ONNX", "LiteRT float32", "LiteRT dynamic-int8"]
PEER = "keras-hub SavedModel"


def built(name, format):
    """The model with random weights; for `PEER` the ViT-B/16 of keras-hub."""
    import libraries

    import keras_vit

    if format == PEER:
        return libraries.builders()[0]["keras_hub"]()
    return getattr(keras_vit, name)(weights=None)


def export(name, format, path):
    """Exports a model with random weights; returns what it cost."""
    from keras_vit import export as exporting

    model = built(name, format)
    model.predict_on_batch(np.zeros((1, *model.input_shape[1:]), "float32"))
    before = peak()
    start = time.perf_counter()
    if format == PEER:
        model.export(path, verbose=False)
    elif format == "SavedModel":
        exporting.saved_model(model, path)
    elif format == "ONNX":
        exporting.onnx(model, path)
    else:
        exporting.litert(model, path, format.split()[1])
    return {"seconds": time.perf_counter() - start, "peak_mb": peak() - before}


def runner(format, path):
    """Function of float32 images -> probabilities; of `PEER` logits."""
    if format == "ONNX":
        from keras_vit.export.onnx_file import run_onnx

        run = run_onnx(path)
    elif format.startswith("LiteRT"):
        from keras_vit.export.litert_file import run_litert

        run = run_litert(path)
    else:
        import tensorflow as tf

        loaded = tf.saved_model.load(path if format == PEER else f"{path}/1")
        function = loaded.signatures["serving_default"]

        def run(images):
            outputs = function(tf.constant(images))
            return {name: value.numpy() for name, value in outputs.items()}

        run.loaded = loaded  # its variables live as long as it

    return lambda images: next(iter(run(images).values()))


def first_answer(format, path, size):
    """Seconds to load and answer once; the imports do not count."""
    runtimes = {"ONNX": "onnxruntime", "SavedModel": "tensorflow", PEER: "tensorflow"}
    __import__(runtimes.get(format, "ai_edge_litert.interpreter"))
    import keras_vit.export  # noqa: F401

    start = time.perf_counter()
    runner(format, path)(np.zeros((1, size, size, 3), "float32"))
    return {"seconds": time.perf_counter() - start}


def peak():
    """Peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_a_fresh_process(function, *arguments):
    code = (
        f"import json, sys; sys.path.insert(0, {str(measuring.FOLDER)!r}); import export; "
        f"print(json.dumps(export.{function}(*{arguments!r})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def size_mb(path):
    path = pathlib.Path(path)
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def measure(functions, rounds):
    """For each function the seconds of every round, taken in turns."""
    seconds = {name: [] for name in functions}
    for function in functions.values():
        function()
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def main():
    parser = measuring.parser(__doc__, rounds=10)
    parser.add_argument("--model", default="ViT_B16", help="default ViT_B16")
    args = parser.parse_args()
    import libraries

    models = {"Keras predict": built(args.model, "SavedModel")}
    if args.model == "ViT_B16" and "keras_hub" in libraries.builders()[0]:
        FORMATS.append(PEER)
        models["keras-hub predict"] = built(args.model, PEER)
    size = models["Keras predict"].input_shape[1]

    with tempfile.TemporaryDirectory() as folder:
        paths = {format: f"{folder}/{format.replace(' ', '_')}.file" for format in FORMATS}
        costs = {f: in_a_fresh_process("export", args.model, f, paths[f]) for f in FORMATS}
        loads = {f: in_a_fresh_process("first_answer", f, paths[f], size) for f in FORMATS}
        files = [
            {
                "format": f,
                "export s": costs[f]["seconds"],
                "peak MB": costs[f]["peak_mb"],
                "file MB": size_mb(paths[f]),
                "to first answer s": loads[f]["seconds"],
            }
            for f in FORMATS
        ]
        runs = {name: model.predict_on_batch for name, model in models.items()}
        runs |= {format: runner(format, paths[format]) for format in FORMATS}
        one, eight = (np.zeros((count, size, size, 3), "float32") for count in (1, 8))
        single = measure({n: lambda run=run: run(one) for n, run in runs.items()}, args.rounds)
        many = measure({n: lambda run=run: run(eight) for n, run in runs.items()}, args.rounds)
    speeds = [
        {
            "format": name,
            "1 image, p50 ms": 1000 * float(np.median(single[name])),
            "p95 ms": 1000 * float(np.percentile(single[name], 95)),
            "8 images, images/s": 8 / min(many[name]),
        }
        for name in runs
    ]
    title = f"{args.model}, exported"
    measuring.write(args.out, "export", title, {"Files": files, "Speed": speeds}, args.rounds)


if __name__ == "__main__":
    main()
