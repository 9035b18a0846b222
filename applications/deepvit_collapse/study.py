"""Trains plain ViTs and DeepViTs of equal width at several depths, and compares their attention maps.

    apt-get install dataset-fashion-mnist
    python applications/deepvit_collapse/study.py --jobs 2

Takes about 2 hours on 2 CPU cores. Every run that ends is added to results/runs.csv, history.csv and
similarity.csv and is not repeated: the study can be stopped at any time and goes on from the last
epoch when the command is given again. `report.py` draws the figure and writes the table.
`--quick` shows in 3 minutes that everything works; it writes to --out alone.
"""

import argparse
import concurrent.futures
import csv
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent
RESULTS = HERE / "results"
SIMILARITY_IMAGES = 200  # test images whose attention maps are compared

WIDTH, HEADS, MLP, PATCH = 48, 4, 144, 4
EPOCHS, BATCH = 2, 64
LEARNING_RATE, WEIGHT_DECAY, WARM_UP, CLIP = 1e-3, 0.05, 0.1, 1.0
ATTENTIONS = ("plain", "re-attention")


@dataclasses.dataclass(frozen=True)
class Run:
    """One training: "plain" or "re-attention", number of blocks, seed."""

    attention: str
    depth: int
    seed: int

    @property
    def name(self):
        return f"{self.attention}-{self.depth}-seed{self.seed}"


STUDY = [
    Run(attention, depth, seed)
    for seed, depths in ((0, (8, 16, 24, 32)), (1, (24, 32)))
    for depth in depths
    for attention in ATTENTIONS
]
QUICK = [Run(attention, 2, 0) for attention in ATTENTIONS]


def untrained(run):
    """The model of a run, with logits."""
    from keras_vit import registry
    from keras_vit.models import plain

    variant = {"plain": "PlainViT_16B", "re-attention": "DeepViT_16B"}[run.attention]
    config = dataclasses.replace(
        registry.get_variant(variant).config,
        patch=PATCH,
        width=WIDTH,
        depth=run.depth,
        heads=HEADS,
        mlp=MLP,
        image=(28, 28),
    )
    return plain.model(config, classes=10, classifier_activation=None)


def trained(run, images, labels, epochs, folder):
    """Trains, or goes on after the last epoch; writes history.csv and weights to `folder`."""
    import keras
    from train import HistoryFile, TrainingBatches, WarmUpCosine

    keras.utils.set_random_seed(run.seed)
    model = untrained(run)
    weights = folder / "trained.weights.h5"
    if weights.exists():
        model.load_weights(weights)
        return model
    batches = TrainingBatches(images, labels, run.seed, BATCH)
    steps = len(batches) * epochs
    model.compile(
        keras.optimizers.AdamW(
            WarmUpCosine(LEARNING_RATE, WARM_UP * steps, steps),
            weight_decay=WEIGHT_DECAY,
            global_clipnorm=CLIP,
        ),
        keras.losses.CategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=True,
    )
    model.fit(
        batches,
        epochs=epochs,
        verbose=2,
        callbacks=[
            HistoryFile(folder / "history.csv", clock=time.process_time),
            keras.callbacks.BackupAndRestore(folder / "backup"),
        ],
    )
    partial = folder / "partial.weights.h5"
    model.save_weights(partial)
    os.replace(partial, weights)
    return model


def measured(run, model, images, labels):
    """Test accuracy, parameters, and similarities (depth, depth) of three kinds of maps.

    "similarity" is of the maps that meet the values, "softmax" of those before re-attention mixes
    them, "untrained" of the latter before the training.
    """
    import keras
    import numpy as np
    from train import to_rgb

    from keras_vit import analysis

    def similarity(model, kind):
        maps = analysis.attention_maps(model, to_rgb(images[:SIMILARITY_IMAGES]), kind=kind)
        return np.round(analysis.block_similarity(maps), 4).tolist()

    logits = model.predict(to_rgb(images), batch_size=250, verbose=0)
    keras.utils.set_random_seed(run.seed)  # as the training began
    return {
        "test_accuracy": round(float(np.mean(logits.argmax(axis=-1) == labels)), 4),
        "parameters": model.count_params(),
        "similarity": similarity(model, "mixed"),
        "softmax": similarity(model, "softmax"),
        "untrained": similarity(untrained(run), "softmax"),
    }


