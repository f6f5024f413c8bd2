"""A browser without a window, driven through selenium and Chromium's driver."""

from __future__ import annotations

import base64
import contextlib
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl_core.exceptions import AgentRLError, MissingDependencyError

_GUARD = Path(__file__).with_name("browser_launcher.py")
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-extensions",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # pages come from files
    "--remote-debugging-pipe",  # it ends with its driver
)
_WINDOW = "--window-size=500,500"
_CLOSE_SECONDS = 20.0


class Browser:
    """A headless Chromium with one page. Every call has a time limit; after a failed call, the browser is ended.

    The browser also ends with this process, even if that is killed.

    Args:
        seconds: time limit of a call.

    Attributes:
        alive: whether the browser can be used.
        untouched: address of the page, if neither mouse nor keys were used since it was loaded.

    Raises:
        MissingDependencyError: selenium, Chromium or its driver is not installed.
        AgentRLError: the browser does not start.
    """

    def __init__(self, seconds: float = 30.0) -> None:
        self.alive = False
        self.untouched: str | None = None
        program, driver = _installed()
        try:
            from selenium import webdriver
            from selenium.webdriver.chromium.remote_connection import ChromiumRemoteConnection
            from selenium.webdriver.remote.client_config import ClientConfig
        except ImportError as error:
            raise MissingDependencyError(
                "MiniWoB needs the package selenium: pip install 'agentrl-core[miniwob]'"
            ) from error
        self._guard = subprocess.Popen(  # noqa: S603 -- this interpreter, with the driver that was found
            [sys.executable, "-I", "-S", str(_GUARD), driver, "--port=0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.alive = True
        with self._bounded():
            address = f"http://127.0.0.1:{self._port(seconds)}"
            options = webdriver.ChromeOptions()
            options.binary_location = program
            for option in (*_OPTIONS, _WINDOW):
                options.add_argument(option)
            # The driver's own limits come first.
            config = ClientConfig(
                remote_server_addr=address,
                timeout=int(seconds) + 5,
                init_args_for_pool_manager={"init_args_for_pool_manager": {"retries": False}},
            )
            connection = ChromiumRemoteConnection(
                remote_server_addr=address, vendor_prefix="goog", browser_name="chrome", client_config=config
            )
            self._driver = webdriver.Remote(command_executor=connection, options=options)
            self._driver.set_page_load_timeout(seconds)
            self._driver.set_script_timeout(seconds)

    def open(self, address: str) -> None:
        """Load a page, unless it is already loaded and nothing has been clicked, scrolled or typed since."""
        if self.untouched == address:
            return
        with self._bounded():
            self._driver.get(address)
            self.untouched = address

    def run(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript in the page, and return its value."""
        with self._bounded():
            return self._driver.execute_script(script, *arguments)

    def screenshot(self, width: int, height: int) -> bytes:
        """Return the upper left part of the page as a PNG."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        command = {"cmd": "Page.captureScreenshot", "params": {"format": "png", "clip": clip}}
        with self._bounded():
            return base64.b64decode(self._driver.execute("executeCdpCommand", command)["value"]["data"])

    def click(self, x: float, y: float) -> None:
        """Click a point of the window with the mouse."""
        from selenium.webdriver.common.actions.action_builder import ActionBuilder

        self.untouched = None
        with self._bounded():
            actions: Any = ActionBuilder(self._driver, duration=0)
            actions.pointer_action.move_to_location(round(x), round(y)).pointer_down().pointer_up()
            actions.perform()

    def move(self, x: float, y: float) -> None:
        """Move the mouse to a point of the window."""
        from selenium.webdriver.common.actions.action_builder import ActionBuilder

        with self._bounded():
            actions: Any = ActionBuilder(self._driver, duration=0)
            actions.pointer_action.move_to_location(round(x), round(y))
            actions.perform()

    def scroll(self, x: float, y: float, rows: float) -> None:
        """Turn the mouse wheel over a point, by a number of pixels; positive is down."""
        from selenium.webdriver.common.actions.action_builder import ActionBuilder

        self.untouched = None
        with self._bounded():
            actions: Any = ActionBuilder(self._driver, duration=0)
            actions.wheel_action.scroll(x=round(x), y=round(y), delta_y=round(rows))
            actions.perform()

    def press(self, text: str, held: tuple[str, ...] = ()) -> None:
        """Type characters with the keyboard while some keys are held."""
        from selenium.webdriver.common.action_chains import ActionChains

        self.untouched = None
        with self._bounded():
            chain = ActionChains(self._driver, duration=0)
            for key in held:
                chain.key_down(key)
            chain.send_keys(text)
            for key in reversed(held):
                chain.key_up(key)
            chain.perform()

    def close(self) -> None:
        """End the browser and all its processes; a second time does nothing. It may be called from any thread."""
        self.alive = False
        for pipe in (self._guard.stdin, self._guard.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._guard.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()

    def _port(self, seconds: float) -> int:
        """Wait for the driver to start, and return its port."""
        output = self._guard.stdout
        if output is not None:
            end, line = time.monotonic() + seconds, b""
            while select.select([output], [], [], max(end - time.monotonic(), 0.0))[0]:
                part = os.read(output.fileno(), 64)
                line += part
                if line.endswith(b"\n"):
                    return int(line)
                if not part:
                    break
        raise AgentRLError(
            f"MiniWoB: chromedriver does not start within {seconds:g} seconds; run `chromedriver --version` to see why"
        )

    @contextlib.contextmanager
    def _bounded(self) -> Iterator[None]:
        """End the browser if a call inside the block fails, since its page is then in an unknown state."""
        from selenium.common.exceptions import WebDriverException
        from urllib3.exceptions import HTTPError

        if not self.alive:
            raise AgentRLError("MiniWoB: the browser of this episode has ended; reset the task for a new one")
        try:
            yield
        except (WebDriverException, HTTPError, OSError, AgentRLError) as error:
            self.close()
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise AgentRLError(
                f"MiniWoB: the browser failed or took too long ({reason}), and was ended; reset the task for a new one"
            ) from error
        except BaseException:
            self.close()
            raise


def _installed() -> tuple[str, str]:
    program = next((found for name in _PROGRAMS if (found := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        missing = "chromium" if program is None else "chromedriver"
        raise MissingDependencyError(
            f"MiniWoB needs Chromium and its driver, but {missing} is not on the PATH; install both: "
            "apt-get install chromium chromium-driver"
        )
    return program, driver
