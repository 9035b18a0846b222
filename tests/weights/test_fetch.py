import hashlib
import http.server
import importlib.resources
import logging
import pathlib
import re
import socket
import threading

import keras
import pytest

from keras_vit.weights.fetch import FetchError, cache_path, fetch, resolve

CONTENT = bytes(range(256)) * 40
SHA256 = hashlib.sha256(CONTENT).hexdigest()
OTHER_SHA256 = "0" * 64
PAGES = {
    "/page": b"<!DOCTYPE html><html>Sign in</html>",
    "/late-page": b"\xef\xbb\xbf\n  <HTML>Sign in</HTML>",
    "/denied": b"<?xml version='1.0'?><Error>AccessDenied</Error>",
    "/pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
    "/empty": b"",
}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        if self.path[1:].isdigit():
            self.send_error(int(self.path[1:]))
            return
        body = PAGES.get(self.path, CONTENT)
        self.send_response(200)
        if self.path != "/unsized.npz":
            extra = 1000 if self.path == "/cut.npz" else 0
            self.send_header("Content-Length", str(len(body) + extra))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


class Server(http.server.ThreadingHTTPServer):
    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests = []

    def url(self, path):
        return f"http://127.0.0.1:{self.server_port}{path}"


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("KERAS_VIT_OFFLINE", raising=False)
    return tmp_path / "home" / "keras_vit"


def put(url, content):
    path = cache_path(url)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("sha256", [None, SHA256, SHA256.upper()])
@pytest.mark.parametrize("path", ["/vit.npz", "/unsized.npz"])
def test_file_is_downloaded_once(server, folder, path, sha256):
    first = fetch(server.url(path), sha256)
    second = fetch(server.url(path), sha256)

    assert first == second == cache_path(server.url(path))
    assert first.read_bytes() == CONTENT
    assert list(folder.iterdir()) == [first]
    assert server.requests == [path]


def test_target_is_logged_and_only_progress_is_printed(server, caplog, capsys):
    with caplog.at_level(logging.INFO, logger="keras_vit"):
        target = fetch(server.url("/vit.npz"))
        printed, errors = capsys.readouterr()
        fetch(server.url("/vit.npz"))

    assert [r.getMessage() for r in caplog.records] == [
        f"Downloading {server.url('/vit.npz')} to {target}"
    ]
    assert f"{len(CONTENT)}/{len(CONTENT)}" in printed and "Downloading" not in printed
    assert printed.endswith("\n")
    assert errors == ""
    assert capsys.readouterr() == ("", "")


def test_final_name_appears_only_when_complete(server, folder, monkeypatch):
    seen = []

    def update(self, current, **kwargs):
        seen.append([path.suffix for path in folder.iterdir()])

    monkeypatch.setattr(keras.utils.Progbar, "update", update)
    fetch(server.url("/vit.npz"))

    assert seen and all(suffixes == [".part"] for suffixes in seen)


def test_wrong_hash_leaves_nothing(server, folder):
    found = f"the file has SHA-256 {SHA256}, not {OTHER_SHA256}"
    with pytest.raises(FetchError, match=found):
        fetch(server.url("/vit.npz"), OTHER_SHA256)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("stale", [b"\0other weights", PAGES["/pointer"], b""])
def test_unusable_cached_file_is_reported_and_replaced(server, folder, caplog, stale):
    target = put(server.url("/vit.npz"), stale)

    assert fetch(server.url("/vit.npz"), SHA256) == target
    assert target.read_bytes() == CONTENT
    assert list(folder.iterdir()) == [target]
    assert f"The cached {target} is downloaded again: the file" in caplog.text


def test_cut_connection(server, folder):
    message = f"cut after {len(CONTENT)} of {len(CONTENT) + 1000} bytes"
    with pytest.raises(FetchError, match=message):
        fetch(server.url("/cut.npz"))
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("status", [403, 404, 500])
def test_http_status(server, folder, status):
    url = server.url(f"/{status}")
    with pytest.raises(FetchError, match=f"Cannot fetch {url}: HTTP Error {status}") as caught:
        fetch(url)
    assert caught.value.__cause__.closed
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("path", sorted(PAGES))
def test_page_instead_of_weights(server, folder, path):
    start = re.escape(repr(PAGES[path].decode())[:30]) if PAGES[path] else "file is empty"
    with pytest.raises(FetchError, match=start):
        fetch(server.url(path))
    assert list(folder.iterdir()) == []


