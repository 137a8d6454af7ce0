"""A headless Chromium, driven over a pipe by the DevTools protocol: no package is needed but the browser."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium")
_SECONDS = 60.0
# What the browser reads from and writes to with --remote-debugging-pipe.
_PIPES = (3, 4)
# Everything that a page must not do.
_REPORTS = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")


class Browser:
    """One page of a browser; ``complaints``: errors and console messages; ``requests``: what the page loaded."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write, self._buffer, self._number, self._session = read, write, b"", 0, ""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, path: Path) -> float:
        """Open a file, and return the milliseconds until it is loaded and its script has run."""
        self.complaints.clear()
        self.requests.clear()
        self._call("Page.navigate", url=path.as_uri())
        end = time.monotonic() + _SECONDS
        while self.run("document.readyState") != "complete" or self.run("location.href") == "about:blank":
            assert time.monotonic() < end, f"{path} was not loaded"
        self.settle()
        return float(self.run("performance.getEntriesByType('navigation')[0].loadEventEnd"))

    def run(self, expression: str) -> Any:
        """Evaluate JavaScript in the page."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def settle(self) -> None:
        """Wait until the page is drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def press(self, key: str, text: str = "") -> None:
        """Press and release a key."""
        codes = {"Tab": 9, "Enter": 13, "/": 191, " ": 32}
        fields: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": codes.get(key, 0)}
        typed = {"text": text} if text else {}
        self._call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **fields, **typed)
        self._call("Input.dispatchKeyEvent", type="keyUp", **fields)

    def type(self, text: str) -> None:
        """Type a text into the element that has the focus."""
        self._call("Input.insertText", text=text)
        self.settle()

    def resize(self, width: int, height: int = 900) -> None:
        """Set the size of the window."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.settle()

    def prefer(self, scheme: str) -> None:
        """Set the color scheme of the system: light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", features=features)
        self.settle()

    def screenshot(self, path: Path) -> None:
        """Keep an image of the whole page."""
        height = min(self.run("document.documentElement.scrollHeight"), 12_000)
        width = self.run("document.documentElement.clientWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        image = self._call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(image["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") in _REPORTS:
            self.complaints.append(json.dumps(event["params"])[:2000])
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(event["params"]["request"]["url"])

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], _SECONDS)
            assert ready, "the browser does not answer"
            chunk = os.read(self._read, 1 << 20)
            assert chunk, "the browser has ended"
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        decoded: dict[str, Any] = json.loads(message)
        return decoded


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """Start the browser with a profile in a folder, and end it."""
    assert PROGRAM is not None
    (to_read, to_write), (from_read, from_write) = os.pipe(), os.pipe()

    def connect() -> None:
        # Copies first, because one of the pipes may have one of these numbers.
        copies = [os.dup(to_read), os.dup(from_write)]
        for copy, number in zip([os.dup(copy) for copy in copies], _PIPES, strict=True):
            os.dup2(copy, number)

    command = [PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
    command += [f"--user-data-dir={folder}", "--hide-scrollbars", "--disable-dev-shm-usage"]
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=_PIPES, preexec_fn=connect
        )
        os.close(to_read)
        os.close(from_write)
        try:
            yield Browser(from_read, to_write)
        finally:
            os.close(to_write)  # the browser ends with its pipe
            os.close(from_read)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
