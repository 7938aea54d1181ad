"""An ssh connection to a host, with the kernel's ports forwarded to local sockets.

A master process of ssh carries all forwarded ports and requests. The local sockets are
in the user's private folder. If the master exits, it is started again with the same
sockets, and ZeroMQ reconnects automatically. The master reads from a pipe of the
daemon, so it exits with the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import time
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from stepper.common.errors import KernelError, KernelUnreachableError
from stepper.kernels.backends.ssh import ssh_errors
from stepper.kernels.backends.ssh.ssh_errors import SshError, explain_error
from stepper.kernels.backends.ssh.ssh_settings import SshSettings

# Reads one line of shell commands from standard input and executes them. The commands
# start Python, which reads the request and the program from the next line. The request
# does not appear in the list of processes, and every login shell accepts this command.
SHELL = """exec sh -c 'IFS= read -r line; eval "$(printf %b "$line")"'"""
READ_REQUEST = (
    "import sys, json; request = json.loads(sys.stdin.readline());"
    " exec(request.pop('program')); main(request)"
)
# The user's ssh configuration is used, except for these options.
OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": "10",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "2",
    "StreamLocalBindUnlink": "yes",
    "StreamLocalBindMask": "0177",
    "ControlPersist": "no",
    "ClearAllForwardings": "yes",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "PermitLocalCommand": "no",
}
REQUEST_SECONDS = 20.0
CONNECT_SECONDS = 15.0
RESUME_SECONDS = 5.0
# The pause before the first attempt to reconnect, and the longest pause.
RETRY_SECONDS = (1.0, 15.0)
OUTPUT_SIZE = 8000  # bytes of ssh's error output that are stored
SSH_ERROR = 255  # the exit code of ssh if ssh itself fails
RESPONSE_PREFIX = "stepper:"  # of the line that `remote_launcher` prints
NO_ERROR = SshError("", "")


class SshConnection:
    """An ssh connection to a host.

    `control` is the path of the master's control socket. `sockets` is the prefix of the
    paths of the forwarded ports.
    """

    def __init__(self, settings: SshSettings, control: str, sockets: str) -> None:
        self.settings = settings
        self.control = control
        self.sockets = sockets
        self.master: asyncio.subprocess.Process | None = None
        self.ports: list[int] = []  # ports of the host that are forwarded
        self.is_connected = False
        self.disconnect_count = 0  # lost and restored connections
        self.error_output = b""  # the end of ssh's error output
        self.outage = NO_ERROR  # why the connection cannot be restored
        self.reconnect_task: asyncio.Task[None] | None = None
        self.next_retry = 0.0
        self.retry_seconds = RETRY_SECONDS[0]
        self.error_reader: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        """Whether the master is running and forwards the ports."""
        is_running = self.master is not None and self.master.returncode is None
        return self.is_connected and is_running

    def _build_command(self, *arguments: str) -> list[str]:
        """Return an ssh command that uses the master's control socket."""
        command = ["ssh"]
        for name, value in OPTIONS.items():
            command += ["-o", f"{name}={value}"]
        return [*command, "-S", self.control, *self.settings.extra, *arguments]

    async def open(self, ports: list[int]) -> None:
        """Start the master and forward ports of the host to local sockets.

        Raise KernelError if the connection cannot be opened.
        """
        self.ports = ports
        self.is_connected = False
        await self._stop_master()
        self.error_output = b""
        self.master = await _start_process(
            *self._build_command("-M", self.settings.host, "exec cat"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self.error_reader = asyncio.create_task(self._read_errors(self.master))
        deadline = time.monotonic() + CONNECT_SECONDS
        while not Path(self.control).exists():
            has_exited = self.master.returncode is not None
            if has_exited or time.monotonic() > deadline:
                raise await self._create_error()
            await asyncio.sleep(0.02)
        forwards = [
            f"-L{self.sockets}-{number}:127.0.0.1:{port}"
            for number, port in enumerate(ports, 1)
        ]
        if not await self._send_to_master("forward", *forwards):
            raise await self._create_error()
        self.is_connected = True
        self.retry_seconds = RETRY_SECONDS[0]
        self.outage = NO_ERROR

    async def resume(self, ports: list[int]) -> None:
        """Restore the connection of an earlier daemon.

        Wait up to RESUME_SECONDS. If the connection is not restored by then (see
        `is_up`), further attempts are made in the background.
        """
        self.ports = ports
        self.restore_if_lost()
        if self.reconnect_task is not None:
            await asyncio.wait([self.reconnect_task], timeout=RESUME_SECONDS)

    def restore_if_lost(self) -> None:
        """Restore the connection in the background if it is lost."""
        if not self.ports or self.is_up or self.reconnect_task is not None:
            return
        if time.monotonic() > self.next_retry:
            self.reconnect_task = asyncio.create_task(self._reconnect())

    async def _reconnect(self) -> None:
        """Open the connection again, or record why this failed and when to retry."""
        try:
            await self.open(self.ports)
            self.disconnect_count += 1
        except KernelError as error:
            self.outage = SshError(error.message, error.hint)
            self.next_retry = time.monotonic() + self.retry_seconds
            self.retry_seconds = min(2 * self.retry_seconds, RETRY_SECONDS[1])
        finally:
            self.reconnect_task = None

    @property
    def outage_text(self) -> str:
        """Why the connection cannot be restored, with a hint, or an empty string."""
        message, hint = self.outage
        if self.is_up or not message:
            return ""
        if ssh_errors.is_forwarding_forbidden(self.error_output):
            return f"{message}. {hint}"
        purpose = "fix" if ssh_errors.KEY_CHANGED in message else "check"
        return f"{message}. To {purpose} this, run: {hint}"

    def kill_master(self) -> None:
        """Kill the master, for example because the connection does not respond."""
        self.is_connected = False
        if self.master is not None:
            with contextlib.suppress(ProcessLookupError):
                self.master.kill()

    async def send_request(
        self, action: str, request: Mapping[str, Any], seconds: float = REQUEST_SECONDS
    ) -> dict[str, Any]:
        """Run `remote_launcher` on the host and return its response.

        `action` is "start", "query", "kill" or "describe". Raise KernelUnreachableError
        if the host cannot be reached or does not respond within `seconds`. Raise
        KernelError if ssh cannot be executed or the response is not valid.
        """
        process = await _start_process(
            *self._build_command("-o", "ControlMaster=no", self.settings.host, SHELL),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        data = self._encode_request(action, request)
        try:
            output, errors = await asyncio.wait_for(process.communicate(data), seconds)
        except asyncio.TimeoutError:
            raise KernelUnreachableError(
                f"{self.settings.host} did not respond within {seconds:.0f} s"
            ) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        try:
            response = _parse_response(output)
        except ValueError:
            is_ssh_error = process.returncode == SSH_ERROR
            error = explain_error(
                errors or output, self.settings, is_ssh_error=is_ssh_error
            )
            if is_ssh_error:
                raise KernelUnreachableError(error.message, error.hint) from None
            raise KernelError(error.message, error.hint) from None
        return response

    def _encode_request(self, action: str, request: Mapping[str, Any]) -> bytes:
        """Return the standard input for SHELL: a line of commands, then the request."""
        package = files("stepper.kernels.backends.ssh")
        program = package.joinpath("remote_launcher.py").read_text("utf-8")
        python = shlex.quote(self.settings.python)
        code = shlex.quote(READ_REQUEST)
        commands = f"{self.settings.setup}\nexec {python} -c {code}\n"
        escaped_commands = commands.replace("\\", "\\\\").replace("\n", "\\n")
        message = json.dumps({"program": program, "do": action, **request})
        return f"{escaped_commands}\n{message}\n".encode()

    def close(self) -> None:
        """Stop reconnecting, kill the master and remove its sockets."""
        self.ports = []
        if self.reconnect_task is not None:
            self.reconnect_task.cancel()
        self.kill_master()
        # If the daemon exits before the process is reaped, asyncio closes the pipes of
        # the process too late.
        if self.master is not None:
            self.master._transport.close()  # type: ignore[attr-defined]
        self._remove_sockets()

    async def _stop_master(self) -> None:
        """Stop the master of this daemon or of an earlier daemon.

        Also remove its sockets. The master of an earlier daemon has the same control
        socket.
        """
        self.kill_master()
        if self.master is not None:
            await self.master.wait()
            self.master = None
        elif Path(self.control).exists():
            await self._send_to_master("exit")
        self._remove_sockets()

    def _remove_sockets(self) -> None:
        """Remove the control socket and the sockets of the forwarded ports."""
        paths = [self.control]
        paths += [f"{self.sockets}-{number}" for number in range(1, 6)]
        for path in paths:
            Path(path).unlink(missing_ok=True)

    async def _send_to_master(self, command: str, *arguments: str) -> bool:
        """Send a control command to the master, and return whether it succeeded.

        The user's ssh configuration is not read, because the command needs no host.
        """
        process = await _start_process(
            "ssh",
            "-F",
            "none",
            "-S",
            self.control,
            "-O",
            command,
            *arguments,
            "there",  # ssh requires a host, but does not connect to it
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, errors = await asyncio.wait_for(process.communicate(), REQUEST_SECONDS)
        except asyncio.TimeoutError:
            process.kill()
            return False
        if process.returncode == 0:
            return True
        self.error_output += errors
        return False

    async def _read_errors(self, master: asyncio.subprocess.Process) -> None:
        """Read ssh's error output, because a full pipe would block ssh.

        The last OUTPUT_SIZE bytes are stored.
        """
        assert master.stderr is not None  # it is a pipe
        while data := await master.stderr.read(OUTPUT_SIZE):
            self.error_output = (self.error_output + data)[-OUTPUT_SIZE:]

    async def _create_error(self) -> KernelError:
        """Return the error for a connection that could not be opened.

        The error describes the last line of ssh's error output.
        """
        exit_code = None
        if self.master is not None:
            exit_code = self.master.returncode
        if exit_code is not None and self.error_reader is not None:
            await self.error_reader
        output = self.error_output
        if not output:
            reason = "ssh did not forward the kernel's ports"
            if exit_code is not None:
                reason = f"ssh exited with code {exit_code}"
            elif not Path(self.control).exists():
                reason = f"ssh did not connect within {CONNECT_SECONDS:.0f} s"
            output = reason.encode()
        error = explain_error(output, self.settings, is_ssh_error=True)
        return KernelUnreachableError(error.message, error.hint)


def _parse_response(output: bytes) -> dict[str, Any]:
    """Return the response in the output of the remote launcher.

    The response follows RESPONSE_PREFIX in the last line with this prefix. A shell
    profile may have printed a text before the prefix. Raise ValueError if there is no
    response.
    """
    for line in reversed(output.decode("utf-8", "replace").split("\n")):
        _, prefix, text = line.partition(RESPONSE_PREFIX)
        if not prefix:
            continue
        response = json.loads(text)
        if isinstance(response, dict):
            return response
        break
    raise ValueError("the remote launcher sent no response")


async def _start_process(*command: str, **options: Any) -> asyncio.subprocess.Process:
    """Start an ssh process.

    Raise KernelError if ssh cannot be executed.
    """
    try:
        return await asyncio.create_subprocess_exec(*command, **options)
    except OSError as error:
        raise KernelError(
            f"ssh cannot be executed on this machine: {error.strerror}",
            "command -v ssh",
        ) from error
