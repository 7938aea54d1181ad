"""Where kernels may run besides the project's own interpreter: `kernels:` of the configuration, as values.

A kind of place is a frozen dataclass and a table of its keys: what each must be, and the check of it. A place's
definition, as it stands in the configuration, is what `stepper trust` accepts: it names hosts, scripts and tokens.
(Over 300 lines: a table for each kind of place, and their one reader.)
"""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

# the name of the place that needs no definition: the project's interpreter on this
# machine
LOCAL = "local"
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")
SPEC = re.compile(r"[A-Za-z0-9_.-]{1,100}")  # Jupyter's own rule
MEMORY = re.compile(r"[1-9]\d*[KMGTkmgt]?")
# sbatch(1), --time: 0 is no limit there, and no job is to outlive everybody that knows
# of it.
WALLTIME = re.compile(
    r"(?=.*[1-9])(?:\d+|\d+:\d\d|\d+:\d\d:\d\d|\d+-\d+|\d+-\d+:\d\d|\d+-\d+:\d\d:\d\d)"
)
VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
HEADER = re.compile(r"[\w!#$%&'*+.^`|~-]{1,100}", re.ASCII)  # RFC 9110, token
HOST = re.compile(r"(?!-)[\w.@:%\[\]-]{1,255}")
# What sbatch is told by stepper itself: how a job is found again, that it comes back
# with no empty kernel.
OURS = (
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
class Kernelspec:
    """An installed kernelspec on this machine, for whatever language."""

    kernelspec: str


@dataclass(frozen=True)
class Slurm:
    """A batch job of SLURM's, or a step in the allocation `jobid` that the person holds."""

    partition: str = ""
    account: str = ""
    time: str = ""  # the walltime, as sbatch reads it
    mem: str | int = ""
    cpus: int = 0
    gres: str = ""
    setup: str = ""  # lines of shell before the kernel
    python: str = ""  # on the compute node; the project's own where it is not given
    extra: tuple[str, ...] = ()  # flags of sbatch (srun, for `jobid`)
    jobid: int = 0
    # on the shared file system; below the project where it is not given
    folder: str = ""
    # by which the compute node is reached: auto, hostname, or an interface's name
    address: str = "auto"
    via: str = ""  # `ssh`: its ports are reached through the node
    # how long an edit waits for the job to start; else as in the configuration
    queue_seconds: float | None = None


@dataclass(frozen=True)
class Jupyter:
    """A kernel of a Jupyter server, a JupyterHub's, a Kernel Gateway or an Enterprise Gateway."""

    url: str
    kernel: str = "python3"  # the server's kernelspec
    kernel_id: str = ""  # of one that runs: it is attached, and left
    token_env: str = ""  # at most one of these three says where the token is
    token_file: str = ""
    token_command: str = ""
    env: Mapping[str, str] = field(default_factory=dict)  # such as KERNEL_USERNAME
    headers: Mapping[str, str] = field(default_factory=dict)
    ca_file: str = ""


@dataclass(frozen=True)
class Ssh:
    """A kernel on a host that `ssh` reaches."""

    host: str
    python: str = "python3"  # there
    folder: str = ""  # there, in which cells run; the home where it is not given
    setup: str = ""  # lines of shell before the kernel
    extra: tuple[str, ...] = ()  # flags of ssh


Where = Kernelspec | Slurm | Jupyter | Ssh


@dataclass(frozen=True)
class Place:
    """A named place. `definition` is what stands in the configuration, without the name."""

    name: str
    where: Where
    definition: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """The kind of place, by its name in the configuration."""
        return next(iter(self.definition))

    @property
    def token_env(self) -> str:
        """The variable that holds its token, '' for none: no kernel is to have it."""
        return self.where.token_env if isinstance(self.where, Jupyter) else ""

    @property
    def attaches(self) -> bool:
        """Whether it is one kernel that runs there anyway, and is not stepper's to end."""
        return isinstance(self.where, Jupyter) and self.where.kernel_id != ""

    @property
    def is_pythons(self) -> bool:
        """Whether its kernel speaks Python for certain."""
        server = (
            self.where.kernel != Jupyter.kernel
            if isinstance(self.where, Jupyter)
            else False
        )
        return not (self.is_local or self.attaches or server)

    @property
    def is_local(self) -> bool:
        """Whether its kernel is a process of this machine."""
        return isinstance(self.where, Kernelspec)


class WrongPlaceError(ValueError):
    """What is wrong with a definition; `path` are the keys that lead to it."""

    def __init__(self, path: tuple[str, ...], why: str, hint: str = "") -> None:
        super().__init__(why)
        self.path, self.why, self.hint = path, why, hint


def _text(value: Any) -> bool:
    return isinstance(value, str) and value.strip() != "" and value.isprintable()


def _lines(value: Any) -> bool:
    return (
        isinstance(value, str)
        and "\0" not in value
        and value == value.encode("utf-8", "replace").decode()
    )


def _matches(pattern: re.Pattern[str]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and bool(pattern.fullmatch(value))


def _flags(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _texts(names: re.Pattern[str]) -> Callable[[Any], bool]:
    def fits(name: Any, text: Any) -> bool:
        return (
            _matches(names)(name)
            and isinstance(text, str)
            and (text == "" or text.isprintable())
        )

    return lambda value: (
        isinstance(value, dict) and all(fits(*pair) for pair in value.items())
    )


def _headers(value: Any) -> bool:
    return _texts(HEADER)(value) and all(text.isascii() for text in value.values())


def _whole(value: Any) -> bool:
    return (
        isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31
    )


def _memory(value: Any) -> bool:
    return _whole(value) or _matches(MEMORY)(value)


def _seconds(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 <= value <= 86400
    )


def _url(value: Any) -> bool:
    try:
        parts = urlsplit(value) if _text(value) and " " not in value else None
        return bool(
            parts
            and parts.scheme in ("http", "https")
            and parts.hostname
            and parts.port != 0
        )
    except ValueError:  # a port that is none
        return False


def _outside(value: Any) -> bool:
    return _text(value) and value.startswith(("/", "~"))


TEXT, SHELL, FLAGS = (
    ("a text in one line", _text),
    ("lines of shell", _lines),
    ("a list of flags", _flags),
)
COUNT = ("a whole number above 0", _whole)
SPEC_NAME = ("the name of a kernelspec", _matches(SPEC))
# none that a pull can change
OUTSIDE = ("an absolute path, or one that begins with ~", _outside)

RULES: dict[
    str, tuple[Callable[..., Where], dict[str, tuple[str, Callable[[Any], bool]]]]
] = {
    "slurm": (
        Slurm,
        {
            **dict.fromkeys(("partition", "account", "gres", "python"), TEXT),
            # … a number of seconds to YAML, and one of minutes to sbatch
            "time": (
                'a walltime in quotes, such as "4:00:00" (without them YAML reads a number)',
                _matches(WALLTIME),
            ),
            "mem": ("an amount of memory such as 32G", _memory),
            "cpus": COUNT,
            "setup": SHELL,
            "extra": FLAGS,
            "jobid": COUNT,
            "folder": OUTSIDE,
            "address": (
                "`auto`, `hostname` or the name of an interface",
                _matches(NAME),
            ),
            "via": ("`ssh`", lambda value: value == "ssh"),
            "queue_seconds": ("a number of seconds, a day at most", _seconds),
        },
    ),
    "jupyter": (
        Jupyter,
        {
            "url": ("a URL that begins with http:// or https://", _url),
            "kernel": SPEC_NAME,
            "kernel_id": ("a kernel's id", _matches(SPEC)),
            "token_env": ("the name of an environment variable", _matches(VARIABLE)),
            "token_file": OUTSIDE,
            "token_command": TEXT,
            "env": ("a mapping of variables' names to texts", _texts(VARIABLE)),
            "headers": ("a mapping of headers' names to texts in ASCII", _headers),
            "ca_file": OUTSIDE,
        },
    ),
    "ssh": (
        Ssh,
        {
            "host": ("a host as ssh takes it, such as box or me@box", _matches(HOST)),
            **dict.fromkeys(("python", "folder"), TEXT),
            "setup": SHELL,
            "extra": FLAGS,
        },
    ),
}
KINDS = (*RULES, "kernelspec")
REQUIRED = {"jupyter": ("url",), "ssh": ("host",)}
TOKENS = ("token_env", "token_file", "token_command")
UNSHOWN = (*TOKENS, "env", "headers")  # somebody's token may stand there by mistake
SECRET = "does not belong in a file that others read"  # noqa: S105  # what is said of one
NAME_IT = "name where it is: " + ", ".join(TOKENS)
SECRET_HEADERS = ("authorization", "proxy-authorization", "cookie")
# what a job that is there has already
ALLOCATED = ("partition", "account", "time", "mem", "cpus", "gres")


def read(told: Any) -> dict[str, Place]:
    """Return the places that `kernels:` names; raise WrongPlaceError."""
    if not isinstance(told, dict):
        raise WrongPlaceError(
            (), "must be a mapping of names to places", "kernels: {r: {kernelspec: ir}}"
        )
    return {name: _place(name, definition) for name, definition in told.items()}


def _place(name: Any, told: Any) -> Place:
    path = (str(name)[:100],)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise WrongPlaceError(
            path, "is no name for a place: letters, digits, `_`, `.` and `-`"
        )
    if name == LOCAL:
        raise WrongPlaceError(
            path,
            f"`{LOCAL}` is the project's interpreter on this machine: take another name",
        )
    if not isinstance(told, dict) or len(told) != 1:
        raise WrongPlaceError(path, f"must hold one kind of place: {', '.join(KINDS)}")
    kind, given = next(iter(told.items()))
    if kind == "kernelspec":
        if not SPEC_NAME[1](given):
            raise WrongPlaceError(
                (*path, kind), f"must be {SPEC_NAME[0]}, not {reprlib.repr(given)}"
            )
        return Place(name, Kernelspec(given), told)
    if kind not in RULES:
        raise _unknown((*path, str(kind)[:100]), KINDS)
    return Place(name, _where(str(kind), given, (*path, str(kind))), told)


def _where(kind: str, given: Any, path: tuple[str, ...]) -> Where:
    made, rules = RULES[kind]
    if not isinstance(given, dict):
        raise WrongPlaceError(path, "must be a mapping; its keys: " + ", ".join(rules))
    for key, value in given.items():
        if kind == "jupyter" and key == "token":
            raise WrongPlaceError((*path, key), f"a token {SECRET}", NAME_IT)
        if key not in rules:
            raise _unknown((*path, str(key)[:100]), rules)
        expected, allowed = rules[key]
        if not allowed(value):
            found = f", not {reprlib.repr(value)}" if key not in UNSHOWN else ""
            raise WrongPlaceError((*path, key), f"must be {expected}{found}")
    for key in REQUIRED.get(kind, ()):
        if key not in given:
            raise WrongPlaceError(path, f"lacks `{key}`, {rules[key][0]}")
    _sensible(kind, given, path)
    return made(
        **{
            key: tuple(value) if isinstance(value, list) else value
            for key, value in given.items()
        }
    )


def _sensible(kind: str, given: Mapping[str, Any], path: tuple[str, ...]) -> None:
    """Raise WrongPlaceError where keys that are right by themselves do not go together."""
    if kind == "slurm":
        for key in ALLOCATED:
            if "jobid" in given and key in given:
                raise WrongPlaceError(
                    (*path, key),
                    f"job {given['jobid']} has its {key} already: leave one of them out",
                )
        for flag in given.get("extra", ()):
            if flag.partition("=")[0] in OURS:
                raise WrongPlaceError(
                    (*path, "extra"), f"`{flag}` is stepper's own to say"
                )
    if kind == "jupyter":
        if len(both := [key for key in TOKENS if key in given]) > 1:
            raise WrongPlaceError(
                (*path, both[1]), f"`{both[0]}` says already where the token is"
            )
        parts = urlsplit(given["url"])
        if parts.username or parts.password or "token=" in parts.query:
            raise WrongPlaceError(
                (*path, "url"), f"a token or password {SECRET}", NAME_IT
            )
        if parts.query or parts.fragment:
            raise WrongPlaceError(
                (*path, "url"),
                "is where the server begins: nothing stands behind `?` or `#`",
            )
        for header in given.get("headers", ()):
            if header.lower() in SECRET_HEADERS:
                raise WrongPlaceError(
                    (*path, "headers", header),
                    f"what proves who you are {SECRET}",
                    NAME_IT,
                )


def _unknown(
    path: tuple[str, ...], known: Mapping[str, Any] | tuple[str, ...]
) -> WrongPlaceError:
    near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.4)
    hint = f"the nearest is `{near[0]}`" if near else "known: " + ", ".join(known)
    return WrongPlaceError(path, "is not known here", hint)


def about(place: Place) -> str:
    """Return what a place is, in a few words; nothing secret."""
    match place.where:
        case Kernelspec(kernelspec=spec):
            return f"the kernelspec {spec} on this machine"
        case Slurm(jobid=job) if job:
            return f"a step in the SLURM job {job}"
        case Slurm() as slurm:
            asked = {
                "partition": slurm.partition,
                "time": slurm.time,
                "mem": slurm.mem,
                "cpus": slurm.cpus,
            }
            told = {**asked, "gres": slurm.gres, "account": slurm.account}
            return ", ".join(
                [
                    "a SLURM job",
                    *(f"{key} {value}" for key, value in told.items() if value),
                ]
            )
        case Jupyter(url=url, kernel=kernel, kernel_id=attached):
            return (
                f"the kernel {attached} of {url}"
                if attached
                else f"the kernelspec {kernel} of {url}"
            )
        case Ssh(host=host, python=python):
            return f"{python} on {host} over ssh"
