"""Pictures a second of the data pipelines next to bare decoding, and their memory.

    python benchmarks/data_pipeline.py [--rounds 5] [--threads 2] [--out benchmarks/results]

Speed: an epoch of 2,048 photo-like JPEGs of 500x375 pixels, written here, in batches of 64 at 224x224.
Bare decoding is `load_image` alone in as many threads; the second row adds the cut to size, which the
pipelines do too, and is what they are compared with. Memory: how far the peak of the process grows in an epoch of 20,000 pictures without
a cache. Expected time on two CPU cores: 10 minutes.
"""

import concurrent.futures
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

import measuring
import numpy as np
from PIL import Image

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

FILES, PICTURES, MANY, BATCH, SIZE = 512, 2048, 20_000, 64, (224, 224)


def write_pictures(folder):
    """JPEGs with as much detail as photos have, about 1.3 bits a pixel."""
    random = np.random.default_rng(0)
    for k in range(FILES):
        coarse = random.integers(0, 256, (15, 20, 3)).astype("uint8")
        image = np.asarray(Image.fromarray(coarse).resize((500, 375), Image.BICUBIC), "int16")
        image = image + random.normal(0, 8, image.shape)
        path = pathlib.Path(folder, f"{k}.jpg")
        Image.fromarray(image.clip(0, 255).astype("uint8")).save(path, quality=85)


def samples_of(folder, count):
    """`count` samples of two classes; files come again if there are fewer."""
    from keras_vit.training import Samples

    paths = sorted(pathlib.Path(folder).iterdir())
    return Samples([paths[k % len(paths)] for k in range(count)], np.arange(count) % 2, "ab")


def speed(folder, rounds, threads):
    """Seconds an epoch."""
    from keras_vit import load_image, prepare
    from keras_vit.preprocessing import Recipe
    from keras_vit.training import (
        Augmentation,
        evaluation_dataset,
        steps_per_epoch,
        training_dataset,
    )

    threads, recipe = int(threads), Recipe(SIZE)
    samples = samples_of(folder, PICTURES)
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    steps = steps_per_epoch(samples, BATCH)

    def bare(function):
        return lambda: sum(1 for _ in pool.map(function, samples.images))

    def training(**options):
        augmentation = Augmentation(**options)
        dataset = training_dataset(
            samples, recipe, BATCH, augmentation=augmentation, cache=0, threads=threads
        )
        return lambda: list(dataset.take(steps))  # from the start, where nothing is ready

    evaluation = evaluation_dataset(samples, recipe, BATCH, threads=threads)
    functions = {
        "bare decoding": bare(load_image),
        "bare decoding and cut": bare(lambda path: prepare(load_image(path), recipe)),
        "evaluation_dataset": lambda: list(evaluation),
        "training_dataset, crop": training(flip=False),
        "training_dataset, crop and flip": training(),
        "training_dataset, as DeiT": training(
            rand_augment=(2, 9), erasing=0.25, mix_up=0.8, cut_mix=1.0
        ),
    }
    return measuring.minima(functions, int(rounds))


def memory(folder, kind):
    """Bytes of the process after the first batches, and its peak after an epoch."""
    from keras_vit.preprocessing import Recipe
    from keras_vit.training import evaluation_dataset, steps_per_epoch, training_dataset

    samples = samples_of(folder, MANY)
    make = {"training": training_dataset, "evaluation": evaluation_dataset}[kind]
    batches = iter(make(samples, Recipe(SIZE), BATCH, cache=0))
    for _ in range(10):
        next(batches)
    before = peak()
    for _ in range(steps_per_epoch(samples, BATCH) - 10):
        next(batches)
    return {"before": before, "peak": peak()}


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


STEPS = {"speed": speed, "memory": memory}


def in_fresh_process(step, *values):
    """What a step returns."""
    command = [sys.executable, __file__, "--step", step, *map(str, values)]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    return json.loads(result.stdout.splitlines()[-1])


def main():
    if sys.argv[1:2] == ["--step"]:
        print(json.dumps(STEPS[sys.argv[2]](*sys.argv[3:])))
        return
    parser = measuring.parser(__doc__, rounds=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="default: cores")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_pictures(folder)
        seconds = in_fresh_process("speed", folder, arguments.rounds, arguments.threads)
        used = {
            kind: in_fresh_process("memory", folder, kind) for kind in ("training", "evaluation")
        }
    rates = {name: PICTURES / s for name, s in seconds.items()}
    bare = rates["bare decoding and cut"]
    growth = {kind: (m["peak"] - m["before"]) / 1e6 for kind, m in used.items()}
    targets = [
        measuring.target(
            f"{name}: rate / bare decoding and cut", rates[name] / bare, 0.8, at_most=False
        )
        for name in ("evaluation_dataset", "training_dataset, crop and flip")
    ] + [
        measuring.target(f"{kind}, 20,000 pictures: growth of the peak, MB", mb, 100)
        for kind, mb in growth.items()
    ]
    sections = {
        "Targets": targets,
        f"Speed, {arguments.threads} threads": [
            {"what": name, "pictures/s": rate, "share of the second": rate / bare}
            for name, rate in rates.items()
        ],
        "Memory": [
            {
                "pipeline": kind,
                "after 10 batches, MB": m["before"] / 1e6,
                "peak, MB": m["peak"] / 1e6,
            }
            for kind, m in used.items()
        ],
    }
    measuring.write(arguments.out, "data_pipeline", "Data pipelines", sections, arguments.rounds)


if __name__ == "__main__":
    main()
