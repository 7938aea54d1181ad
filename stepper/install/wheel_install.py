"""`notebook-stepper install`, by uvx, pipx or pip: what install.sh does, without a clone. Stdlib only.

A checkout is laid out of what the wheel carries for as long as install.sh runs: there is one way to install. stepper's
environment in the project gets this very distribution, packed again: what uvx made may be gone tomorrow, and no index
is asked for another one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from stepper import __version__
from stepper.common.errors import StepperError, UsageError
from stepper.install.install_files import PACKAGE, find_assets

NAME, SHELL = "notebook-stepper", "/bin/sh"
USAGE = f"""{NAME} install [TARGET] [OPTIONS]    sets a repository up; `{NAME} install --help` tells the rest
{NAME} uninstall [TARGET]            removes what that added, and only that"""
# of the metadata, what is no note of an installer's
INFO = ("METADATA", "WHEEL", "entry_points.txt", "licenses")


def main() -> int:
    """Do what the words of the command line say; return the exit code."""
    verb, *words = sys.argv[1:] or [""]
    if verb in ("-h", "--help", "--version"):
        sys.stdout.write(
            f"{NAME} {__version__}\n" if verb == "--version" else f"{USAGE}\n"
        )
        return 0
    try:
        if verb not in ("install", "uninstall"):
            raise UsageError(
                f"{verb or 'no command'}: `install` and `uninstall` are what there is",
                f"{NAME} --help",
            )
        return install([*words, "--uninstall"] if verb == "uninstall" else words)
    except (StepperError, OSError) as error:
        sys.stderr.write(f"{NAME}: {error}\n")
        return getattr(error, "exit_code", 1)
    except KeyboardInterrupt:  # install.sh had it too, and is gone
        return 130


def install(words: list[str]) -> int:
    """Run install.sh; return its exit code."""
    # installed from a checkout that is used as it is
    if not (PACKAGE / "assets").is_dir():
        return subprocess.run(
            [SHELL, PACKAGE.parent / "install.sh", *words], check=False
        ).returncode
    if "--editable" in words:
        raise UsageError(
            "--editable needs a checkout of stepper",
            "git clone it, then ./install.sh --editable",
        )
    environ = {
        **os.environ,
        "STEPPER_WAY": format_repeat_command(),
        "STEPPER_PYTHON": str(getattr(sys, "_base_executable", "")),
    }
    if is_temporary_environment():  # its Python is on the PATH, and goes with it
        own = os.path.join(sys.prefix, "bin")
        environ["PATH"] = os.pathsep.join(
            at for at in environ.get("PATH", "").split(os.pathsep) if at != own
        )
        if environ.get("VIRTUAL_ENV") == sys.prefix:
            del environ["VIRTUAL_ENV"]
    with tempfile.TemporaryDirectory(prefix="stepper-install-") as folder:
        create_checkout(Path(folder))
        return subprocess.run(
            [SHELL, f"{folder}/install.sh", *words], env=environ, check=False
        ).returncode


def is_temporary_environment() -> bool:
    """Tell whether this environment lies in a cache, as those of `uvx` and `pipx run` do."""
    return any(
        (folder / "CACHEDIR.TAG").exists() for folder in Path(sys.prefix).parents
    )


def format_repeat_command() -> str:
    """Return the command that does this again, as a shell takes it: uvx, pipx run, or the path of this one."""
    if not is_temporary_environment():
        return f"{shlex.quote(os.path.abspath(sys.argv[0]))} install"
    pipx = Path(sys.prefix, "pipx_metadata.json").exists()
    source = format_source(
        json.loads(metadata.distribution(NAME).read_text("direct_url.json") or "{}")
    )
    given = f"{'--spec' if pipx else '--from'} {shlex.quote(source)} " if source else ""
    return f"{'pipx run' if pipx else 'uvx'} {given}{NAME} install"


def format_source(direct: dict[str, object]) -> str:
    """Return what was asked for by its place: a file, a folder, a URL; "" for the index."""
    url, vcs = str(direct.get("url", "")), direct.get("vcs_info")
    if isinstance(vcs, dict):
        return f"{vcs.get('vcs')}+{url}" + (
            f"@{vcs['requested_revision']}" if vcs.get("requested_revision") else ""
        )
    return unquote(urlsplit(url).path) if url.startswith("file:") else url


def create_checkout(folder: Path) -> None:
    """Make the checkout that install.sh wants, with this distribution as a wheel beside it."""
    shutil.copytree(
        PACKAGE,
        folder / "stepper",
        ignore=shutil.ignore_patterns("assets", "__pycache__"),
    )
    shutil.copytree(find_assets("hooks").parent, folder, dirs_exist_ok=True)
    build_wheel(folder / ".wheel")


def build_wheel(folder: Path) -> None:
    """Pack what is installed as the wheel that it came from; raise StepperError where it is not known what that was."""
    found = metadata.distribution(NAME)
    name, record = f"notebook_stepper-{found.version}", ""
    info = f"{name}.dist-info"
    folder.mkdir()
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as wheel:
        for file in found.files or ():
            ours = (
                "__pycache__" not in file.parts
                if file.parts[0] == "stepper"
                else file.parts[0] == info
            )
            if ours and (file.parts[0] != info or file.parts[1] in INFO):
                content = Path(str(file.locate())).read_bytes()
                digest = (
                    base64.urlsafe_b64encode(hashlib.sha256(content).digest())
                    .rstrip(b"=")
                    .decode()
                )
                record += f"{file.as_posix()},sha256={digest},{len(content)}\n"
                wheel.writestr(file.as_posix(), content)
        wheel.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    if not record:
        raise StepperError(
            "this installation has no list of its files",
            f"pip install --force-reinstall {NAME}",
        )


if __name__ == "__main__":
    sys.exit(main())
