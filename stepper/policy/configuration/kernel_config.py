"""Kernel backends: the section `kernels:` of the configuration, parsed and validated.

Each backend has a dataclass with its settings and a table of its keys: what a value
must be, and a function that checks the value. The definition of a backend in the
configuration is what the user accepts with `stepper trust`, because it names hosts,
scripts and tokens.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

# The backend that needs no definition: the project's interpreter on this machine.
LOCAL = "local"
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")
KERNELSPEC_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")  # as in jupyter_client
MEMORY = re.compile(r"[1-9]\d*[KMGTkmgt]?")
# As for sbatch --time, except 0, which means no limit: a job must not run for ever if
# stepper loses track of it.
WALLTIME = re.compile(
    r"(?=.*[1-9])(?:\d+|\d+:\d\d|\d+:\d\d:\d\d|\d+-\d+|\d+-\d+:\d\d|\d+-\d+:\d\d:\d\d)"
)
VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
HEADER = re.compile(r"[\w!#$%&'*+.^`|~-]{1,100}", re.ASCII)  # a token of RFC 9110
HOST = re.compile(r"(?!-)[\w.@:%\[\]-]{1,255}")
MAX_INTEGER = 1 << 31
MAX_SECONDS = 86400
# Flags of sbatch that stepper sets itself: to find its jobs, to read their output, and
# so that a requeued job does not start an empty kernel.
RESERVED_FLAGS = (
    "-J",
    "--job-name",
    "--requeue",
    "--no-requeue",
    "-o",
    "--output",
    "-e",
    "--error",
    "-a",
    "--array",
    "--wrap",
    "--parsable",
    "-W",
    "--wait",
    "--export",
    "--export-file",
    "--test-only",
)


@dataclass(frozen=True)
class KernelspecSettings:
    """A kernelspec that is installed on this machine, for any language."""

    kernelspec: str


@dataclass(frozen=True)
class SlurmSettings:
    """A SLURM batch job, or a step in the user's allocation `jobid`."""

    partition: str = ""
    account: str = ""
    time: str = ""  # walltime in the format of sbatch
    mem: str | int = ""
    cpus: int = 0
    gres: str = ""
    setup: str = ""  # shell lines before the kernel starts
    # The interpreter on the compute node; the project's if empty.
    python: str = ""
    extra: tuple[str, ...] = ()  # flags for sbatch, with `jobid` for srun
    jobid: int = 0
    # Working folder on the shared file system; within the project if empty.
    folder: str = ""
    # Address of the compute node: auto, hostname, or the name of a network interface.
    address: str = "auto"
    # `ssh`: forward the kernel's ports through the login node.
    via: str = ""
    # Seconds that an edit waits for the job to start; the project's setting if None.
    queue_seconds: float | None = None


@dataclass(frozen=True)
class JupyterSettings:
    """A kernel on a Jupyter server, JupyterHub, Kernel or Enterprise Gateway."""

    url: str
    kernel: str = "python3"  # name of a kernelspec of the server
    # The id of a running kernel, to which stepper attaches without owning the kernel.
    kernel_id: str = ""
    # At most one of these three says where the token is.
    token_env: str = ""
    token_file: str = ""
    token_command: str = ""
    env: Mapping[str, str] = field(default_factory=dict)  # such as KERNEL_USERNAME
    headers: Mapping[str, str] = field(default_factory=dict)
    ca_file: str = ""


@dataclass(frozen=True)
class SshSettings:
    """A kernel on a host that is reachable with `ssh`."""

    host: str
    python: str = "python3"  # interpreter on the host
    # Working folder on the host; the home directory if empty.
    folder: str = ""
    setup: str = ""  # shell lines before the kernel starts
    extra: tuple[str, ...] = ()  # flags for ssh


BackendSettings = KernelspecSettings | SlurmSettings | JupyterSettings | SshSettings


