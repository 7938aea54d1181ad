"""Real Jupyter Servers, Kernel Gateways and Enterprise Gateways on loopback.

The connection to a server can be cut.

served = Served("server")           # or "gateway", "enterprise"; each has its environment
served.definition(kernel="house")   # its entry in `kernels:`; VARIABLE has the token
served.close()
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from stepper.kernels import backend_registry
from stepper.policy.configuration import kernel_config
from tests.environments import environment

TOKEN, VARIABLE = "s3cret-of-the-tests-4b1d", "TEST_HUB_TOKEN"
SERVERS = ("jupyter_server>=2.10,<3", "jupyter_kernel_gateway>=3,<4", "ipykernel>=7,<8")
# An environment of its own: it wants an old jupyter_client, and beside the others pip takes an old one of it.
ENTERPRISE = ("jupyter_enterprise_gateway>=3.3,<4",)


class Kind(NamedTuple):
    """What is started: its packages, its module, its application's name, its flags."""

    packages: tuple[str, ...]
    module: str
    app: str
    token: str  # the variable that holds it: no process list shows it
    flags: tuple[str, ...]


KINDS = {
    "server": Kind(
        SERVERS,
        "jupyter_server",
        "ServerApp",
        "JUPYTER_TOKEN",
        ("--no-browser", "--allow-root"),
    ),
    "gateway": Kind(
        SERVERS,
        "kernel_gateway",
        "KernelGatewayApp",
        "KG_AUTH_TOKEN",
        ("--JupyterWebsocketPersonality.list_kernels=True",),
    ),
    "enterprise": Kind(
        ENTERPRISE,
        "enterprise_gateway",
        "EnterpriseGatewayApp",
        "EG_AUTH_TOKEN",
        ("--EnterpriseGatewayApp.list_kernels=True",),
    ),
}


