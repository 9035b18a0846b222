"""A server that speaks TensorFlow Serving's protocols and runs an exported SavedModel."""

import base64
import concurrent.futures
import contextlib
import http.server
import json
import threading

import tensorflow as tf


class Model:
    """A loaded version, under its name."""

    def __init__(self, folder, name):
        self.name, self.version = name, int(folder.name)
        self.loaded = tf.saved_model.load(str(folder))

    def run(self, name, version, signature, inputs):
        """Arrays of the outputs; LookupError as the server gives NOT_FOUND."""
        if name != self.name or version not in (None, self.version):
            raise LookupError(f"Servable not found for request: Specific({name}, {version})")
        outputs = self.loaded.signatures[signature](**inputs)
        return {key: value.numpy() for key, value in outputs.items()}


@contextlib.contextmanager
def grpc_server(model):
    """Gives the address of a PredictionService."""
    import grpc
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
        def Predict(self, request, context):  # noqa: N802, the name in the protocol
            spec = request.model_spec
            version = spec.version.value if spec.HasField("version") else None
            inputs = {k: tf.constant(tf.make_ndarray(v)) for k, v in request.inputs.items()}
            try:
                outputs = model.run(spec.name, version, spec.signature_name, inputs)
            except LookupError as error:
                context.abort(grpc.StatusCode.NOT_FOUND, str(error))
            response = predict_pb2.PredictResponse()
            for key in request.output_filter or outputs:
                response.outputs[key].CopyFrom(tf.make_tensor_proto(outputs[key]))
            return response

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Service(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(None).wait()


@contextlib.contextmanager
def rest_server(model):
    """Gives the address of the REST interface, with `inputs` in columns."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):  # noqa: N802, the name in the library
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            _, _, _, name, *version = self.path.removesuffix(":predict").split("/")
            number = int(version[1]) if version else None
            inputs = {
                key: tf.constant([base64.b64decode(item["b64"]) for item in value])
                for key, value in body["inputs"].items()
            }
            try:
                outputs = model.run(name, number, body["signature_name"], inputs)
            except LookupError as error:
                return self.answer(404, {"error": str(error)})
            lists = {key: value.tolist() for key, value in outputs.items()}
            return self.answer(200, {"outputs": lists})

        def answer(self, code, body):
            content = json.dumps(body, default=bytes.decode).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
