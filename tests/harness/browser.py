"""A headless Chromium for tests of pages: real clicks and keys over the DevTools protocol, on a pipe."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import pytest

__all__ = ["Browser", "needs_browser"]

CHROMIUM = shutil.which("chromium")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
TIMEOUT_S = 60.0
# `--remote-debugging-pipe` reads commands on descriptor 3 and writes answers on 4: no port that others could reach.
_START = "import os, sys; os.dup2({0}, 3); os.dup2({1}, 4); os.execv(sys.argv[1], sys.argv[1:])"
_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "Space": 32}


class Browser:
    """One tab. A context manager.

    Attributes:
        errors: Exceptions of the page and messages of its console at level error.
    """

    def __init__(self, *, width: int = 1280, height: int = 900, dark: bool = False, mobile: bool = False) -> None:
        self.errors: list[str] = []
        self._screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        self._dark = dark
        self._number = 0
        self._session = ""
        self._buffer = b""
        self._answers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        assert CHROMIUM is not None
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        commands_in, self._commands = os.pipe()
        self._output, answers_out = os.pipe()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                # Above 4, so that one copy does not overwrite the other.
                _START.format(commands_in, answers_out),
                CHROMIUM,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                "--no-first-run",
                "--disable-background-networking",
                f"--user-data-dir={self._profile.name}",
                "--remote-debugging-pipe",
                "about:blank",
            ],
            pass_fds=(commands_in, answers_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands_in)
        os.close(answers_out)
        targets = self._call("Target.getTargets")["targetInfos"]
        target = next(each["targetId"] for each in targets if each["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")
        self.resize(**self._screen)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if self._dark else "light"}]
        self._call("Emulation.setEmulatedMedia", features=scheme)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._commands)
        os.close(self._output)
        self._profile.cleanup()

    def resize(self, **screen: Any) -> None:
        """Change width, height, deviceScaleFactor or mobile."""
        self._screen |= screen
        self._call("Emulation.setDeviceMetricsOverride", **self._screen)

    def open(self, url: str) -> None:
        """Load a page."""
        self._call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """Return the value of an expression; a promise is waited for.

        Trusted Types of the page forbid eval to the page's own scripts, not to this protocol.
        """
        outcome = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in outcome:
            raise AssertionError(outcome["exceptionDetails"].get("exception", {}).get("description", outcome))
        return outcome["result"].get("value")

    def wait(self, script: str, seconds: float = TIMEOUT_S) -> Any:
        """Return the value of an expression as soon as it is true."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                value = self.run(f"(value => value instanceof Node ? true : value)({script})")
            except AssertionError:
                value = None  # an element that is not there yet
            if value:
                return value
            if time.monotonic() > deadline:
                text = self.run("document.body.innerText.slice(0, 2000)")
                raise AssertionError(f"{script} stayed false; {self.errors}; the page: {text}")
            time.sleep(0.05)

    def text(self, selector: str = "main") -> str:
        """Return the visible text of an element."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def click(self, selector: str) -> None:
        """Click the middle of an element with the mouse."""
        place = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'}); const r = e.getClientRects()[0];"
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def press(self, key: str) -> None:
        """Press a key by its name, such as Tab or Enter."""
        code = _KEYS[key]
        text = {"text": "\r"} if key == "Enter" else {"text": " "} if key == "Space" else {}
        name = " " if key == "Space" else key
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=name, code=key, windowsVirtualKeyCode=code, **text)

    def type(self, text: str) -> None:
        """Type into the focused element."""
        self._call("Input.insertText", text=text)

    def headers(self, values: dict[str, str]) -> None:
        """Send these headers with every request, such as a login."""
        self._call("Network.enable")
        self._call("Network.setExtraHTTPHeaders", headers=values)

    def photograph(self, target: Path, *, whole: bool = False) -> None:
        """Write a PNG of the window, or of the whole page."""
        shot = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        target.write_bytes(base64.b64decode(shot["data"]))

    def _call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT_S
        while self._number not in self._answers:
            self._read(deadline, method)
        answer = self._answers.pop(self._number)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return answer["result"]

    def _read(self, deadline: float, method: str) -> None:
        ready, _, _ = select.select([self._output], [], [], max(0.0, deadline - time.monotonic()))
        data = os.read(self._output, 1 << 20) if ready else b""
        if not data:
            raise AssertionError(f"chromium did not answer {method}")
        *messages, self._buffer = (self._buffer + data).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                self._note(message.get("method"), message.get("params", {}))

    def _note(self, method: str | None, parameters: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
        elif method == "Page.javascriptDialogOpening":
            self.errors.append(f"a dialog opened: {parameters['message']}")
