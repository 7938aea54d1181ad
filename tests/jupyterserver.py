"""Real Jupyter Servers, Kernel Gateways and Enterprise Gateways on loopback.

The connection to a server can be cut.

server = JupyterServer("server")           # or "gateway", "enterprise"
server.definition(kernel="house")   # for `kernels:`; VARIABLE has the token
server.close()
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
# In its own environment: it needs an old jupyter_client, and with the other packages
# pip would install an old version of it.
ENTERPRISE = ("jupyter_enterprise_gateway>=3.3,<4",)


class Kind(NamedTuple):
    """A kind of server: packages, module, application name, flags."""

    packages: tuple[str, ...]
    module: str
    app: str
    # The variable with the token; other users could see an argument.
    token: str
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
    """Return a free port on loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def stop_process(process: subprocess.Popen[bytes]) -> None:
    """End a server; kill it if it does not exit."""
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class JupyterServer:
    """A server of one kind, with all its files in one folder.

    `certificate` has the paths of the certificate and its key.
    """

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
        if kind == "enterprise":  # it does not depend on ipykernel
            self.kernelspec("python3", environment(sys.executable, *SERVERS))
        self.start()

    @property
    def url(self) -> str:
        """The URL for `kernels:`."""
        return f"http{'s' if self.certificate else ''}://127.0.0.1:{self.port}/"

    @property
    def python(self) -> str:
        """The interpreter of the environment.

        The kernelspec `python3` uses it too, except for an Enterprise Gateway.
        """
        return environment(sys.executable, *KINDS[self.kind].packages)

    def start(self) -> None:
        """Start the server, on its former port, and wait until it responds."""
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
        end = time.monotonic() + 300
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError):
                self.ask("kernels")
                return
            time.sleep(0.05)
        self.stop()
        raise AssertionError(
            f"{module} did not start:\n" + (self.folder / "log").read_text()[-3000:]
        )

    def ask(
        self, path: str, method: str = "GET", body: Any = None, token: str = TOKEN
    ) -> Any:
        """Send a request to the REST API and return the response."""
        data = json.dumps(body).encode() if body is not None else None
        headers = {
            "Authorization": f"token {token}",
            "Content-Type": "application/json",
        }
        request = urllib.request.Request(
            f"{self.url}api/{path}", data, headers, method=method
        )
        with urllib.request.urlopen(
            request, timeout=120, context=self.context
        ) as response:
            text = response.read()
        return json.loads(text) if text else None

    def kernels(self) -> list[str]:
        """Return the ids of the running kernels."""
        return [item["id"] for item in self.ask("kernels")]

    def kernelspec(self, name: str, python: str) -> None:
        """Add a kernelspec: the kernel of another interpreter."""
        folder = self.folder / "data" / "kernels" / name
        folder.mkdir(parents=True, exist_ok=True)
        argv = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        (folder / "kernel.json").write_text(
            json.dumps({"argv": argv, "display_name": name, "language": "python"})
        )

    def definition(self, url: str = "", **options: Any) -> dict[str, Any]:
        """Return the server's entry for `kernels:`."""
        config: dict[str, Any] = {
            "url": url or self.url,
            "token_env": VARIABLE,
            **options,
        }
        if self.kind == "enterprise":  # a user name is required for root
            config.setdefault("env", {"KERNEL_USERNAME": "tester"})
        return {"jupyter": config}

    def backend_config(
        self, url: str = "", **options: Any
    ) -> kernel_config.BackendConfig:
        """Return the parsed backend `hub`; keys with the value None are left out."""
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
        """End the server; a Jupyter Server ends its kernels too."""
        if self.process is not None:
            stop_process(self.process)
            self.process = None

    def close(self) -> None:
        """End the server and remove its files."""
        with contextlib.suppress(OSError):
            for kernel in self.kernels():
                with contextlib.suppress(urllib.error.HTTPError):
                    self.ask(f"kernels/{kernel}", "DELETE")
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def run_server(folder: Path, kind: str = "server") -> Iterator[dict[str, Any]]:
    """A server with all its files in a folder; yields its facts, for JSON."""
    server = JupyterServer(kind, folder=folder)
    try:
        yield {"url": server.url, "token": TOKEN, "variable": VARIABLE, "kind": kind}
    finally:
        server.close()


def make_backend(facts: dict[str, Any], **options: Any) -> kernel_config.BackendConfig:
    """Return the backend `hub` on that server.

    The environment must contain the token, in the variable that the facts name.
    """
    config = {"url": facts["url"], "token_env": facts["variable"], **options}
    return backend_registry.parse_backends({"hub": {"jupyter": config}})["hub"]


class ConnectionProxy:
    """A proxy that can cut its connections to a server."""

    def __init__(self, port: int) -> None:
        self.to = port
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        self.is_down = False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """The server's URL through the proxy."""
        return f"http://127.0.0.1:{self.port}/"

    def cut(self) -> int:
        """Cut all connections and return their number."""
        pairs, self.pairs = self.pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
        return len(pairs)

    def down(self) -> None:
        """Cut all connections and refuse new ones."""
        self.is_down = True
        self.cut()

    def up(self) -> None:
        """Accept connections again."""
        self.is_down = False

    def close(self) -> None:
        """Close the proxy."""
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
                far = socket.create_connection(("127.0.0.1", self.to), timeout=60)
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