def free_port() -> int:
    """A port of loopback that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def stop_process(process: subprocess.Popen[bytes]) -> None:
    """End a server, by force where it does not by itself."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Served:
    """A server of one kind, with a folder of its own for all that it keeps. `certificate` is its file and its key's."""

    def __init__(
        self,
        kind: str = "server",
        *flags: str,
        certificate: tuple[str, str] | None = None,
        authority: str = "",
        folder: Path | None = None,
    ) -> None:
        self.folder = folder or Path(tempfile.mkdtemp(prefix="stepper-jupyter-"))
        self.kind, self.flags, self.certificate = kind, flags, certificate
        self.context = (
            ssl.create_default_context(cafile=authority) if authority else None
        )
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        if kind == "enterprise":  # it brings no kernel
            self.kernelspec("python3", environment(sys.executable, *SERVERS))
        self.start()

    @property
    def url(self) -> str:
        """Where it is, as one writes it in `kernels:`."""
        return f"http{'s' if self.certificate else ''}://127.0.0.1:{self.port}/"

    @property
    def python(self) -> str:
        """The interpreter of its environment; but for an Enterprise Gateway's, what its kernelspec `python3` runs, too."""
        return environment(sys.executable, *KINDS[self.kind].packages)

    def start(self) -> None:
        """Start it, on the port that it had before; return when it answers."""
        _, module, app, variable, usual = KINDS[self.kind]
        flags = [
            f"--{app}.port={self.port}",
            f"--{app}.ip=127.0.0.1",
            f"--{app}.port_retries=0",
            *usual,
            *self.flags,
        ]
        if self.certificate:
            flags += [
                f"--{app}.certfile={self.certificate[0]}",
                f"--{app}.keyfile={self.certificate[1]}",
            ]
        home = {
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "run",
            "JUPYTER_CONFIG_DIR": "config",
        }
        environ = {
            **os.environ,
            **{name: str(self.folder / part) for name, part in home.items()},
            variable: TOKEN,
        }
        environ |= {"IPYTHONDIR": str(self.folder / "ipython"), "PYTHONUNBUFFERED": "1"}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.python, "-m", module, *flags],
                cwd=self.folder,
                env=environ,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        end = time.monotonic() + 60
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError):
                self.ask("kernels")
                return
            time.sleep(0.05)
        self.stop()
        raise AssertionError(
            f"{module} did not come up:\n" + (self.folder / "log").read_text()[-3000:]
        )

    def ask(
        self, path: str, method: str = "GET", body: Any = None, token: str = TOKEN
    ) -> Any:
        """Ask its REST interface; return what it says."""
        data = json.dumps(body).encode() if body is not None else None
        headers = {
            "Authorization": f"token {token}",
            "Content-Type": "application/json",
        }
        request = urllib.request.Request(
            f"{self.url}api/{path}", data, headers, method=method
        )
        with urllib.request.urlopen(
            request, timeout=60, context=self.context
        ) as response:
            text = response.read()
        return json.loads(text) if text else None

    def kernels(self) -> list[str]:
        """The ids of its kernels."""
        return [item["id"] for item in self.ask("kernels")]

    def kernelspec(self, name: str, python: str) -> None:
        """Give it a kernelspec: the kernel of another interpreter."""
        folder = self.folder / "data" / "kernels" / name
        folder.mkdir(parents=True, exist_ok=True)
        argv = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        (folder / "kernel.json").write_text(
            json.dumps({"argv": argv, "display_name": name, "language": "python"})
        )

    def definition(self, url: str = "", **options: Any) -> dict[str, Any]:
        """What stands in `kernels:` for it."""
        where: dict[str, Any] = {
            "url": url or self.url,
            "token_env": VARIABLE,
            **options,
        }
        if self.kind == "enterprise":  # as root, it needs a user name
            where.setdefault("env", {"KERNEL_USERNAME": "tester"})
        return {"jupyter": where}

    def place(self, url: str = "", **options: Any) -> kernel_config.BackendConfig:
        """The place `hub` of that definition; a key with the value None is left out."""
        jupyter = self.definition(url, **options)["jupyter"]
        return backend_registry.parse_backends(
            {
                "hub": {
                    "jupyter": {
                        key: value
                        for key, value in jupyter.items()
                        if value is not None
                    }
                }
            }
        )["hub"]

    def stop(self) -> None:
        """End the server; a Jupyter Server takes its kernels along."""
        if self.process is not None:
            stop_process(self.process)
            self.process = None

    def close(self) -> None:
        """End it and remove what it kept."""
        with contextlib.suppress(OSError):
            for kernel in self.kernels():
                with contextlib.suppress(urllib.error.HTTPError):
                    self.ask(f"kernels/{kernel}", "DELETE")
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def run_server(folder: Path, kind: str = "server") -> Iterator[dict[str, Any]]:
    """A server with all its files in a folder; its facts, as JSON has them."""
    served = Served(kind, folder=folder)
    try:
        yield {"url": served.url, "token": TOKEN, "variable": VARIABLE, "kind": kind}
    finally:
        served.close()


def make_backend(facts: dict[str, Any], **options: Any) -> kernel_config.BackendConfig:
    """The place `hub` on that server; its token is to be in the environment, as the facts name it."""
    where = {"url": facts["url"], "token_env": facts["variable"], **options}
    return backend_registry.parse_backends({"hub": {"jupyter": where}})["hub"]


class Line:
    """A way to a server that can be cut: a port that hands on to another."""

    def __init__(self, port: int) -> None:
        self.to = port
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        self.is_down = False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """The server's, by this way."""
        return f"http://127.0.0.1:{self.port}/"

    def cut(self) -> int:
        """Cut all connections that are there; return how many."""
        pairs, self.pairs = self.pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
        return len(pairs)

    def down(self) -> None:
        """Cut all, and let none come back."""
        self.is_down = True
        self.cut()

    def up(self) -> None:
        """Let them come again."""
        self.is_down = False

    def close(self) -> None:
        """Be gone."""
        self.listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            if self.is_down:
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.to), timeout=10)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.pairs.append((near, far))
            threading.Thread(target=self._carry, args=(near, far), daemon=True).start()
            threading.Thread(target=self._carry, args=(far, near), daemon=True).start()

    @staticmethod
    def _carry(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
