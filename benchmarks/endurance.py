"""Does a served model answer thousands of files rightly, damaged ones among them, in constant memory?

    python benchmarks/endurance.py [--requests 2000] [--threads 4] [--out benchmarks/results]

ViT_Mini4 with its shipped weights, exported; the requests of 1 to 4 files go to the signature
"serving_bytes" from several threads. One file in twenty is damaged. Every good one must get the class it
gets alone, every damaged one a status. Memory is that of the process, after the first tenth and at the end.
Expected time on two CPU cores: 2 minutes.
"""

import concurrent.futures
import gc
import io
import os
import pathlib
import tempfile
import time

import measuring
import numpy as np
from PIL import Image

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
SIZE = 320  # pixels of a side


def encoded(picture, format):
    file = io.BytesIO()
    Image.fromarray(picture).resize((SIZE, SIZE)).save(file, format)
    return file.getvalue()


def damaged(file, random):
    """Cut short, or not an image, or empty."""
    kinds = (file[: len(file) // 3], b"<html>" + file[6:], b"")
    return kinds[random.integers(len(kinds))]


def memory_mb():
    """Resident memory of this process now."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main():
    parser = measuring.parser(__doc__)
    parser.add_argument("--requests", type=int, default=2000, help="default 2000")
    parser.add_argument("--threads", type=int, default=4, help="default 4")
    args = parser.parse_args()
    import tensorflow as tf

    import keras_vit
    from keras_vit.export import saved_model
    from keras_vit.export.warm_up import shipped_pictures

    folder = tempfile.TemporaryDirectory()
    loaded = tf.saved_model.load(str(saved_model(keras_vit.ViT_Mini4(), folder.name)))
    serve = loaded.signatures["serving_bytes"]
    random = np.random.default_rng(0)
    files = [encoded(p, FORMATS[k % len(FORMATS)]) for k, p in enumerate(shipped_pictures(200))]
    alone = [int(serve(tf.constant([file]))["indices"][0, 0]) for file in files]
    requests = [random.integers(0, len(files), random.integers(1, 5)) for _ in range(args.requests)]
    bad = [random.random(len(request)) < 0.05 for request in requests]
    contents = [
        [damaged(files[k], random) if b else files[k] for k, b in zip(request, broken, strict=True)]
        for request, broken in zip(requests, bad, strict=True)
    ]

    def answer(n):
        start = time.perf_counter()
        found = serve(tf.constant(contents[n]))
        seconds = time.perf_counter() - start
        status, best = found["status"].numpy() == b"ok", found["indices"].numpy()[:, 0]
        good = ~bad[n]
        right = np.array_equal(status, good) and np.isfinite(found["scores"].numpy()).all()
        right &= all(best[good] == np.array(alone)[requests[n]][good])
        return bool(right), seconds

    warm = args.requests // 10
    with concurrent.futures.ThreadPoolExecutor(args.threads) as pool:
        answers = list(pool.map(answer, range(warm)))
        gc.collect()
        before = memory_mb()
        start = time.perf_counter()
        answers += pool.map(answer, range(warm, args.requests))
        total = time.perf_counter() - start
    gc.collect()
    wrong = sum(not right for right, _ in answers)
    seconds = [s for _, s in answers[warm:]]
    count = sum(len(request) for request in requests)
    rows = [
        measuring.target("requests with a wrong answer", wrong, 0),
        measuring.target("growth of memory, MB", memory_mb() - before, 50),
    ]
    facts = [
        {
            "requests": args.requests,
            "files": count,
            "damaged": int(sum(b.sum() for b in bad)),
            "threads": args.threads,
            "p50 ms": 1000 * float(np.median(seconds)),
            "p95 ms": 1000 * float(np.percentile(seconds, 95)),
            "files/s": sum(len(request) for request in requests[warm:]) / total,
        }
    ]
    title = "Files through the signature `serving_bytes`, from several threads"
    measuring.write(args.out, "endurance", title, {"Targets": rows, "What was run": facts})
    folder.cleanup()


if __name__ == "__main__":
    main()
