"""Explanations of ssh's errors, with commands that fix or check the cause."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from stepper.common.text import one_line
from stepper.kernels.backends.ssh.ssh_settings import SshSettings

OFFENDING_KEY = re.compile(r"Offending (?:\S+ )?key in (?P<file>.+?):(?P<line>\d+)")
REMOVE_COMMAND = re.compile(r"ssh-keygen -f .* -R .*")
KEY_CHANGED = "has changed"  # in the explanation of a changed host key
KEY_CHANGED_WARNING = "REMOTE HOST IDENTIFICATION HAS CHANGED"
FORBIDDEN = "administratively prohibited"
# The beginnings of lines that are not the cause of an error.
NOISE = ("channel ", "Warning: Permanently added", "Killed by signal", "mux_client")


class SshError(NamedTuple):
    """An explanation of an error, and a hint on how to fix or check the cause."""

    message: str
    hint: str


def explain_error(
    output: bytes, settings: SshSettings, *, is_ssh_error: bool
) -> SshError:
    """Return an explanation of an error of ssh, or of the command on the host.

    `output` is the error output. `is_ssh_error` is true if ssh itself failed.
    """
    text = output.decode("utf-8", "replace").replace("\r", "")
    host = settings.host
    command = format_ssh_command(settings)
    last_line = find_last_line(text)
    if KEY_CHANGED_WARNING in text:
        return explain_changed_key(text, settings, last_line)
    if is_forwarding_forbidden(output):
        return SshError(
            f"the sshd on {host} forbids port forwarding ({FORBIDDEN})",
            "To fix this, set `AllowTcpForwarding local` in its sshd_config",
        )
    if is_ssh_error:
        reason = last_line or "ssh failed without an error message"
        return SshError(f"{host}: {reason}", f"{command} true")
    reason = last_line or f"{settings.python} printed nothing and may not be Python"
    python = shlex.quote(settings.python)
    return SshError(f"{host}: {reason}", f"{command} {python} --version")


def find_last_line(text: str) -> str:
    """Return the last line that describes an error, or an empty string."""
    for line in reversed(text.splitlines()):
        if line.strip() and not line.startswith(NOISE):
            return one_line(line, 300)
    return ""


def explain_changed_key(text: str, settings: SshSettings, last_line: str) -> SshError:
    """Return the explanation for a host key that differs from the known host key.

    `text` is the output of ssh, and `last_line` the last line that describes the error.
    """
    known_key = OFFENDING_KEY.search(text)
    known_location = ""
    if known_key:
        known_location = (
            f" ({known_key['file']}, line {known_key['line']}, contains another key)"
        )
    remove = REMOVE_COMMAND.search(text)
    if remove:
        fix = remove[0].strip().replace('"', "'")
    else:
        name = settings.host.rpartition("@")[2]
        fix = f"ssh-keygen -R {shlex.quote(name)}"
    command = format_ssh_command(settings)
    return SshError(
        f"the host key of {settings.host} {KEY_CHANGED}{known_location}: {last_line}",
        f"{fix}; {command} true  # only if you know why the key changed",
    )


def is_forwarding_forbidden(output: bytes) -> bool:
    """Return whether the output says that the host's sshd forbids port forwarding."""
    return FORBIDDEN.encode() in output


def format_ssh_command(settings: SshSettings) -> str:
    """Return the ssh command with the configured options and host."""
    return shlex.join(["ssh", *settings.extra, settings.host])
