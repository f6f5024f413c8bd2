"""Control a real Chromium over a pipe (the DevTools protocol); only the browser has to be installed."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_SECONDS = 600.0
_STRICT = {"allowUnsafeEvalBlockedByCSP": False}
"""The page's policy applies to evaluated expressions, as to its own script."""


def program() -> str | None:
    """Return the path of this machine's browser; None if there is none."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Browser:
    """One page of a browser without a window. Errors of the page are kept in `errors`."""

    def __init__(self, width: int = 1440, height: int = 900) -> None:
        browser = program()
        assert browser is not None, "no Chromium: make browser"
        self._profile = tempfile.mkdtemp()
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
        options += [
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-extensions",
        ]

        def pipes() -> None:
            # Use other file descriptors first: either may have one of the numbers that the browser expects.
            ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_browser, from_browser)]
            for number, end in enumerate(ends, start=3):
                os.dup2(end, number)

        self._process = subprocess.Popen(
            [browser, *options, f"--user-data-dir={self._profile}", f"--window-size={width},{height}", "about:blank"],
            preexec_fn=pipes,  # noqa: PLW1509  # which only renames its own pipes
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the protocol and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._read, 1 << 20)
            assert part, "the browser is gone"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(str(details.get("exception", {}).get("description", details["text"])))
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        return message

    def open(self, path: Path, fragment: str = "") -> None:
        """Open a file and wait until it is painted."""
        self.errors.clear()
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=f"{path.resolve().as_uri()}{fragment}")
        self.until("document.getElementById('page')?.dataset.painted !== undefined")

    def go(self, fragment: str) -> None:
        """Go to another address of the page and wait until it is painted."""
        self.do("delete document.getElementById('page').dataset.painted")
        self.do(f"location.hash = {json.dumps(fragment)}")
        self.until("document.getElementById('page').dataset.painted !== undefined")

    def do(self, expression: str) -> Any:
        """Return the value of an expression in the page, after its promise resolves."""
        options = {"returnByValue": True, "awaitPromise": True, **_STRICT}
        answer = self.call("Runtime.evaluate", expression=expression, **options)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def texts(self, selector: str) -> list[str]:
        """Return the texts of all elements that a selector finds."""
        texts: list[str] = self.do(
            f"[...document.querySelectorAll({json.dumps(selector)})].map((each) => each.textContent)"
        )
        return texts

    def click(self, selector: str) -> None:
        """Click in the middle of an element."""
        place = self.do(
            f"(() => {{ const found = document.querySelector({json.dumps(selector)}); "
            "found.scrollIntoView({ block: 'center' }); const box = found.getBoundingClientRect(); "
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def press(self, key: str) -> None:
        """Press a key: a letter, or a name such as `Enter`."""
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        code = {"Enter": 13, "Escape": 27, "ArrowDown": 40}.get(key, 0)
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text, windowsVirtualKeyCode=code)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def write(self, text: str) -> None:
        """Type text into the focused element."""
        self.call("Input.insertText", text=text)

    def until(self, expression: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + _SECONDS
        while not self.do(f"Boolean({expression})"):
            assert time.monotonic() < end, f"never true: {expression}; errors: {self.errors}"
            time.sleep(0.01)

    def picture(self) -> bytes:
        """Return a screenshot as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def colour(self, x: float, y: float) -> tuple[int, int, int]:
        """Return the colour of a point of the window."""
        from io import BytesIO

        from PIL import Image

        left, top = self.do("[scrollX, scrollY]")  # a clip is measured from the top of the page
        clip = {"x": left + x, "y": top + y, "width": 1, "height": 1, "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", clip=clip)["data"]
        red, green, blue = Image.open(BytesIO(base64.b64decode(data))).convert("RGB").getpixel((0, 0))  # type: ignore[misc]
        return red, green, blue

    def close(self) -> None:
        """End the browser and all processes that it started."""
        self._session = None
        self.call("Browser.close")
        self._process.wait(_SECONDS)
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self._profile, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
