"""A headless Chromium, driven by the DevTools protocol over its websocket."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from tornado.websocket import WebSocketClientConnection, websocket_connect

from tests import apt_packages

# the limit of every wait, so that no test hangs
WAIT_SECONDS = float(os.environ.get("WAIT", "120"))
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--no-default-browser-check",
    "--mute-audio",
    "--disable-renderer-backgrounding",
    "--disable-backgrounding-occluded-windows",
    "--disable-background-timer-throttling",
    "--hide-scrollbars",
    "--remote-debugging-address=127.0.0.1",
    "--remote-debugging-port=0",
    "--enable-precise-memory-info",
)


class Browser:
    """One process of chromium."""

    def __init__(self) -> None:
        program = apt_packages.find_or_unpack_program(
            "chromium", "chromium", "fonts-dejavu-core", "ca-certificates"
        )
        self.folder = tempfile.mkdtemp(prefix="chromium")
        self.log_file = open(os.path.join(self.folder, "said"), "wb")  # noqa: SIM115
        environ = {
            **os.environ,
            "HOME": self.folder,
            "XDG_CONFIG_HOME": self.folder,
            "XDG_CACHE_HOME": self.folder,
        }
        self.process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={self.folder}/profile", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.log_file,
            env=environ,
        )
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.links: list[Link] = []
        path = Path(self.folder, "profile", "DevToolsActivePort")
        wait_until(
            lambda: path.exists() and path.read_text().count("\n"),
            lambda: Path(self.log_file.name).read_text()[-2000:],
        )
        self.port = int(path.read_text().split("\n")[0])

    def page(self, context: str = "") -> Page:
        """Open a page in a new context (with its own cookies) or in an existing one."""
        link = Link(self, self._request_json("/json/version")["webSocketDebuggerUrl"])
        context = (
            context or link.send("Target.createBrowserContext")["browserContextId"]
        )
        target = link.send(
            "Target.createTarget", url="about:blank", browserContextId=context
        )["targetId"]
        link.close()
        return Page(self, f"ws://127.0.0.1:{self.port}/devtools/page/{target}", context)

    def _request_json(self, path: str) -> Any:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.port}{path}", timeout=WAIT_SECONDS
        ) as response:
            return json.load(response)

    def close(self) -> None:
        for link in self.links:
            link.close()
        for process in [
            *psutil.Process(self.process.pid).children(recursive=True),
            self.process,
        ]:
            process.kill()
        self.process.wait()
        self.log_file.close()
        # the connections are closed
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.3), self.loop).result(
            WAIT_SECONDS
        )
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(WAIT_SECONDS)
        self.loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Link:
    """One connection of the protocol."""

    def __init__(self, browser: Browser, address: str) -> None:
        self.browser, self.numbers = browser, itertools.count(1)
        browser.links.append(self)
        self.responses: dict[int, Any] = {}
        self.events: list[dict[str, Any]] = []
        self.came = threading.Condition()

        async def connected() -> WebSocketClientConnection:
            return await websocket_connect(
                address, max_message_size=1 << 28, on_message_callback=self._take
            )

        future = asyncio.run_coroutine_threadsafe(connected(), browser.loop)
        self.link: WebSocketClientConnection = future.result(WAIT_SECONDS)

    def _take(self, message: Any) -> None:
        if message is None:
            return
        data = json.loads(message)
        with self.came:
            if "id" in data:
                self.responses[data["id"]] = data
            else:
                self.events.append(data)
            self.came.notify_all()

    def send(self, method: str, **values: Any) -> Any:
        number = next(self.numbers)
        message = json.dumps({"id": number, "method": method, "params": values})
        self.browser.loop.call_soon_threadsafe(self.link.write_message, message)
        with self.came:
            assert self.came.wait_for(lambda: number in self.responses, WAIT_SECONDS), (
                f"no answer to {method}"
            )
            response = self.responses.pop(number)
        assert "error" not in response, (method, response)
        return response["result"]

    def close(self) -> None:
        self.browser.loop.call_soon_threadsafe(self.link.close)


class Page(Link):
    """One page."""

    def __init__(self, browser: Browser, address: str, context: str) -> None:
        super().__init__(browser, address)
        self.context = context
        for domain in ("Page", "Runtime", "Network", "Log", "Performance"):
            self.send(f"{domain}.enable")

    def go(self, address: str) -> None:
        self.send("Page.navigate", url=address)

    def js(self, expression: str) -> Any:
        """Return the value of an expression; a promise is awaited."""
        response = self.send(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in response, (
            expression,
            response["exceptionDetails"],
        )
        return response["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until the value of an expression is true, and return it."""
        value = None

        def check() -> Any:
            nonlocal value
            try:
                value = self.js(
                    f"(found => found instanceof Node ? true : found)({expression})"
                )
            except AssertionError as error:  # the page is still loading
                value, self.why = None, error
            return value

        wait_until(
            check, lambda: f"{expression}\n{self.text()[:3000]}\n{self.errors()}"
        )
        return value

    def text(self) -> str:
        return str(self.js("document.body ? document.body.innerText : ''"))

    def size(self, width: int, height: int = 900, phone: bool = False) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )

    def prefer(self, **features: str) -> None:
        """Emulate media features, for example `prefers_color_scheme="dark"`."""
        named = [
            {"name": name.replace("_", "-"), "value": value}
            for name, value in features.items()
        ]
        self.send("Emulation.setEmulatedMedia", features=named)

    def key(self, name: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            extra = {"text": "\r"} if name == "Enter" and kind == "keyDown" else {}
            self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=name,
                code=name,
                windowsVirtualKeyCode=code,
                **extra,
            )

    def errors(self) -> list[str]:
        """Return the page's errors: exceptions, failed requests, violations of its policy."""
        results = []
        for event in list(self.events):
            if event["method"] == "Runtime.exceptionThrown":
                results.append(json.dumps(event["params"]["exceptionDetails"])[:600])
            if (
                event["method"] == "Log.entryAdded"
                and event["params"]["entry"]["level"] == "error"
            ):
                results.append(json.dumps(event["params"]["entry"])[:600])
        return results

    def requests(self) -> set[str]:
        """Return the requested URLs."""
        requests = [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]
        return {re.sub(r"\?.*", "", url) for url in requests}

    def click(self, selector: str) -> None:
        """Click with a mouse event."""
        at = self.js(
            f"(each => {{ const at = each.getBoundingClientRect(); return [at.x + at.width / 2, at.y + at.height / 2] }})(document.querySelector({selector!r}))"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send(
                "Input.dispatchMouseEvent",
                type=kind,
                x=at[0],
                y=at[1],
                button="left",
                clickCount=1,
            )

    def memory(self) -> int:
        """Return the private memory of the largest renderer process, in bytes."""
        results = []
        for process in psutil.Process(self.browser.process.pid).children(
            recursive=True
        ):
            with contextlib.suppress(psutil.Error):
                if "--type=renderer" in process.cmdline():
                    results.append(process.memory_full_info().uss)
        return max(results)

    def picture(self, path: Path, full_page: bool = False) -> None:
        response = self.send(
            "Page.captureScreenshot", format="png", captureBeyondViewport=full_page
        )
        path.write_bytes(base64.b64decode(response["data"]))


def wait_until(
    condition: Callable[[], Any], why: Callable[[], str] = lambda: ""
) -> None:
    """Wait until a condition is true."""
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, why()
        time.sleep(0.03)
