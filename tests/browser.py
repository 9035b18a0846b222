"""A headless Chromium, spoken to over a pipe."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import time

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT = 60  # seconds


class Page:
    """One page in the browser. Source: the DevTools protocol."""

    def __init__(self, commands, answers):
        self._commands = commands
        self._answers = answers
        self._buffer = b""
        self._count = 0
        self._session = {}
        self.errors = []  # what the scripts of the page threw or failed to load
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Runtime", "Log", "Page"):
            self.send(f"{domain}.enable")

    def open(self, address, width=1200, height=900):
        """Loads a page in a window of a size in pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        self.send("Page.navigate", url=address)
        deadline = time.monotonic() + TIMEOUT
        ready = "document.readyState + location.protocol"
        while self.evaluate(ready) != "completefile:":
            assert time.monotonic() < deadline, "the page did not load"

    def evaluate(self, expression):
        """The value of a JavaScript expression."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, key, code):
        """Presses and releases a key."""
        for kind in ("rawKeyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code)

    def send(self, method, **parameters):
        """The result of a command."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters, **self._session}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.errors.append(answer["params"])

    def _receive(self):
        while b"\0" not in self._buffer:
            assert select.select([self._answers], [], [], TIMEOUT)[0], "the browser is silent"
            received = os.read(self._answers, 65536)
            assert received, "the browser has gone"
            self._buffer += received
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)


def executable():
    """Path of a browser. Without one the test is skipped, but on CI it fails."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        message = f"there is no browser on the PATH: {', '.join(NAMES)}"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    return found


@contextlib.contextmanager
def page(folder):
    """A `Page` of a browser that keeps its files in `folder`."""
    browser = executable()
    theirs_in, commands = os.pipe()
    answers, theirs_out = os.pipe()
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--remote-debugging-pipe",
        f"--user-data-dir={folder}",
    ]
    # The browser reads from descriptor 3 and writes to 4.
    script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", browser, *options],
        pass_fds=(theirs_in, theirs_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Page(commands, answers)
    finally:
        os.close(commands)
        process.terminate()
        process.wait(TIMEOUT)
        os.close(answers)
