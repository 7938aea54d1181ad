"""Warnings about shell lines: exit codes, and installations into another interpreter."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepper.diagnosis import shell_warnings
from stepper.diagnosis.in_kernel import install_target
from stepper.diagnosis.project_facts import ProjectEnvironment
from stepper.policy.model import Outcome
from tests.conftest import Project
from tests.environments import environment
from tests.test_kernel_helper import OLD, Lab, old_python, text

AROUND = ProjectEnvironment("/nowhere", search="")


@pytest.fixture(
    scope="module",
    params=["this Python", pytest.param("Python 3.9", marks=pytest.mark.nightly)],
)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Kernels with the newest IPython, and with Python 3.9 and IPython 8."""
    python = old_python() if request.param == "Python 3.9" else sys.executable
    if not python:
        pytest.skip("there is no Python 3.9 on this machine")
    lab = Lab(
        environment(python, *OLD)
        if python != sys.executable
        else environment(python, "ipykernel>=7")
    )
    yield lab
    lab.close()


def list_warnings(lab: Lab, code: str) -> list[str]:
    result = lab.ok(code)
    assert "swallowed" not in result.diagnosis_data
    return shell_warnings.format_command_warnings(
        result.diagnosis_data["commands"], AROUND
    ) + shell_warnings.format_shell_errors(result.outputs)


NOT_FOUND = 'failed with exit code 127; its last output: "'


@pytest.mark.nightly_after(6)
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("!false", ["line 1: `!false` failed with exit code 1"]),
        ("!nonexistent", [f"line 1: `!nonexistent` {NOT_FOUND}"]),
        (
            "x = !echo no; exit 3\ny = 1",
            [
                'line 1: `x = !echo no; exit 3` failed with exit code 3; its last output: "no"'
            ],
        ),
        ("%sx false", ["line 1: `%sx false` failed with exit code 1"]),
        ("!!false", ["line 1: `!!false` failed with exit code 1"]),
        ("%%sx\nfalse", ["line 1: `%%sx` failed with exit code 1"]),
        (
            "%ls /nowhere-at-all",
            ["line 1: `%ls /nowhere-at-all` failed with exit code 2"],
        ),
        (
            "\n\ny = 2\n!seq 5; exit 3\nz = 1",
            [
                'line 4: `!seq 5; exit 3` failed with exit code 3; its last output: "3 / 4 / 5"'
            ],
        ),
        ("!kill -9 $$", ["line 1: `!kill -9 $$` was killed by SIGKILL (exit code -9)"]),
        (
            "!printf '\\033[31mred\\033[0m\\n\\033[0m\\n'; exit 1",
            ['its last output: "red"'],
        ),
        (
            "!true\n!exit 2\n!true\n!exit 3",
            [
                "line 2: `!exit 2` failed with exit code 2",
                "line 4: `!exit 3` failed with exit code 3",
            ],
        ),
        (
            "for i in range(3):\n    !exit 7",
            ["line 2: `!exit 7` failed with exit code 7 (3 times)"],
        ),
        ("%%time\nx = 1\n!false", ["line 3: `!false` failed with exit code 1"]),
        (
            "%%capture\nx = !false",
            ["line 1: `%%capture` failed with exit code 1"],
        ),  # a cell within the cell
        (
            "get_ipython().system('exit 5')",
            ["`get_ipython().system('exit 5')` failed with exit code 5"],
        ),
        (
            "def f(a):\n    !echo {a}; false\nf('local')",
            [
                'line 2: `!echo {a}; false` failed with exit code 1; its last output: "local"'
            ],
        ),
        (
            "%%bash --no-raise-error\nfalse",
            ["line 1: `%%bash --no-raise-error` failed with exit code 1"],
        ),
        (
            "%%script no-such-program\nx",
            ["line 1: `%%script no-such-program` failed with exit code 127"],
        ),
        (
            "%%bash\nnonexistent\necho so",
            [
                'a shell could not run part of its script: "',
                "nonexistent: command not found",
            ],
        ),
    ],
)
def test_failed_shell_line_is_a_warning(
    lab: Lab, code: str, message: list[str]
) -> None:
    warnings = list_warnings(lab, code)
    assert (
        len(warnings) == sum(part.startswith("line") for part in message)
        or len(warnings) == 1
    )
    for part in message:
        assert any(part in line for line in warnings), warnings