def test_interrupt_leaves_nothing(server, folder, monkeypatch):
    def interrupt(self, current, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(keras.utils.Progbar, "update", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch(server.url("/vit.npz"))
    assert list(folder.iterdir()) == []


def test_offline_variable(server, folder, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    url = server.url("/vit.npz")
    with pytest.raises(FetchError, match="KERAS_VIT_OFFLINE") as caught:
        fetch(url, SHA256)
    for part in (url, str(cache_path(url)), SHA256):
        assert part in str(caught.value)
    assert server.requests == [] and not folder.exists()

    monkeypatch.setenv("KERAS_VIT_OFFLINE", "0")
    assert fetch(url, SHA256) == cache_path(url)


def test_offline_names_the_fault_of_the_cached_file(server, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    target = put(server.url("/vit.npz"), CONTENT)
    with pytest.raises(FetchError, match=f"{SHA256}, not {OTHER_SHA256}, and KERAS_VIT_OFFLINE"):
        fetch(server.url("/vit.npz"), OTHER_SHA256)
    assert target.read_bytes() == CONTENT


def test_no_network(folder):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/vit.npz"
        with pytest.raises(FetchError, match="refused") as caught:
            fetch(url, SHA256)
    for part in (url, str(cache_path(url)), SHA256):
        assert part in str(caught.value)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("url", ["http://127.0.0.1/two words", "http://127.0.0.1/\u00e9.npz"])
def test_unusable_address(url, folder):
    with pytest.raises(FetchError, match="Cannot fetch"):
        fetch(url)
    assert list(folder.iterdir()) == []


def test_file_put_by_hand_is_used_offline(monkeypatch):
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    with pytest.raises(FetchError) as caught:
        fetch("hf://owner/name", SHA256)
    path = pathlib.Path(re.search(r"by hand at (\S+) and", str(caught.value))[1])
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)

    assert fetch("hf://owner/name", SHA256) == path


def test_cache_that_cannot_be_written(server, folder):
    folder.parent.parent.joinpath("home").write_text("a file where the folder should be")
    with pytest.raises(FetchError, match="Put the file by hand at"):
        fetch(server.url("/vit.npz"))


def test_equal_names_do_not_collide(server, folder):
    paths = {fetch(server.url(f"/{size}/model.safetensors")) for size in ("small", "large")}
    assert len(paths) == 2 and set(folder.iterdir()) == paths
    assert all(path.name.endswith("-model.safetensors") for path in paths)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/a/vit.npz?download=1#top", "vit.npz"),
        ("/a/..%2F..%5Cvit%20b.npz", ".._.._vit_b.npz"),
        ("/" + "a" * 300 + ".npz", "a" * 196 + ".npz"),
        ("", ""),
    ],
)
def test_cache_name(folder, path, name):
    url = f"https://host{path}"
    assert cache_path(url) == folder / f"{hashlib.sha256(url.encode()).hexdigest()[:8]}-{name}"


@pytest.mark.parametrize("writable", [True, False])
def test_default_cache_folder(tmp_path, monkeypatch, writable):
    monkeypatch.delenv("KERAS_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("os.access", lambda path, mode: writable)
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/scratch")

    home = tmp_path if writable else pathlib.Path("/scratch")
    assert cache_path("https://host/vit.npz").parent == home / ".keras" / "keras_vit"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://host/a/b.npz", "https://host/a/b.npz"),
        ("http://host:8000/b.npz?x=1", "http://host:8000/b.npz?x=1"),
        ("hf://timm/vit", "https://huggingface.co/timm/vit/resolve/main/model.safetensors"),
        ("hf://timm/vit/old/vit.bin", "https://huggingface.co/timm/vit/resolve/main/old/vit.bin"),
        ("gs://bucket/a/b.npz", "https://storage.googleapis.com/bucket/a/b.npz"),
        ("gs://bucket/a b#1.npz", "https://storage.googleapis.com/bucket/a%20b%231.npz"),
    ],
)
def test_resolve(url, address):
    assert resolve(url) == address


@pytest.mark.parametrize(
    "url", ["vit.npz", "ftp://host/vit.npz", "https://", "hf://owner", "hf:///name", "gs://bucket/"]
)
def test_unknown_url(url):
    with pytest.raises(ValueError, match=f"Received: url='{url}'"):
        fetch(url)


def test_packaged_file(tmp_path, monkeypatch):
    data = tmp_path / "keras_vit" / "data"
    data.mkdir(parents=True)
    (data / "tiny.npz").write_bytes(CONTENT)
    monkeypatch.setattr(importlib.resources, "files", lambda package: tmp_path / package)

    assert fetch("package:tiny.npz", SHA256) == data / "tiny.npz"
    with pytest.raises(FetchError, match=f"{SHA256}, not {OTHER_SHA256}"):
        fetch("package:tiny.npz", OTHER_SHA256)


def test_missing_packaged_file():
    with pytest.raises(FetchError, match=r"data/missing\.npz does not exist"):
        fetch("package:missing.npz")
