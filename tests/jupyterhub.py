"""A real JupyterHub on loopback with its npm proxy, one user and the user's server.

hub = Hub()
hub.server("POST")                  # starts the user's server; "DELETE" stops it
name, token = hub.token()           # a token of the user, as from the hub's token page
hub.close()
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil

from tests.environments import environment
from tests.jupyterserver import SERVERS, VARIABLE, free_port, stop_process
from tests.npm_packages import fetched, node

# The environment of the hub and of the users' servers.
PACKAGES = ("jupyterhub>=6,<7", *SERVERS[:1], *SERVERS[2:])
PROXY = (
    "proxy",
    "configurable-http-proxy",
    "5.3.0",
    "configurable-http-proxy/bin/configurable-http-proxy",
)
USER, OTHER = "ada", "bob"
ADMIN = "token-of-the-tests-own-service-7c1e"
CONFIG = """
c = get_config()
c.JupyterHub.bind_url = "http://127.0.0.1:{port}/"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub}"
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{api}"
c.ConfigurableHTTPProxy.command = {command!r}
c.JupyterHub.proxy_check_interval = 1  # after which it starts one that is gone
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = {folder!r} + "/home-{{username}}"
c.Spawner.cmd = [{python!r}, "-m", "jupyterhub.singleuser"]
c.Spawner.args = ["--allow-root", "--HubOAuth.cache_max_age=1"]  # for so long a server takes a token unasked: else 300
c.JupyterHub.db_url = "sqlite://"
c.JupyterHub.cookie_secret_file = {folder!r} + "/cookie"
c.JupyterHub.services = [{{"name": "tests", "api_token": {admin!r}}}]
c.JupyterHub.load_roles = [{{"name": "tests", "services": ["tests"], "scopes": ["admin:users", "admin:servers", "tokens"]}}]
"""


class Hub:
    """A hub with two users, whose servers are not running.

    All its files are in one folder.
    """

    def __init__(self) -> None:
        command, python = (
            [str(node()), str(fetched(*PROXY))],
            environment(sys.executable, *PACKAGES),
        )
        self.folder = Path(tempfile.mkdtemp(prefix="stepper-hub-"))
        self.tokens: list[str] = []  # issued to its users
        self.port = free_port()
        self.root = f"http://127.0.0.1:{self.port}/"
        (self.folder / "config.py").write_text(
            CONFIG.format(
                port=self.port,
                hub=free_port(),
                api=free_port(),
                command=command,
                python=python,
                folder=str(self.folder),
                admin=ADMIN,
            )
        )
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [python, "-m", "jupyterhub", "-f", "config.py"],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError):
                for user in (USER, OTHER):
                    self.ask(f"users/{user}", "POST")
                return
            time.sleep(0.1)
        self.close()
        raise AssertionError(
            "the hub did not come up:\n" + (self.folder / "log").read_text()[-3000:]
        )

    @property
    def url(self) -> str:
        """The URL of the user's server for `kernels:`."""
        return f"{self.root}user/{USER}/"

    @property
    def definition(self) -> dict[str, Any]:
        """The backend definition for `kernels:`."""
        return {"jupyter": {"url": self.url, "token_env": VARIABLE}}

    def ask(self, path: str, method: str = "GET", body: Any = None) -> Any:
        """Send a request to the hub's REST API; return the parsed response."""
        data = json.dumps(body or {}).encode() if method == "POST" else None
        request = urllib.request.Request(
            f"{self.root}hub/api/{path}",
            data,
            {"Authorization": f"token {ADMIN}"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            text = response.read()
        return json.loads(text) if text else None

    def server(self, method: str) -> None:
        """Start (POST) or stop (DELETE) the user's server and wait for it."""
        deadline = time.monotonic() + 60
        while self._ready() is not (method == "POST"):
            assert time.monotonic() < deadline
            # the server is starting or stopping
            with contextlib.suppress(urllib.error.HTTPError):
                self.ask(f"users/{USER}/server", method)
            time.sleep(0.1)

    def _ready(self) -> bool | None:
        """Whether the user's server is running; None while it starts or stops."""
        server = self.ask(f"users/{USER}")["servers"].get("")
        return (
            False
            if not server
            else True
            if server["ready"] and not server["pending"]
            else None
        )

    def token(self, user: str = USER) -> tuple[str, str]:
        """Return the id and the text of a new token of the user."""
        response = self.ask(f"users/{user}/tokens", "POST", {"note": "for stepper"})
        self.tokens.append(response["token"])
        return response["id"], response["token"]

    def kill_proxy(self) -> None:
        """Kill the proxy; the hub starts no other one until `proxy_again`."""
        (proxy,) = (
            child
            for child in psutil.Process(self.process.pid).children()
            if "node" in child.name()
        )
        self.process.send_signal(signal.SIGSTOP)
        proxy.kill()

    def proxy_again(self) -> None:
        """Continue the hub, which then starts a new proxy."""
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Stop the hub, its proxy and its users' servers, and remove its files."""
        self.proxy_again()
        with contextlib.suppress(OSError, AssertionError):
            self.server("DELETE")
        children = (
            psutil.Process(self.process.pid).children(recursive=True)
            if self.process.poll() is None
            else []
        )
        stop_process(self.process)
        for child in children:  # its proxy, if it is still running
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