def do(run, data, out, quick):
    """One run from start to end, in this process; writes run.json."""
    sys.path.append(str(HERE.parent / "fashion_mnist"))
    from prepare import read_split

    images, labels = read_split("train", data)
    test_images, test_labels = read_split("test", data)
    epochs = EPOCHS
    if quick:
        epochs, images, labels = 2, images[:640], labels[:640]
        test_images, test_labels = test_images[:500], test_labels[:500]
    folder = out / run.name
    folder.mkdir(parents=True, exist_ok=True)
    model = trained(run, images, labels, epochs, folder)
    partial = folder / "partial.json"
    partial.write_text(json.dumps(measured(run, model, test_images, test_labels)))
    os.replace(partial, folder / "run.json")


def read_rows(path):
    """Rows of a CSV file, none if it does not exist."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def add_rows(path, label, rows):
    """Puts the rows of a run into a CSV file, in place of earlier ones, by writing it anew."""
    rows = [row for row in read_rows(path) if not is_of(label, row)] + rows
    partial = path.with_suffix(".partial")
    with partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    os.replace(partial, path)


def record(run, out, results):
    """Adds a finished run to the tables; runs.csv last, as it decides whether a run is done."""
    label = dataclasses.asdict(run)
    folder = out / run.name
    found = json.loads((folder / "run.json").read_text())
    history = read_rows(folder / "history.csv")
    pairs = [
        {
            **label,
            "block": p,
            "other_block": q,
            "cosine": found["similarity"][p][q],
            "softmax_cosine": found["softmax"][p][q],
            "untrained_cosine": found["untrained"][p][q],
        }
        for p in range(run.depth)
        for q in range(p + 1, run.depth)
    ]
    row = {
        **label,
        "test_accuracy": found["test_accuracy"],
        "parameters": found["parameters"],
        "cpu_seconds": round(sum(float(epoch["seconds"]) for epoch in history)),
    }
    add_rows(results / "history.csv", label, [{**label, **epoch} for epoch in history])
    add_rows(results / "similarity.csv", label, pairs)
    add_rows(results / "runs.csv", label, [row])
    return row


def is_of(label, row):
    """Whether a row of a table is of the run with this label."""
    return all(row[key] == str(value) for key, value in label.items())


def is_done(run, results):
    return any(is_of(dataclasses.asdict(run), row) for row in read_rows(results / "runs.csv"))


def start(run, args):
    """One run in a process of its own, on one core; returns the run."""
    command = [sys.executable, __file__, "--only", run.name, "--out", args.out, "--data", args.data]
    environment = {**os.environ, "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
    log = args.out / f"{run.name}.log"
    with log.open("a") as file:
        code = subprocess.call(
            command + ["--quick"] * args.quick, env=environment, stdout=file, stderr=file
        )
    if code:
        raise RuntimeError(f"{run.name} ended with exit status {code}; its output is in {log}.")
    return run


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", default="/usr/share/datasets/fashion-mnist", help="folder of the IDX files"
    )
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/deepvit_collapse"))
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time, one core each")
    parser.add_argument("--only", help="one run, such as plain-8-seed0, and no tables")
    parser.add_argument("--quick", action="store_true", help="depth 2, 640 images, 2 epochs")
    args = parser.parse_args(argv)
    study, results = (QUICK, args.out) if args.quick else (STUDY, RESULTS)
    for folder in (args.out, results):
        folder.mkdir(parents=True, exist_ok=True)
    if args.only:
        by_name = {run.name: run for run in study}
        if args.only not in by_name:
            parser.error(f"unknown run {args.only!r}; the runs are {', '.join(by_name)}")
        do(by_name[args.only], args.data, args.out, args.quick)
        return
    waiting = [run for run in study if not is_done(run, results)]
    print(f"{len(study) - len(waiting)} of {len(study)} runs are done.", flush=True)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for future in concurrent.futures.as_completed(pool.submit(start, r, args) for r in waiting):
            print(record(future.result(), args.out, results), flush=True)


if __name__ == "__main__":
    main()