@pytest.mark.parametrize(
    "code",
    [
        "!true",
        "x = !echo a",
        "%sx true",
        "%%bash\nfalse || true",
        "%%bash --bg\nfalse",
        "!false || true",
        "1 != 2",
        "import subprocess; subprocess.run('false')",
        "%%time\n1 % 2",
        "%%bash\necho 'a.sh: line 3: not stderr'",
    ],
)
def test_other_shell_lines_give_no_warning(lab: Lab, code: str) -> None:
    assert list_warnings(lab, code) == []


def test_shell_lines_behave_as_without_the_helper(lab: Lab) -> None:
    """Outputs, values, IPython's `_exit_code`, a user-defined `system`, errors."""
    assert text(lab.ok("def f(a):\n    !echo {a} $$-\nf('b')")).split()[0] == "b"
    assert lab.value("_exit_code") == 0
    lab.ok("!exit 9")
    assert lab.value("_exit_code") == 9
    lab.ok("x = !seq 3")
    assert lab.value("[x, x.s, type(x).__name__]") == [
        ["1", "2", "3"],
        "1 2 3",
        "SList",
    ]
    assert (
        lab.value(
            "'system' in vars(get_ipython()) or 'getoutput' in vars(get_ipython())"
        )
        is False
    )
    lab.ok("%%bash --out said\necho a")
    assert lab.value(
        "[said, __import__('asyncio').create_subprocess_exec.__module__]"
    ) == ["a\n", "asyncio.subprocess"]
    lab.ok("seen = []\nget_ipython().system = seen.append")
    assert list_warnings(lab, "!anything {1 + 1}") == []
    assert lab.value("seen") == ["anything {1 + 1}"]
    lab.ok("del get_ipython().system")
    failed = lab.run("%%bash\nexit 4")
    assert (failed.outcome, failed.fault and failed.fault.ename) == (
        Outcome.ERROR,
        "CalledProcessError",
    )
    assert failed.diagnosis_data["commands"] == []  # the error message contains it
    failed = lab.run("%%script ./\nx")  # a folder cannot be executed
    assert failed.fault and failed.fault.ename == "PermissionError"
    assert failed.diagnosis_data["commands"] == []


@pytest.mark.nightly
def test_shell_hook_is_removed_with_the_helper(lab: Lab) -> None:
    lab.ok("!true")
    script = "import IPython.utils._process_common as c, ipykernel.zmqshell as z\nprint(z.system.__module__, c.process_handler.__module__)"
    assert text(lab.ok(script)).split() == ["_stepper_helper", "_stepper_helper"]
    # a helper of another version is loaded
    lab.run("import sys; sys.modules['_stepper_helper'].end()")
    assert text(lab.run(script)).split() == [
        "IPython.utils._process_posix",
        "IPython.utils._process_common",
    ]
    lab.loop.run_until_complete(lab.kernel.shutdown())
    lab.revive()


# --- target of an installation, without executing a program


def python_at(folder: Path, venv: bool = True, system: bool = False) -> str:
    """Make a fake virtual environment and return its interpreter."""
    (folder / "bin").mkdir(parents=True)
    if venv:
        (folder / "pyvenv.cfg").write_text(
            f"include-system-site-packages = {str(system).lower()}\n"
        )
    (folder / "bin/python").write_bytes(b"\x7fELF")
    (folder / "bin/python").chmod(0o755)
    return str(folder / "bin/python")


def program(path: Path, first: str) -> None:
    path.write_text(f"{first}\nexit 1\n")
    path.chmod(0o755)


