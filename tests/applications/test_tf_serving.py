"""The client against a server that speaks the protocols, and the server's files."""

import importlib.util
import pathlib
import re
import shutil
import socket
import subprocess
import time

import keras
import pytest

import keras_vit
from keras_vit import export
from keras_vit.export.warm_up import shipped_pictures

tf = pytest.importorskip("tensorflow")
if keras.config.backend() != "tensorflow":
    pytest.skip("The export runs on TensorFlow.", allow_module_level=True)

FOLDER = pathlib.Path(__file__).parents[2] / "applications" / "tf_serving"
spec = importlib.util.spec_from_file_location("tf_serving_client", FOLDER / "client.py")
client = importlib.util.module_from_spec(spec)
spec.loader.exec_module(client)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    model = keras_vit.ViT_Mini4(weights="fashion-mnist")
    names = keras_vit.registry.get_variant("ViT_Mini4").named("fashion-mnist").labels
    return export.saved_model(model, tmp_path_factory.mktemp("models") / "vit", names)


@pytest.fixture(scope="module")
def model(folder):
    from serving_stub import Model

    return Model(folder, "vit")


@pytest.fixture(scope="module", params=["--rest", "--grpc"])
def server(request, model):
    """The option that names a server, and its address."""
    import serving_stub

    if request.param == "--grpc":
        pytest.importorskip("tensorflow_serving.apis.prediction_service_pb2_grpc")
        with serving_stub.grpc_server(model) as address:
            yield "--grpc", address
    else:
        with serving_stub.rest_server(model) as address:
            yield "--rest", address


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    for k, picture in enumerate(shipped_pictures(4)):
        keras.utils.save_img(folder / f"{k}.png", picture, scale=False)
    (folder / "notes.txt").write_text("not sent")
    return folder


def test_a_folder_of_pictures(server, pictures, capsys):
    assert client.main([str(pictures), *server, "--batch", "2", "--threads", "2"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    labels = [re.split(r"\s{2,}", line)[2] for line in lines]
    assert labels == ["Ankle boot", "Pullover", "Trouser", "Trouser"]
    assert re.fullmatch(
        r"4 pictures in 2 requests, \S+ pictures/s; latency p50 \S+ ms, p95 \S+ ms, p99 \S+ ms",
        last,
    )


def test_a_bad_file_is_named(server, pictures, tmp_path, capsys):
    bad = tmp_path / "page.jpg"
    bad.write_text("<html>")
    good = pictures / "2.png"
    assert client.main([str(bad), str(good), *server, "--batch", "2"]) == 1
    first, second, _ = capsys.readouterr().out.splitlines()
    assert first.endswith("not an image")
    assert second.endswith("Trouser")


def test_versions(server, pictures, capsys):
    one = str(pictures / "0.png")
    assert client.main([one, *server, "--version", "1"]) == 0
    assert client.main([one, *server, "--version", "7"]) == 1
    assert "request failed" in capsys.readouterr().out
    assert client.main([one, *server, "--model", "other"]) == 1
    assert "Servable not found" in capsys.readouterr().out


def test_no_server(pictures, capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    assert client.main([str(pictures / "0.png"), "--rest", address]) == 1
    assert "request failed" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        client.main([str(pictures / "notes"), "--rest", address, "--threads", "x"])


def test_percentiles():
    seconds = [float(k) for k in range(1, 101)]
    assert [client.percentile(seconds, p) for p in (50, 95, 99, 100)] == [50.0, 95.0, 99.0, 100.0]
    assert client.percentile([3.0], 99) == 3.0


def test_the_servers_files_are_what_it_reads():
    from google.protobuf import text_format

    model_server_config_pb2 = pytest.importorskip(
        "tensorflow_serving.config.model_server_config_pb2"
    )
    config = text_format.Parse(
        (FOLDER / "models.config").read_text(), model_server_config_pb2.ModelServerConfig()
    )
    (model,) = config.model_config_list.config
    assert (model.name, model.base_path) == ("vit", "/models/vit")
    compose = (FOLDER / "compose.yaml").read_text()
    for name in ("models.config", "batching.config", "monitoring.config"):
        assert f"/config/{name}" in compose and (FOLDER / name).is_file()


@pytest.mark.skipif(not shutil.which("tensorflow_model_server"), reason="needs the real server")
def test_the_real_server(folder, pictures, capsys):
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    server = subprocess.Popen(
        [
            "tensorflow_model_server",
            f"--port={ports[0]}",
            f"--rest_api_port={ports[1]}",
            "--model_name=vit",
            f"--model_base_path={folder.parent}",
        ]
    )
    try:
        for address in (
            ("--grpc", f"127.0.0.1:{ports[0]}"),
            ("--rest", f"http://127.0.0.1:{ports[1]}"),
        ):
            for _ in range(60):
                if client.main([str(pictures), *address]) == 0:
                    break
                time.sleep(1)
            out = capsys.readouterr().out
            assert out.count("Trouser") >= 2, out
    finally:
        server.terminate()
        server.wait()
