"""Published weight files: downloaded once into the Keras cache, verified, never half a file."""

import hashlib
import http.client
import importlib.resources
import logging
import os
import pathlib
import re
import secrets
import tempfile
import urllib.error
import urllib.request
from urllib.parse import quote, unquote, urlsplit

import keras

logger = logging.getLogger("keras_vit")

# Error pages, and what a Git checkout without LFS has in place of a large file.
_TEXT_STARTS = (b"<!doctype", b"<html", b"<?xml", b"version https://git-lfs")


class FetchError(OSError):
    """A weight file cannot be had; the message says why and what to do."""


def fetch(url: str, sha256: str | None = None) -> pathlib.Path:
    """Returns the local path of a published weight file, downloaded at the first call.

    A file in the cache, downloaded or put there by hand, is used without network. The environment
    variable `KERAS_VIT_OFFLINE=1` forbids every download.

    Args:
        url: `https://...`, `http://...`, `hf://owner/name[/file]`, `gs://bucket/file`, or
            `package:NAME` for a file shipped inside this package.
        sha256: expected SHA-256 of the file in hexadecimal; None when it is not published.

    Raises:
        ValueError: `url` has none of these forms.
        FetchError: the file cannot be had, has another SHA-256, or is empty or a text.
    """
    if url.startswith("package:"):
        return _packaged(url, sha256)
    address, target = resolve(url), cache_path(url)
    try:
        complaint = _complaint(target, sha256) if target.exists() else "it is not in the cache"
        if complaint is None:
            return target
        if os.environ.get("KERAS_VIT_OFFLINE", "0") not in ("", "0"):
            raise FetchError(f"{complaint}, and KERAS_VIT_OFFLINE forbids the download")
        if target.exists():
            logger.warning("The cached %s is downloaded again: %s.", target, complaint)
        _download(address, target, sha256)
    except (OSError, http.client.HTTPException, ValueError) as error:
        expected = f" (SHA-256 {sha256})" if sha256 else ""
        raise FetchError(
            f"Cannot fetch {address}: {error}. Received: url={url!r}. "
            f"Put the file{expected} by hand at {target} and call again: no network is needed then."
        ) from error
    return target


def resolve(url: str) -> str:
    """Maps `hf://owner/name[/file]` and `gs://bucket/file` to https; keeps http(s) URLs."""
    if match := re.fullmatch(r"hf://([^/]+/[^/]+)(?:/(.+))?", url):
        repository, file = match[1], match[2] or "model.safetensors"
        return f"https://huggingface.co/{repository}/resolve/main/{quote(file)}"
    if match := re.fullmatch(r"gs://([^/]+/.+)", url):
        return f"https://storage.googleapis.com/{quote(match[1])}"
    if not re.match(r"https?://[^/]", url):
        raise ValueError(
            f"Not the URL of a weight file. Received: url={url!r}. Use https://..., http://..., "
            "hf://owner/name[/file], gs://bucket/file or package:NAME."
        )
    return url


def cache_path(url: str) -> pathlib.Path:
    """Returns the path of the file of `url` in the cache, whether it is there or not.

    The folder is `$KERAS_HOME/keras_vit`, by default `~/.keras/keras_vit`, or, as in Keras, one in
    the temporary folder when the home cannot be written.
    """
    user = os.path.expanduser("~")
    base = user if os.access(user, os.W_OK) else tempfile.gettempdir()
    home = os.environ.get("KERAS_HOME") or os.path.join(base, ".keras")
    address = resolve(url)
    digits = hashlib.sha256(address.encode()).hexdigest()[:8]
    name = re.sub(r"[^a-zA-Z0-9_.-]", "_", unquote(urlsplit(address).path.rpartition("/")[2]))
    return pathlib.Path(home).expanduser() / "keras_vit" / f"{digits}-{name[-200:]}"


def _packaged(url, sha256):
    folder = importlib.resources.files("keras_vit") / "data"
    path = pathlib.Path(str(folder / url.removeprefix("package:")))
    complaint = _complaint(path, sha256) if path.is_file() else f"{path} does not exist"
    if complaint:
        raise FetchError(f"{complaint}. Received: url={url!r}. Reinstall keras-vit-zoo.")
    return path


def _complaint(path, sha256):
    """Says why the file cannot be the expected weights; None when nothing speaks against it."""
    with open(path, "rb") as file:
        start = file.read(80)
        found = hashlib.sha256(start)
        while sha256 and (chunk := file.read(2**20)):
            found.update(chunk)
    if not start:
        return "the file is empty"
    if start.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(_TEXT_STARTS):
        return f"the file is text, not weights: it begins {start.decode(errors='replace')!r}"
    if sha256 and found.hexdigest() != sha256.lower():
        return f"the file has SHA-256 {found.hexdigest()}, not {sha256}"
    return None


def _download(address, target, sha256):
    # keras.utils.get_file writes under the final name, keeps a file of the wrong hash, has no
    # timeout and prints.
    logger.info("Downloading %s to %s", address, target)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
    request = urllib.request.Request(address, headers={"User-Agent": "keras_vit"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response, open(partial, "xb") as file:
            length = response.headers.get("Content-Length")
            total = int(length) if length else None
            progress = keras.utils.Progbar(total, interval=1, unit_name="byte")
            while chunk := response.read(2**20):
                file.write(chunk)
                progress.update(file.tell(), finalize=False)
            if total not in (None, file.tell()):
                raise FetchError(f"the connection was cut after {file.tell()} of {total} bytes")
            progress.update(file.tell(), finalize=True)
        if complaint := _complaint(partial, sha256):
            raise FetchError(complaint)
        os.replace(partial, target)
    except urllib.error.HTTPError as error:
        error.close()
        raise
    finally:
        partial.unlink(missing_ok=True)