@pytest.fixture
def kernel_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kernel's environment `own` has no pip; PATH has one of another Python."""
    monkeypatch.setattr(sys, "executable", python_at(tmp_path / "own"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "own"))
    other_python = python_at(tmp_path / "other", venv=False)
    program(tmp_path / "other/bin/pip", f"#!{other_python}")
    program(
        tmp_path / "other/bin/pip3",
        f"#!/bin/sh\n'''exec' \"{other_python}\" \"$0\" \"$@\"\n' '''",
    )
    program(tmp_path / "other/bin/pip3.11", "#!/usr/bin/env python")
    program(tmp_path / "other/bin/conda", f"#!{other_python}")
    program(tmp_path / "other/bin/uv", "\x7fELF")
    monkeypatch.setenv("PATH", f"{tmp_path}/own/bin:{tmp_path}/other/bin:/bin")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "own"))
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("pip install six", ["six"]),
        ("pip install -q six > /dev/null 2>&1", ["six"]),
        ("pip install six 2>/dev/null", ["six"]),
        ("pip3 install -q -U 'six>=1' -i http://x/simple tqdm", ["six>=1", "tqdm"]),
        ("pip3.11 install -r needs.txt", None),  # `env python` is the kernel's
        ("{other}/bin/python -I -m pip --no-input install six", ["six"]),
        ("cd /tmp && FOO=1 {other}/bin/pip install six | tail -1", ["six"]),
        ("{other}/bin/pip install -r needs.txt", ["-r", "needs.txt"]),
        ("echo a\npip install six", ["six"]),
        ("uv pip install --python {other} six", ["six"]),
        ("uv pip install -p {other}/bin/python six", ["six"]),
        ("uv pip install six", None),
        ("VIRTUAL_ENV={other} python -m pip install six", None),
        ("conda install -y -p {other} six", ["six"]),
        ("conda install --prefix={other} six", ["six"]),
        ("conda install -n base six", None),  # only conda knows which environment it is
        ("uv pip install --python={other} six", ["six"]),
        ("uv pip install -p={other}/bin/python six", ["six"]),
        ("pip install git+x#egg=y six  # don't", ["git+x#egg=y", "six"]),
        ("pip download six", None),
        ("pip install --target lib six", None),
        ("pip install --target=lib six", None),
        ("pip install --dry-run six", None),
        ("echo pip install six", None),
        ("python -m pip install six", None),
        ("pip install 'six", None),
    ],
)
def test_install_into_another_interpreter(
    kernel_environment: Path, command: str, expected: list[str] | None
) -> None:
    target = install_target.find_install_target(
        command.replace("{other}", str(kernel_environment / "other")),
        has_succeeded=True,
        lacks_pip=False,
    )
    if expected is None:
        assert target is None
    else:
        into = [
            str(kernel_environment / "other/bin/python"),
            str(kernel_environment / "other/bin/conda"),
        ]
        assert target and (target["wanted"], target["own"]) == (
            expected,
            str(kernel_environment / "own/bin/python"),
        )
        assert target["into"] in into


def test_environment_of_another_project(
    kernel_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VIRTUAL_ENV")
    other_python = python_at(kernel_environment / "shop/.venv")
    (kernel_environment / "shop/notebooks").mkdir()
    monkeypatch.chdir(kernel_environment / "shop/notebooks")
    target = install_target.find_install_target("uv pip install six", True, False)
    assert target and target["into"] == other_python


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        ("", "active"),
        ("-p {other}", "other"),
        ("--prefix {other}", "other"),
        ("--prefix={other}", "other"),
        ("-n base", ""),
        ("--name base", ""),
        ("--name=base", ""),
    ],
)
def test_conda_option_takes_precedence_over_the_active_environment(
    kernel_environment: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: str,
    environment: str,
) -> None:
    python_at(kernel_environment / "active")
    monkeypatch.setenv("CONDA_PREFIX", str(kernel_environment / "active"))
    other = str(kernel_environment / "other")
    command = f"conda install {options.format(other=other)} six"
    target = install_target.find_install_target(command, True, False)
    if not environment:
        assert target is None  # only conda knows the environment of a name
        return
    python = kernel_environment / environment / "bin/python"
    assert target and target["into"] == str(python)


