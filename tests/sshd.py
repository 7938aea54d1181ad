"""An sshd on loopback with its keys and configuration in one folder.

The folder also has the configuration of `ssh`. The server writes nowhere else.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from stepper.kernels import backend_registry
from stepper.policy.configuration import kernel_config
from tests import apt_packages


class Host:
    """A host `box`: `ssh -F CONFIG NAME` connects to this machine, with any name.

    Raises `Unavailable` if sshd is missing and cannot be installed.
    """

    def __init__(self, folder: Path, **options: str) -> None:
        self.program = apt_packages.find_or_unpack_program("sshd", "openssh-server")
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # for sshd's privilege separation
        self.folder, self.client, self.user = (
            folder,
            folder / "ssh_config",
            getpass.getuser(),
        )
        self.home = folder / "home"  # there
        self.home.mkdir()
        for name in ("host", "user", "other"):
            command = [
                "ssh-keygen",
                "-q",
                "-t",
                "ed25519",
                "-N",
                "",
                "-f",
                str(folder / name),
            ]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        (folder / "authorized").write_text((folder / "user.pub").read_text())
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.client.write_text(
            f"Host *\n HostName 127.0.0.1\n Port {self.port}\n User {self.user}\n IdentityFile {folder}/user\n"
            f" IdentitiesOnly yes\n UserKnownHostsFile {folder}/known\n GlobalKnownHostsFile /dev/null\n"
            " StrictHostKeyChecking yes\n"
        )
        self.write_known_hosts("host")
        self.start(**options)

    @property
    def facts(self) -> dict[str, Any]:
        """The data that a test in another process needs."""
        return {
            "config": str(self.client),
            "port": self.port,
            "user": self.user,
            "user_key": str(self.folder / "user"),
            "known_hosts": str(self.folder / "known"),
        }

    def start(self, **options: str) -> None:
        """Start sshd with further options, and wait until it accepts connections."""
        usual = {
            "Port": self.port,
            "ListenAddress": "127.0.0.1",
            "HostKey": self.folder / "host",
            "StrictModes": "no",
            "AuthorizedKeysFile": self.folder / "authorized",
            "PidFile": self.folder / "pid",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "PermitRootLogin": "yes",
            "MaxSessions": "100",
            "MaxStartups": "100",
            "SetEnv": f"HOME={self.home}",  # the startup files of the user's shell can be slow
        }
        lines = [f"{name} {value}\n" for name, value in {**usual, **options}.items()]
        (self.folder / "sshd_config").write_text("".join(lines))
        with (self.folder / "sshd.log").open("ab") as log:
            self.sshd = subprocess.Popen(
                [self.program, "-D", "-e", "-f", str(self.folder / "sshd_config")],
                stderr=log,
            )
        until = time.monotonic() + 120
        while time.monotonic() < until and self.sshd.poll() is None:
            with socket.socket() as tried:
                if not tried.connect_ex(("127.0.0.1", self.port)):
                    return
            time.sleep(0.02)
        self.stop()
        raise AssertionError(
            "sshd does not listen:\n" + (self.folder / "sshd.log").read_text()
        )

    def lines(self) -> list[psutil.Process]:
        """Return the server processes of the open connections."""
        try:
            return psutil.Process(self.sshd.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def cut(self) -> None:
        """Cut all connections at the server; new ones are accepted."""
        for process in self.lines():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def stop(self) -> None:
        """Cut all connections and stop listening; remote processes continue."""
        lines = self.lines()
        self.sshd.kill()
        self.sshd.wait()
        for process in lines:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def write_known_hosts(self, key: str) -> None:
        """Write a host key to the file of known hosts; '' removes it."""
        known_host_line = (
            f"[127.0.0.1]:{self.port} {(self.folder / f'{key}.pub').read_text()}"
            if key
            else ""
        )
        (self.folder / "known").write_text(known_host_line)

    def make_backend(self, **options: Any) -> kernel_config.BackendConfig:
        """Return the backend of `box: {ssh: …}`, with further keys."""
        return make_backend(self.facts, **options)


def make_backend(
    facts: Mapping[str, Any], **options: Any
) -> kernel_config.BackendConfig:
    """Return the backend of `box: {ssh: …}` for a host's facts, with further keys."""
    config = {"host": "box", "python": sys.executable, **options}
    return backend_registry.parse_backends(
        {
            "box": {
                "ssh": {
                    **config,
                    "extra": ["-F", facts["config"], *config.get("extra", [])],
                }
            }
        }
    )["box"]


@contextlib.contextmanager
def run_sshd(folder: Path, **options: str) -> Iterator[dict[str, Any]]:
    """Run an sshd with all its files in a folder; yield its facts."""
    host = Host(folder, **options)
    try:
        yield host.facts
    finally:
        host.stop()
