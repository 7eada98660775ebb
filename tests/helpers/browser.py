"""A headless Chromium that tests control over its debugging pipe.

Tests see what a page logs, which requests it makes, and what it looks like.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Self

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--remote-debugging-pipe",
    "--window-size=1500,900",
)
READS, WRITES = 3, 4
"""File descriptors at which Chromium reads commands and writes answers; a zero byte ends each."""
LONGEST_S = 120.0


class Browser:
    """One page of a browser; use it in a ``with`` statement.

    ``problems`` are the errors and warnings in the page's console, ``asked`` its requests.
    """

    def __init__(self, profile: Path) -> None:
        self.problems: list[str] = []
        self.asked: list[str] = []
        self._profile, self._number, self._left = profile, 0, b""
        self._events: list[str] = []
        self._session: str | None = None

    def __enter__(self) -> Self:
        # Chromium's internal pages, such as its viewer of traces, are off by default.
        self._profile.mkdir(parents=True, exist_ok=True)
        (self._profile / "Local State").write_text(
            json.dumps({"internal_only_uis_enabled": True}), encoding="utf-8"
        )
        theirs, self._to = os.pipe()
        self._from, ours = os.pipe()
        # A shell connects the pipes to the descriptors that Chromium expects.
        command = f'exec "$@" {READS}<&{theirs} {WRITES}>&{ours}'
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                command,
                "bash",
                str(CHROMIUM),
                *FLAGS,
                f"--user-data-dir={self._profile}",
            ],
            pass_fds=(theirs, ours),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        os.close(ours)
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.command("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.command(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._session = None
        self.command("Browser.close")
        self._process.wait(LONGEST_S)
        os.close(self._to)
        os.close(self._from)

    def open(self, url: str) -> None:
        """Go to a page and wait until it is loaded."""
        self._events.clear()
        self.command("Page.navigate", url=url)
        while "Page.loadEventFired" not in self._events:
            self._receive()

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page; a promise is awaited.

        Raise RuntimeError if the expression fails.
        """
        found = self.command(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(json.dumps(found["exceptionDetails"])[:2000])
        return found["result"].get("value")

    def screenshot(self, place: Path) -> None:
        """Save the page as it looks, as a PNG."""
        place.write_bytes(base64.b64decode(self.command("Page.captureScreenshot")["data"]))

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol and return its answer.

        Raise RuntimeError if it is refused.
        """
        self._number += 1
        number = self._number
        session = {"sessionId": self._session} if self._session else {}
        message = (
            json.dumps({"id": number, "method": method, "params": parameters, **session}).encode()
            + b"\0"
        )
        while message:
            message = message[os.write(self._to, message) :]
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def _receive(self) -> dict[str, Any]:
        """The next message; problems and requests in it are noted."""
        until = time.monotonic() + LONGEST_S
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._from], [], [], max(0.0, until - time.monotonic()))
            found = os.read(self._from, 1 << 20) if ready else b""
            if not found:
                raise RuntimeError(f"Chromium said nothing for {LONGEST_S:.0f} s, or has ended")
            self._left += found
        text, _, self._left = self._left.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        method, told = message.get("method", ""), message.get("params", {})
        self._events.append(method)
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in (
            "error",
            "warning",
            "assert",
        ):
            self.problems.append(json.dumps(told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.problems.append(told["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.asked.append(told["request"]["url"])
        return message
