"""Headless Chromium over chromedriver's HTTP protocol, with nothing but the standard library."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--allow-file-access-from-files",
]
_ELEMENT_KEYS = {"reduced": {"name": "prefers-reduced-motion", "value": "reduce"}}


class Browser:
    """One browser session. ``script`` runs JavaScript in the page and returns its value."""

    def __init__(self, address: str, profile: Path, binary: str) -> None:
        self._address = address
        capabilities = {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": [*FLAGS, f"--user-data-dir={profile}"], "binary": binary},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        started = self._call("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self._session = f"/session/{started['sessionId']}"

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            self._address + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            # Straight to the local driver, whatever proxy the environment names.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(request, timeout=60) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self._call("POST", f"{self._session}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def size(self, width: int, height: int) -> None:
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def reduce_motion(self) -> None:
        self.devtools("Emulation.setEmulatedMedia", features=[_ELEMENT_KEYS["reduced"]])

    def open(self, page: Path) -> None:
        self._call("POST", f"{self._session}/url", {"url": page.resolve().as_uri()})

    def script(self, code: str, *arguments: Any) -> Any:
        return self._call("POST", f"{self._session}/execute/sync", {"script": code, "args": list(arguments)})

    def press(self, key: str, shift: bool = False) -> None:
        """A trusted key press, as from a keyboard."""
        pressed = {"key": key, "modifiers": 8 if shift else 0, "code": "Space" if key == " " else key}
        if key == " ":
            pressed["text"] = " "
        self.devtools("Input.dispatchKeyEvent", type="keyDown", **pressed)
        self.devtools("Input.dispatchKeyEvent", type="keyUp", **pressed)

    def seek(self, ms: float) -> None:
        """Pause, and move the scrub bar as a user does."""
        self.script(
            "const play = document.getElementById('play');"
            "if (play.textContent === 'Pause') play.click();"
            "const scrub = document.getElementById('scrub');"
            "scrub.value = arguments[0]; scrub.dispatchEvent(new Event('input'));",
            ms,
        )

    def text(self, selector: str) -> str:
        found = self.script("return document.querySelector(arguments[0]).innerText", selector)
        assert isinstance(found, str)
        return found

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("GET", f"{self._session}/screenshot")))

    def console(self) -> list[str]:
        """Every console message and page error since the last call."""
        entries = self._call("POST", f"{self._session}/se/log", {"type": "browser"})
        return [f"{entry['level']}: {entry['message']}" for entry in entries]

    def requested(self) -> list[str]:
        """Addresses that pages asked the network for since the last call."""
        entries = self._call("POST", f"{self._session}/se/log", {"type": "performance"})
        messages = [json.loads(entry["message"])["message"] for entry in entries]
        return [
            str(message["params"]["request"]["url"])
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]

    def close(self) -> None:
        self._call("DELETE", self._session)


def installed() -> tuple[str, str] | None:
    """Paths of chromedriver and of a Chromium, or None."""
    driver = shutil.which("chromedriver")
    binary = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    return (driver, binary) if driver and binary else None


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A started browser with a fresh profile; it and its driver have ended afterwards."""
    found = installed()
    assert found is not None, "install chromium and chromium-driver"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    driver = subprocess.Popen(
        [found[0], f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.05)
        opened = Browser(f"http://127.0.0.1:{port}", profile, found[1])
        try:
            yield opened
        finally:
            opened.close()
    finally:
        driver.terminate()
        driver.wait(timeout=20)
