"""The command `notebook-stepper install`, which runs install.sh without a clone.

For uvx, pipx and pip, the files of the wheel are copied into a temporary checkout for
install.sh. This distribution is packed as a wheel and installed into stepper's
environment: the files that uvx downloaded may be deleted later, and the package index
is not needed again. This module uses only the standard library.
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
from stepper.install.install_file_io import PACKAGE, find_assets

NAME = "notebook-stepper"
SHELL = "/bin/sh"
USAGE = f"""{NAME} install [TARGET] [OPTIONS]    set up stepper in a repository
{NAME} uninstall [TARGET]            remove what install added
{NAME} install --help                show the options
{NAME} verify NOTEBOOK...            check that notebooks reproduce; installs nothing
{NAME} verify --help                 show the options"""
# The metadata that installers do not write themselves.
METADATA = ("METADATA", "WHEEL", "entry_points.txt", "licenses")


def main() -> int:
    """Run the command of `sys.argv` and return the exit code."""
    if not sys.argv[1:]:
        sys.stderr.write(f"{USAGE}\n")
        return UsageError.exit_code
    command, *arguments = sys.argv[1:]
    if command == "--version":
        sys.stdout.write(f"{NAME} {__version__}\n")
        return 0
    if command in ("-h", "--help"):
        sys.stdout.write(f"{USAGE}\n")
        return 0
    try:
        if command == "uninstall":
            return install([*arguments, "--uninstall"])
        if command == "install":
            return install(arguments)
        raise UsageError(
            f"unknown command {command!r}: use `install`, `uninstall` or `verify`",
            f"{NAME} --help",
        )
    except (StepperError, OSError) as error:
        sys.stderr.write(f"{NAME}: {error}\n")
        return getattr(error, "exit_code", 1)
    except KeyboardInterrupt:  # install.sh was interrupted too
        return 130  # a shell's exit code after SIGINT


def install(arguments: list[str]) -> int:
    """Run install.sh with arguments; return the exit code.

    Raises:
        UsageError: The arguments contain `--editable`, but there is no checkout.
        StepperError: The installed files can't be packed as a wheel.
    """
    # An editable installation uses its checkout.
    if not (PACKAGE / "assets").is_dir():
        command = [SHELL, str(PACKAGE.parent / "install.sh"), *arguments]
        return subprocess.run(command, check=False).returncode
    if "--editable" in arguments:
        raise UsageError(
            "--editable needs a checkout of stepper",
            "clone stepper's repository, then run ./install.sh --editable in the clone",
        )
    environ = {
        **os.environ,
        "STEPPER_WAY": format_repeat_command(),
        "STEPPER_PYTHON": str(getattr(sys, "_base_executable", "")),
    }
    if is_temporary_environment():
        _remove_from_path(environ)
    with tempfile.TemporaryDirectory(prefix="stepper-install-") as folder:
        create_checkout(Path(folder))
        command = [SHELL, f"{folder}/install.sh", *arguments]
        return subprocess.run(command, env=environ, check=False).returncode


def _remove_from_path(environ: dict[str, str]) -> None:
    """Remove this environment from PATH and VIRTUAL_ENV in `environ`.

    The environment may be deleted later.
    """
    own_folder = os.path.join(sys.prefix, "bin")
    folders = environ.get("PATH", "").split(os.pathsep)
    other_folders = [folder for folder in folders if folder != own_folder]
    environ["PATH"] = os.pathsep.join(other_folders)
    if environ.get("VIRTUAL_ENV") == sys.prefix:
        del environ["VIRTUAL_ENV"]


def is_temporary_environment() -> bool:
    """Return whether this environment is in a cache, such as of `uvx` or `pipx run`."""
    folders = Path(sys.prefix).parents
    return any((folder / "CACHEDIR.TAG").exists() for folder in folders)


def format_repeat_command() -> str:
    """Return the shell command that repeats the installation.

    The command uses uvx, `pipx run` or the path of this program.
    """
    if not is_temporary_environment():
        return f"{shlex.quote(os.path.abspath(sys.argv[0]))} install"
    text = metadata.distribution(NAME).read_text("direct_url.json") or "{}"
    source = format_source(json.loads(text))
    is_pipx = Path(sys.prefix, "pipx_metadata.json").exists()
    runner = "pipx run" if is_pipx else "uvx"
    if not source:
        return f"{runner} {NAME} install"
    option = "--spec" if is_pipx else "--from"
    return f"{runner} {option} {shlex.quote(source)} {NAME} install"


def format_source(direct_url: dict[str, object]) -> str:
    """Return the path or URL from which the package was installed.

    `direct_url` is the content of direct_url.json (PEP 610). Return an empty string for
    an installation from a package index.
    """
    url = str(direct_url.get("url", ""))
    vcs_info = direct_url.get("vcs_info")
    if isinstance(vcs_info, dict):
        revision = vcs_info.get("requested_revision")
        suffix = f"@{revision}" if revision else ""
        return f"{vcs_info.get('vcs')}+{url}{suffix}"
    if url.startswith("file:"):
        return unquote(urlsplit(url).path)
    return url


def create_checkout(folder: Path) -> None:
    """Create a checkout for install.sh that contains this distribution as a wheel."""
    ignored = shutil.ignore_patterns("assets", "__pycache__")
    shutil.copytree(PACKAGE, folder / "stepper", ignore=ignored)
    shutil.copytree(find_assets("hooks").parent, folder, dirs_exist_ok=True)
    build_wheel(folder / ".wheel")


def build_wheel(folder: Path) -> None:
    """Pack the installed distribution as a wheel in `folder`, which is created.

    Raises:
        StepperError: The installation has no list of its files.
    """
    distribution = metadata.distribution(NAME)
    name = f"notebook_stepper-{distribution.version}"
    metadata_folder = f"{name}.dist-info"
    record_lines = []
    folder.mkdir()
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as wheel:
        for file in distribution.files or ():
            if not _is_in_wheel(file, metadata_folder):
                continue
            content = Path(str(file.locate())).read_bytes()
            wheel.writestr(file.as_posix(), content)
            record_lines.append(_format_record_line(file.as_posix(), content))
        record_path = f"{metadata_folder}/RECORD"
        # RECORD lists itself without a hash and a size.
        record = "".join([*record_lines, f"{record_path},,\n"])
        wheel.writestr(record_path, record)
    if not record_lines:
        raise StepperError(
            "this installation has no list of its files",
            f"pip install --force-reinstall {NAME}",
        )


def _format_record_line(name: str, content: bytes) -> str:
    """Return the line of a file in RECORD: its name, hash and size."""
    digest = hashlib.sha256(content).digest()
    # The format of wheels requires base64 without padding.
    encoded_digest = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    return f"{name},sha256={encoded_digest},{len(content)}\n"


def _is_in_wheel(file: metadata.PackagePath, metadata_folder: str) -> bool:
    """Return whether an installed file belongs in the wheel.

    `metadata_folder` is the name of the distribution's .dist-info folder.
    """
    folder = file.parts[0]
    if folder == "stepper":
        return "__pycache__" not in file.parts
    return folder == metadata_folder and file.parts[1] in METADATA


if __name__ == "__main__":
    sys.exit(main())
