"""What ssh refuses, in its own words, and the command that mends it."""

from __future__ import annotations

import re
import shlex

from stepper.common.text import one_line
from stepper.policy.kernel_config import SshSettings

KNOWN = re.compile(r"Offending (?:\S+ )?key in (?P<file>.+?):(?P<line>\d+)")
REMOVE = re.compile(r"ssh-keygen -f .* -R .*")
KEY_CHANGED = "has changed"  # in the text on a host key
CHANGED = "REMOTE HOST IDENTIFICATION HAS CHANGED"
FORBIDDEN = "administratively prohibited"
NOISE = ("channel ", "Warning: Permanently added", "Killed by signal", "mux_client")


def in_words(said: bytes, where: SshSettings, of_ssh: bool) -> tuple[str, str]:
    """Return what was wrong and what mends it, by what ssh, or the shell and the interpreter there, wrote."""
    text = said.decode("utf-8", "replace").replace("\r", "")
    lines = [line for line in text.splitlines() if line.strip()]
    last = one_line(
        next((line for line in reversed(lines) if not line.startswith(NOISE)), ""), 300
    )
    command = ssh(where)
    if CHANGED in text:
        known, remove = KNOWN.search(text), REMOVE.search(text)
        where_known = (
            f" ({known['file']}, line {known['line']}, holds another)" if known else ""
        )
        name = where.host.rpartition("@")[2]
        mend = (
            remove[0].strip().replace('"', "'")
            if remove
            else f"ssh-keygen -R {shlex.quote(name)}"
        )
        why = f"the host key of {where.host} {KEY_CHANGED}{where_known}: {last}"
        return (
            why,
            f"{mend}; {command} true  # only if you know why the key changed",
        )
    if forbids(said):
        return (
            f"the sshd on {where.host} forbids forwarding ({FORBIDDEN})",
            "AllowTcpForwarding local  # in its sshd_config",
        )
    if of_ssh:
        return f"{where.host}: {last or 'ssh ended without a word'}", f"{command} true"
    return (
        f"{where.host}: {last or f'{where.python} said nothing: it is no Python'}",
        f"{command} {shlex.quote(where.python)} --version",
    )


def forbids(said: bytes) -> bool:
    """Whether the host's sshd refuses to carry the kernel's ports."""
    return FORBIDDEN.encode() in said


def ssh(where: SshSettings) -> str:
    """Return the command that reaches the host as stepper does."""
    return shlex.join(["ssh", *where.extra, where.host])
