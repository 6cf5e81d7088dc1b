"""Headless Chromium, driven as a person would: pages are opened, fields filled, buttons pressed.

Not a double of anything: the real browser with its own rules on policies, cookies and origins.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from websockets.sync.client import connect

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


class Chromium:
    """One tab. `problems` are what its console said and what its policy blocked."""

    def __init__(self, folder: Path, *, width: int = 1280) -> None:
        assert CHROMIUM is not None
        self.problems: list[str] = []
        self._number = 0
        self._process = subprocess.Popen(
            [
                CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--disable-sync",
                "--hide-scrollbars", f"--window-size={width},900", "--remote-debugging-port=0",
                f"--user-data-dir={folder / 'profile'}", "about:blank",
            ],
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert self._process.stderr is not None
        address = ""
        for line in self._process.stderr:
            found = re.search(r"listening on (ws://\S+)", line)
            if found:
                address = found[1]
                break
        self._stack = contextlib.ExitStack()
        self._socket = self._stack.enter_context(connect(address, max_size=None, compression=None))
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the browser's own protocol, and its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        while True:
            said = json.loads(self._socket.recv(timeout=60))
            if said.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
                self.problems.append(json.dumps(said["params"])[:500])
            if said.get("id") == self._number:
                assert "error" not in said, said
                result: dict[str, Any] = said["result"]
                return result

    def script(self, text: str) -> Any:
        """The value of an expression in the page; the page's policy does not bind its tester."""
        found = self.call("Runtime.evaluate", expression=text, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def open(self, url: str) -> str:
        """Goes there and returns the page's text."""
        self.call("Page.navigate", url=url)
        return self.wait(lambda: self.script("document.readyState") == "complete")

    def press(self, selector: str) -> str:
        """Clicks what the selector names, and returns the text of the page that comes of it."""
        self.script("window.__before = true")
        self.script(f"document.querySelector({json.dumps(selector)}).click()")
        return self.wait(
            lambda: self.script("!window.__before && document.readyState == 'complete'")
        )

    def wait(self, until: Callable[[], Any]) -> str:
        """Waits for it, at most 30 s; the page's text then."""
        end = time.monotonic() + 30
        while not until():
            assert time.monotonic() < end, "the page did not come"
            time.sleep(0.03)
        return self.text()

    def text(self) -> str:
        """What the page says now; nothing while another one is on its way."""
        said: str = self.script("document.body ? document.body.innerText : ''")
        return said

    def key(self, name: str, code: int) -> None:
        """One key, down and up."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, windowsVirtualKeyCode=code)

    def type(self, text: str) -> None:
        """Text into what has the focus."""
        self.call("Input.insertText", text=text)

    def shot(self, path: Path) -> Path:
        """The whole page as a picture."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))
        return path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
        self._process.terminate()
        self._process.wait(20)
        assert self._process.stderr is not None
        self._process.stderr.close()