def test_shim_installs_outside_the_kernel_environment(
    kernel_environment: Path,
) -> None:
    program(kernel_environment / "other/bin/pip", "#!/usr/bin/env bash")  # pyenv's
    target = install_target.find_install_target(
        "pip install no-such-distribution", True, False
    )
    assert target and target["into"] == str(kernel_environment / "other/bin/pip")
    # of this process
    assert install_target.find_install_target("pip install pytest", True, False) is None
    # it failed, so the target is unknown
    assert (
        install_target.find_install_target(
            "pip install no-such-distribution", False, False
        )
        is None
    )


def test_environment_with_system_site_packages(
    kernel_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = kernel_environment / "other/bin/python"
    (kernel_environment / "own/bin/python").unlink()
    (kernel_environment / "own/bin/python").symlink_to(base)
    # A link to the same Python has other packages.
    assert install_target.find_install_target("pip install six", True, False)
    (kernel_environment / "own/pyvenv.cfg").write_text(
        "include-system-site-packages = true\n"
    )
    assert install_target.find_install_target("pip install six", True, False) is None


def test_warning_names_both_interpreters_and_the_command(tmp_path: Path) -> None:
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / "uv.lock").touch()
    (tmp_path / "uv").touch(0o755)
    kernel_python = str(tmp_path / ".venv/bin/python")
    fact = {
        "text": "!pip install Six tqdm",
        "line": 2,
        "wanted": ["six", "tqdm>4"],
        "into": "/usr/bin/python3",
        "own": kernel_python,
    }
    assert shell_warnings.format_command_warnings(
        [fact], ProjectEnvironment(str(tmp_path), search=str(tmp_path))
    ) == [
        "line 2: `!pip install Six tqdm` installs packages for /usr/bin/python3, not for this kernel's interpreter"
        f" {kernel_python}; to install for this kernel, run: uv add six 'tqdm>4'"
    ]
    # as in IPython
    assert (
        "failed with exit code 255"
        in shell_warnings.format_command_warnings(
            [{"text": "ssh box", "code": -127}], AROUND
        )[0]
    )
    # any text in a cell
    assert (
        shell_warnings.format_command_warnings([{"text": 1}, "x", None], AROUND)
        == shell_warnings.format_command_warnings("no list", AROUND)
        == []
    )


@pytest.mark.nightly
def test_pip_in_an_environment_without_pip(project: Project, tmp_path: Path) -> None:
    """With a real kernel, reports explain `%pip`, and `!pip` of another Python."""
    lean = tmp_path / "lean"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", lean], check=True)
    site = next((lean / "lib").glob("python*")) / "site-packages"
    (site / "house.pth").write_text(
        subprocess.run(
            [
                environment(sys.executable, "ipykernel>=7"),
                "-c",
                "import site; print(site.getsitepackages()[0])",
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    (site / "pip.py").write_text("raise SystemExit('No module named pip')")
    project.config(f"python: {lean}/bin/python\n")
    project.stepper("trust", "--yes")
    notebook = project.new("Install", "Use")
    response = notebook.insert("%pip install six")[1].text
    assert (
        'Warning: line 1: `%pip install six` failed with exit code 1; its last output: "No module named pip"'
        in response
    )
    assert (
        "; to install for this kernel, run: " in response
        and response.count("six\n") == 1
    )
    assert 'Step 1 of 2 "Install": done' in response
    pip_file = tmp_path / "pip"
    program(pip_file, f"#!{sys.executable}\nraise SystemExit\n'''")
    response = notebook.insert(
        f"!{shlex.quote(str(pip_file))} install six\nraise KeyError('x')"
    )[1].text
    assert (
        f"installs packages for {sys.executable}, not for this kernel's interpreter {lean}/bin/python"
        in response
    )
    assert "Note: line 1: `!" in response  # the cause that the report names
