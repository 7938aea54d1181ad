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

# An environment of its own: it serves the users' servers, too.
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
    """A hub with a folder of its own for all that it keeps; it has two users, and no server runs."""

    def __init__(self) -> None:
        command, python = (
            [str(node()), str(fetched(*PROXY))],
            environment(sys.executable, *PACKAGES),
        )
        self.folder = Path(tempfile.mkdtemp(prefix="stepper-hub-"))
        self.tokens: list[str] = []  # that its users have been given
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
        end = time.monotonic() + 60
        while time.monotonic() < end and self.process.poll() is None:
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
        """Where the user's server is, as one writes it in `kernels:`."""
        return f"{self.root}user/{USER}/"

    @property
    def definition(self) -> dict[str, Any]:
        """What stands in `kernels:` for it."""
        return {"jupyter": {"url": self.url, "token_env": VARIABLE}}

    def ask(self, path: str, method: str = "GET", body: Any = None) -> Any:
        """Ask its REST interface; return what it says."""
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
        """Have the user's server run (POST) or not (DELETE), as their page at the hub does; return when it is so."""
        end = time.monotonic() + 60
        while self._ready() is not (method == "POST"):
            assert time.monotonic() < end
            with contextlib.suppress(urllib.error.HTTPError):  # it is at it
                self.ask(f"users/{USER}/server", method)
            time.sleep(0.1)

    def _ready(self) -> bool | None:
        """Whether the user's server runs; None while it starts or stops."""
        there = self.ask(f"users/{USER}")["servers"].get("")
        return (
            False
            if not there
            else True
            if there["ready"] and not there["pending"]
            else None
        )

    def token(self, user: str = USER) -> tuple[str, str]:
        """Return the id and the text of a new token of the user's."""
        made = self.ask(f"users/{user}/tokens", "POST", {"note": "for stepper"})
        self.tokens.append(made["token"])
        return made["id"], made["token"]

    def kill_proxy(self) -> None:
        """Have it killed; none is there until `proxy_again`."""
        (proxy,) = (
            child
            for child in psutil.Process(self.process.pid).children()
            if "node" in child.name()
        )
        self.process.send_signal(signal.SIGSTOP)
        proxy.kill()

    def proxy_again(self) -> None:
        """Have the hub go on, which then starts another."""
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it, the servers of its users with it, and remove what it kept."""
        self.proxy_again()
        with contextlib.suppress(OSError, AssertionError):
            self.server("DELETE")
        children = (
            psutil.Process(self.process.pid).children(recursive=True)
            if self.process.poll() is None
            else []
        )
        stop_process(self.process)
        for child in children:  # its proxy, if it could not
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