@dataclass(frozen=True)
class BackendConfig:
    """A named kernel backend.

    `definition` is the value in the configuration, without the name.
    """

    name: str
    settings: BackendSettings
    definition: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """The kind of backend, such as `slurm`."""
        return next(iter(self.definition))

    @property
    def token_env(self) -> str:
        """The environment variable with the token, or an empty string if there is none.

        Kernels do not inherit this variable.
        """
        if isinstance(self.settings, JupyterSettings):
            return self.settings.token_env
        return ""

    @property
    def attaches(self) -> bool:
        """Whether stepper attaches to a running kernel, which it does not own."""
        if isinstance(self.settings, JupyterSettings):
            return self.settings.kernel_id != ""
        return False

    @property
    def is_python(self) -> bool:
        """Whether the language of the kernel is known to be Python."""
        if isinstance(self.settings, JupyterSettings):
            uses_default = self.settings.kernel == JupyterSettings.kernel
            return uses_default and not self.attaches
        return not self.is_local

    @property
    def is_local(self) -> bool:
        """Whether the kernel is a process on this machine."""
        return isinstance(self.settings, KernelspecSettings)


class BackendConfigError(ValueError):
    """An invalid definition of a backend; `path` are the keys to the error."""

    def __init__(self, path: tuple[str, ...], reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.path = path
        self.reason = reason
        self.hint = hint


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value.strip() != "" and value.isprintable()


def _is_shell_code(value: Any) -> bool:
    if not isinstance(value, str) or "\0" in value:
        return False
    has_surrogates = value != value.encode("utf-8", "replace").decode()
    return not has_surrogates


def _match(pattern: re.Pattern[str]) -> Callable[[Any], bool]:
    """Return a check for texts that match a pattern."""
    return lambda value: isinstance(value, str) and bool(pattern.fullmatch(value))


def _is_list_of_flags(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _match_mapping(names: re.Pattern[str]) -> Callable[[Any], bool]:
    """Return a check for mappings of names that match a pattern to texts."""
    is_name = _match(names)

    def is_entry(name: Any, text: Any) -> bool:
        is_line = isinstance(text, str) and (text == "" or text.isprintable())
        return is_line and is_name(name)

    return lambda value: (
        isinstance(value, dict) and all(is_entry(*entry) for entry in value.items())
    )


_is_header_mapping = _match_mapping(HEADER)


def _are_headers(value: Any) -> bool:
    return _is_header_mapping(value) and all(text.isascii() for text in value.values())


def _is_count(value: Any) -> bool:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return is_integer and 0 < value < MAX_INTEGER


def _is_memory(value: Any) -> bool:
    return _is_count(value) or _match(MEMORY)(value)


def _is_seconds(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= MAX_SECONDS


def _is_url(value: Any) -> bool:
    if not _is_text(value) or " " in value:
        return False
    try:
        parts = urlsplit(value)
        has_port = parts.port != 0
    except ValueError:  # an invalid port
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and has_port


def _is_absolute_path(value: Any) -> bool:
    """Return whether a path is outside the project: no pull can change its content."""
    return _is_text(value) and value.startswith(("/", "~"))


class Rule(NamedTuple):
    """What the value of a key must be, and the check."""

    description: str
    is_valid: Callable[[Any], bool]


TEXT = Rule("a text in one line", _is_text)
SHELL = Rule("lines of shell", _is_shell_code)
FLAGS = Rule("a list of flags", _is_list_of_flags)
COUNT = Rule("a whole number above 0", _is_count)
KERNELSPEC = Rule("the name of a kernelspec", _match(KERNELSPEC_NAME))
PATH = Rule("an absolute path or a path that starts with ~", _is_absolute_path)

RULES: dict[str, tuple[Callable[..., BackendSettings], dict[str, Rule]]] = {
    "slurm": (
        SlurmSettings,
        {
            **dict.fromkeys(("partition", "account", "gres", "python"), TEXT),
            # YAML reads 4:00:00 as a number of seconds, sbatch reads a number as
            # minutes.
            "time": Rule(
                'a walltime in quotes, such as "4:00:00"'
                " (without quotes, YAML reads a number)",
                _match(WALLTIME),
            ),
            "mem": Rule("an amount of memory such as 32G", _is_memory),
            "cpus": COUNT,
            "setup": SHELL,
            "extra": FLAGS,
            "jobid": COUNT,
            "folder": PATH,
            "address": Rule(
                "`auto`, `hostname` or the name of a network interface", _match(NAME)
            ),
            "via": Rule("`ssh`", lambda value: value == "ssh"),
            "queue_seconds": Rule("a number of seconds, at most a day", _is_seconds),
        },
    ),
    "jupyter": (
        JupyterSettings,
        {
            "url": Rule("a URL that starts with http:// or https://", _is_url),
            "kernel": KERNELSPEC,
            "kernel_id": Rule("the id of a kernel", _match(KERNELSPEC_NAME)),
            "token_env": Rule("the name of an environment variable", _match(VARIABLE)),
            "token_file": PATH,
            "token_command": TEXT,
            "env": Rule(
                "a mapping of names of environment variables to texts",
                _match_mapping(VARIABLE),
            ),
            "headers": Rule("a mapping of header names to ASCII texts", _are_headers),
            "ca_file": PATH,
        },
    ),
    "ssh": (
        SshSettings,
        {
            "host": Rule("a host for ssh, such as box or me@box", _match(HOST)),
            **dict.fromkeys(("python", "folder"), TEXT),
            "setup": SHELL,
            "extra": FLAGS,
        },
    ),
}
KINDS = (*RULES, "kernelspec")
REQUIRED_KEYS = {"jupyter": ("url",), "ssh": ("host",)}
TOKEN_KEYS = ("token_env", "token_file", "token_command")
# Errors do not quote the values of these keys: they may contain a token by mistake.
CONFIDENTIAL_KEYS = (*TOKEN_KEYS, "env", "headers")
TOKEN_HINT = f"To say where the token is, use one of: {', '.join(TOKEN_KEYS)}"
SECRET_HEADERS = ("authorization", "proxy-authorization", "cookie")
# The user's allocation `jobid` determines these.
ALLOCATION_KEYS = ("partition", "account", "time", "mem", "cpus", "gres")


def parse_backends(section: Any) -> dict[str, BackendConfig]:
    """Return the backends of the section `kernels:`; raise BackendConfigError."""
    if not isinstance(section, dict):
        raise BackendConfigError(
            (),
            "must be a mapping of names to kernel backends",
            "For example: kernels: {r: {kernelspec: ir}}",
        )
    return {
        name: _parse_backend(name, definition) for name, definition in section.items()
    }


def _parse_backend(name: Any, definition: Any) -> BackendConfig:
    path = (str(name)[:100],)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise BackendConfigError(
            path,
            "is not a valid name for a kernel backend:"
            " use letters, digits, `_`, `.` and `-`",
        )
    if name == LOCAL:
        raise BackendConfigError(
            path,
            f"cannot be defined: `{LOCAL}` is the project's interpreter on this"
            " machine. Use another name",
        )
    if not isinstance(definition, dict) or len(definition) != 1:
        raise BackendConfigError(
            path, f"must contain exactly one kind of backend: {', '.join(KINDS)}"
        )
    kind, values = next(iter(definition.items()))
    if kind == "kernelspec":
        if not KERNELSPEC.is_valid(values):
            raise BackendConfigError(
                (*path, kind),
                f"must be {KERNELSPEC.description}, not {reprlib.repr(values)}",
            )
        return BackendConfig(name, KernelspecSettings(values), definition)
    if kind not in RULES:
        raise _unknown_key_error((*path, str(kind)[:100]), KINDS)
    settings = _parse_settings(kind, values, (*path, kind))
    return BackendConfig(name, settings, definition)


def _parse_settings(kind: str, values: Any, path: tuple[str, ...]) -> BackendSettings:
    settings_class, rules = RULES[kind]
    if not isinstance(values, dict):
        raise BackendConfigError(
            path, f"must be a mapping with the keys: {', '.join(rules)}"
        )
    for key, value in values.items():
        _check_value(kind, key, value, path)
    for key in REQUIRED_KEYS.get(kind, ()):
        if key not in values:
            raise BackendConfigError(
                path, f"must have the key `{key}`: {rules[key].description}"
            )
    if kind == "slurm":
        _check_slurm(values, path)
    if kind == "jupyter":
        _check_jupyter(values, path)
    arguments = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in values.items()
    }
    return settings_class(**arguments)


def _check_value(kind: str, key: Any, value: Any, path: tuple[str, ...]) -> None:
    """Raise BackendConfigError if a key is unknown or its value is invalid."""
    rules = RULES[kind][1]
    if kind == "jupyter" and key == "token":
        raise _secret_error((*path, key), "a token")
    if key not in rules:
        raise _unknown_key_error((*path, str(key)[:100]), rules)
    rule = rules[key]
    if not rule.is_valid(value):
        is_quotable = key not in CONFIDENTIAL_KEYS
        actual = f", not {reprlib.repr(value)}" if is_quotable else ""
        raise BackendConfigError((*path, key), f"must be {rule.description}{actual}")


def _check_slurm(values: Mapping[str, Any], path: tuple[str, ...]) -> None:
    """Raise BackendConfigError if keys contradict each other or stepper's own flags."""
    for key in ALLOCATION_KEYS:
        if "jobid" in values and key in values:
            raise BackendConfigError(
                (*path, key),
                f"cannot be combined with `jobid`: job {values['jobid']} already has"
                f" its {key}",
            )
    for flag in values.get("extra", ()):
        if flag.partition("=")[0] in RESERVED_FLAGS:
            raise BackendConfigError(
                (*path, "extra"), f"cannot contain `{flag}`: stepper sets this flag"
            )


def _check_jupyter(values: Mapping[str, Any], path: tuple[str, ...]) -> None:
    """Raise BackendConfigError if the configuration contains a secret."""
    token_keys = [key for key in TOKEN_KEYS if key in values]
    if len(token_keys) > 1:
        raise BackendConfigError(
            (*path, token_keys[1]), f"cannot be combined with `{token_keys[0]}`"
        )
    parts = urlsplit(values["url"])
    if parts.username or parts.password or "token=" in parts.query:
        raise _secret_error((*path, "url"), "a token or password")
    if parts.query or parts.fragment:
        raise BackendConfigError(
            (*path, "url"), "must be the base URL of the server, without `?` or `#`"
        )
    for header in values.get("headers", ()):
        if header.lower() in SECRET_HEADERS:
            raise _secret_error((*path, "headers", header), "credentials")


def _secret_error(path: tuple[str, ...], secret: str) -> BackendConfigError:
    reason = f"must not contain {secret}: others can read this file"
    return BackendConfigError(path, reason, TOKEN_HINT)


def _unknown_key_error(
    path: tuple[str, ...], known_keys: Iterable[str]
) -> BackendConfigError:
    keys = [*known_keys]
    similar = difflib.get_close_matches(path[-1], keys, n=1, cutoff=0.4)
    if similar:
        hint = f"Did you mean `{similar[0]}`?"
    else:
        hint = f"Known keys: {', '.join(keys)}"
    return BackendConfigError(path, "is not a known key", hint)


def describe_backend(backend: BackendConfig) -> str:
    """Return a short description of a backend without any secrets."""
    match backend.settings:
        case KernelspecSettings(kernelspec=kernelspec):
            return f"the kernelspec {kernelspec} on this machine"
        case SlurmSettings(jobid=job) if job:
            return f"a step in the SLURM job {job}"
        case SlurmSettings() as slurm:
            return _describe_job(slurm)
        case JupyterSettings(url=url, kernel=kernelspec, kernel_id=kernel_id):
            if kernel_id:
                return f"the kernel {kernel_id} of {url}"
            return f"the kernelspec {kernelspec} of {url}"
        case SshSettings(host=host, python=python):
            return f"{python} on {host} over ssh"


def _describe_job(slurm: SlurmSettings) -> str:
    options = {
        "partition": slurm.partition,
        "time": slurm.time,
        "mem": slurm.mem,
        "cpus": slurm.cpus,
        "gres": slurm.gres,
        "account": slurm.account,
    }
    parts = [f"{key} {value}" for key, value in options.items() if value]
    return ", ".join(["a SLURM job", *parts])
