"""Training step of ViT-S/16 at 224 px against the other Keras libraries, and the memory of checkpointing.

    python benchmarks/training.py [--rounds 5] [--out benchmarks/results]

Step: `train_on_batch` of 16 images, SGD with momentum, compiled without XLA, the libraries in turns.
Memory: peak of a fresh process that takes two steps of 32 images, over what it takes before, with and
without gradient_checkpointing=True. Expected time on two CPU cores: 6 minutes.
"""

import functools
import json
import os
import resource
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import libraries
import measuring
import numpy as np

import keras_vit

MODEL, BATCH, MEMORY_BATCH = "ViT_S16", 16, 32


def step(model, batch):
    """One training step on random pictures, as a function without arguments."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss, jit_compile=False)
    rng = np.random.default_rng(0)
    images = rng.standard_normal((batch, 224, 224, 3)).astype("float32")
    return functools.partial(model.train_on_batch, images, rng.integers(0, 1000, batch))


def peak():
    """Peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def memory(checkpointing):
    """MB that two steps add to the peak of this process."""
    model = getattr(keras_vit, MODEL)(
        weights=None, classifier_activation=None, gradient_checkpointing=checkpointing
    )
    run = step(model, MEMORY_BATCH)
    before = peak()
    run()
    run()
    return peak() - before


def in_a_fresh_process(checkpointing):
    code = (
        f"import sys; sys.path.insert(0, {str(measuring.FOLDER)!r}); import training; "
        f"print(training.memory({checkpointing}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    arguments = measuring.parser(__doc__, rounds=5).parse_args()
    megabytes = {way: in_a_fresh_process(way) for way in (False, True)}
    builders, missing = libraries.builders(MODEL)
    functions = {name: step(build(), BATCH) for name, build in builders.items()}
    seconds = measuring.minima(functions, arguments.rounds)
    ours, others = seconds["keras_vit"], [s for n, s in seconds.items() if n != "keras_vit"]
    targets = [
        measuring.target(
            "memory with checkpointing / without", megabytes[True] / megabytes[False], 0.5
        )
    ]
    if others:
        targets.append(measuring.target("step / best of the others", ours / min(others), 1.0))
    sections = {
        "Targets": targets,
        f"Step of {BATCH} images": [
            {"library": name, "ms": 1000 * time, "time / keras_vit": time / ours}
            for name, time in seconds.items()
        ],
        f"Memory of steps of {MEMORY_BATCH} images": [
            {"gradient checkpointing": way, "peak MB": value} for way, value in megabytes.items()
        ],
    }
    if missing:
        sections["Not measured"] = [{"library": n, "why": why} for n, why in missing.items()]
    place = f"{keras.backend.backend()}_{measuring.device()}"
    title = f"Training {MODEL}, 224 px, float32 ({place.replace('_', ', ')})"
    measuring.write(arguments.out, f"training_{place}", title, sections, arguments.rounds)


if __name__ == "__main__":
    main()
