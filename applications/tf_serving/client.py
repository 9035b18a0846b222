"""Sends pictures to a TensorFlow Serving server and prints what it sees in them, and how fast.

    python applications/tf_serving/client.py PICTURES --rest http://localhost:8501
    python applications/tf_serving/client.py PICTURES --grpc localhost:8500

PICTURES are files and folders. REST needs nothing but Python; gRPC `pip install "keras-vit-zoo[serving]"`.
The exit code is 1 if a picture was refused or a request failed.
"""

import argparse
import base64
import concurrent.futures
import dataclasses
import json
import pathlib
import sys
import time
import urllib.error
import urllib.request

SIGNATURE = "serving_bytes"
SUFFIXES = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif")


@dataclasses.dataclass(frozen=True)
class Answer:
    """What the server says of one picture."""

    status: str
    label: str = ""
    score: float = 0.0


class RestClient:
    """TensorFlow Serving's REST interface.

    Args:
        address: such as "http://localhost:8501".
        model: its name on the server.
        version: None for the one the server prefers.
        timeout: seconds.
    """

    def __init__(self, address, model, version=None, timeout=30.0):
        number = "" if version is None else f"/versions/{version}"
        self.url = f"{address.rstrip('/')}/v1/models/{model}{number}:predict"
        self.timeout = timeout

    def classify(self, files):
        """An `Answer` for each of a list of bytes; OSError if the request fails."""
        encoded = [{"b64": base64.b64encode(file).decode()} for file in files]
        body = {"signature_name": SIGNATURE, "inputs": {"image_bytes": encoded}}
        request = urllib.request.Request(
            self.url, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as response:
                outputs = json.load(response)["outputs"]
        except urllib.error.HTTPError as error:
            raise OSError(f"{error}: {error.read().decode(errors='replace')}") from error
        return _answers(outputs["status"], outputs["labels"], outputs["scores"])


class GrpcClient:
    """TensorFlow Serving's gRPC interface; for the arguments see `RestClient`."""

    def __init__(self, address, model, version=None, timeout=30.0):
        import grpc
        from tensorflow_serving.apis import prediction_service_pb2_grpc

        self.model, self.version, self.timeout = model, version, timeout
        self.stub = prediction_service_pb2_grpc.PredictionServiceStub(
            grpc.insecure_channel(address)
        )

    def classify(self, files):
        """An `Answer` for each of a list of bytes; OSError if the request fails."""
        import grpc
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        request = predict_pb2.PredictRequest()
        request.model_spec.name = self.model
        request.model_spec.signature_name = SIGNATURE
        if self.version is not None:
            request.model_spec.version.value = self.version
        request.inputs["image_bytes"].CopyFrom(tf.make_tensor_proto(files, tf.string))
        request.output_filter.extend(["status", "labels", "scores"])
        try:
            outputs = self.stub.Predict(request, timeout=self.timeout).outputs
        except grpc.RpcError as error:
            raise OSError(f"{error.code().name}: {error.details()}") from error
        status, labels, scores = (
            tf.make_ndarray(outputs[name]) for name in ("status", "labels", "scores")
        )
        texts = [[text.decode() for text in row] for row in labels]
        return _answers([text.decode() for text in status], texts, scores.tolist())


def _answers(status, labels, scores):
    return [
        Answer(text, names[0], values[0])
        for text, names, values in zip(status, labels, scores, strict=True)
    ]


def send(client, paths, batch, threads):
    """Sends all pictures, `batch` a request, from several threads.

    Returns:
        list of (path, `Answer`) in order, the seconds of every request, and the seconds of them all.
    """
    groups = [paths[k : k + batch] for k in range(0, len(paths), batch)]

    def request(group):
        start = time.perf_counter()
        try:
            answers = client.classify([path.read_bytes() for path in group])
        except OSError as error:
            answers = [Answer(f"request failed: {error}")] * len(group)
        return answers, time.perf_counter() - start

    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        answers, seconds = zip(*pool.map(request, groups), strict=True)
    flat = [answer for group in answers for answer in group]
    return list(zip(paths, flat, strict=True)), seconds, time.perf_counter() - start


def percentile(seconds, percent):
    """The nearest-rank percentile."""
    return sorted(seconds)[max(0, -(-len(seconds) * percent // 100) - 1)]


def find(inputs):
    """The picture files that files and folders stand for."""
    found = []
    for path in map(pathlib.Path, inputs):
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        found += [p for p in inside if p == path or p.suffix.lower() in SUFFIXES]
    return found


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pictures", nargs="+", help="files and folders")
    address = parser.add_mutually_exclusive_group(required=True)
    address.add_argument("--rest", metavar="URL", help="such as http://localhost:8501")
    address.add_argument("--grpc", metavar="HOST:PORT", help="such as localhost:8500")
    parser.add_argument("--model", default="vit", help="name on the server (default: vit)")
    parser.add_argument("--version", type=int, help="default: what the server prefers")
    parser.add_argument("--batch", type=int, default=1, help="pictures a request (default: 1)")
    parser.add_argument("--threads", type=int, default=4, help="requests at once (default: 4)")
    args = parser.parse_args(argv)
    paths = find(args.pictures)
    if not paths:
        parser.error(f"there is no picture in {', '.join(args.pictures)}")
    if args.rest:
        client = RestClient(args.rest, args.model, args.version)
    else:
        client = GrpcClient(args.grpc, args.model, args.version)
    answers, seconds, total = send(client, paths, args.batch, args.threads)
    width = max(len(str(path)) for path in paths)
    for path, answer in answers:
        result = f"{answer.score:.4f}  {answer.label}" if answer.status == "ok" else answer.status
        print(f"{path!s:<{width}}  {result}")
    middle, high, highest = (1000 * percentile(seconds, p) for p in (50, 95, 99))
    print(
        f"{len(paths)} pictures in {len(seconds)} requests, {len(paths) / total:.1f} pictures/s; "
        f"latency p50 {middle:.1f} ms, p95 {high:.1f} ms, p99 {highest:.1f} ms"
    )
    return 0 if all(answer.status == "ok" for _, answer in answers) else 1


if __name__ == "__main__":
    sys.exit(main())
