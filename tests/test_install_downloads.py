"""install.sh downloads only the packages in pyproject.toml and their dependencies.

It can reach only an index and a proxy on loopback, which record all requests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.conftest import ROOT, mark_nightly
from tests.test_install import bin_folder, environ, find_uv, forward

KERNELS = "ipykernel"  # packages for a new .venv of the project


def normalize_name(name: str) -> str:
    """Return the normalized name of a project or wheel."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", name)[0]).lower()


def list_documented_packages() -> list[str]:
    """Return the dependencies and build requirements in pyproject.toml."""
    lists = re.findall(
        r"^(?:requires|dependencies) = \[(.*?)\]$",
        (ROOT / "pyproject.toml").read_text(),
        re.S | re.M,
    )
    results = [name for entry in lists for name in re.findall(r'"([^"]+)"', entry)]
    assert {"hatchling", "pyzmq"} <= set(map(normalize_name, results))
    return results


class Index(ThreadingHTTPServer):
    """A package index of local wheels, and a blocking proxy; both record requests."""

    def __init__(self, house: Path) -> None:
        self.requested_projects: set[str] = set()  # projects
        self.other_requests: list[str] = []  # requests that do not belong to an index
        self.wheels: dict[str, list[Path]] = {}
        for wheel in house.iterdir():
            self.wheels.setdefault(normalize_name(wheel.name.split("-")[0]), []).append(
                wheel
            )
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        folder, _, name = self.path.strip("/").partition("/")
        if folder == "simple" and name:
            self.server.requested_projects.add(normalize_name(name))
            links = [
                f'<a href="/wheels/{item.name}">{item.name}</a>'
                for item in self.server.wheels.get(normalize_name(name), ())
            ]
            return self.reply(200 if links else 404, "".join(links).encode())
        results = [
            wheel
            for wheels in self.server.wheels.values()
            for wheel in wheels
            if self.path == f"/wheels/{wheel.name}"
        ]
        if results:
            return self.reply(200, results[0].read_bytes(), "application/octet-stream")
        return self.refuse()

    def refuse(self) -> None:
        self.server.other_requests.append(f"{self.command} {self.path}")
        self.reply(403, b"")

    do_HEAD = do_GET  # noqa: N815  # uv looks at a wheel before it takes it
    do_CONNECT = do_POST = refuse  # noqa: N815

    def reply(self, status: int, body: bytes, kind: str = "text/html") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Download the wheels of all dependencies, with this machine's pip settings."""
    folder = tmp_path_factory.mktemp("house")
    requests = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--only-binary",
        ":all:",
        "--dest",
        str(folder),
    ]
    result = subprocess.run(
        [*requests, *list_documented_packages(), KERNELS],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture
def index(house: Path) -> Iterator[Index]:
    with Index(house) as index:
        thread = threading.Thread(target=index.serve_forever, args=(0.05,))
        thread.start()
        yield index
        index.shutdown()
        thread.join()


def make_isolated_environment(index: Index, path: Path, home: Path) -> dict[str, str]:
    """Return an environment without other indexes, caches or network access."""
    env = environ(path, HOME=str(home))
    data = {
        name: value
        for name, value in env.items()
        if not re.match("(PIP|UV|XDG)_|.*_proxy$", name, re.I)
    }
    data |= {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": f"{index.url}/simple",
        "PIP_NO_CACHE_DIR": "1",
    }
    data |= {
        "UV_NO_CONFIG": "1",
        "UV_DEFAULT_INDEX": f"{index.url}/simple",
        "UV_CACHE_DIR": str(home / "uv"),
    }
    data |= dict.fromkeys(
        ("http_proxy", "https_proxy", "all_proxy", "HTTPS_PROXY", "ALL_PROXY"),
        index.url,
    )
    return data | {
        "no_proxy": "127.0.0.1",
        "NO_PROXY": "127.0.0.1",
        "XDG_STATE_HOME": str(home / "state"),
    }


@pytest.mark.nightly
@pytest.mark.parametrize("installer", mark_nightly(["pip", "uv"], "uv"))
def test_only_documented_packages_are_requested(
    index: Index, tmp_path: Path, installer: str
) -> None:
    commands = {"python3": forward()}
    if installer == "uv":
        uv = find_uv()
        if uv is None:
            pytest.skip("uv is neither next to this Python nor on the PATH")
        commands["uv"] = f'exec {uv} "$@"'
    for name in ("repo", "home"):
        (tmp_path / name).mkdir()
    env = make_isolated_environment(
        index, bin_folder(tmp_path / "bin", **commands), tmp_path / "home"
    )
    result = subprocess.run(
        [ROOT / "install.sh", tmp_path / "repo", "--allow"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, (
        f"{result.stderr}\n{index.other_requests}\n{index.requested_projects - set(index.wheels)}"
    )
    assert "ipykernel added" in result.stdout
    assert index.other_requests == []
    assert (
        {normalize_name(name) for name in (*list_documented_packages(), KERNELS)}
        <= index.requested_projects
        <= set(index.wheels)
    )


@pytest.mark.nightly
def test_undocumented_requests_are_detected(index: Index, tmp_path: Path) -> None:
    """The record contains requests for another package and another index."""
    env = make_isolated_environment(index, Path(os.environ["PATH"]), tmp_path) | {
        "PIP_DISABLE_PIP_VERSION_CHECK": "1"
    }
    for packages in (
        ["nothing-like-it"],
        ["click", "--index-url", "https://elsewhere.invalid/simple"],
    ):
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--retries",
            "0",
            "--dest",
            str(tmp_path),
        ]
        assert (
            subprocess.run(
                [*pip, *packages], env=env, capture_output=True, check=False
            ).returncode
            != 0
        )
    assert index.requested_projects == {"nothing-like-it"}
    assert index.other_requests == ["CONNECT elsewhere.invalid:443"]


@pytest.mark.nightly
def test_no_interpreter_is_downloaded(index: Index, tmp_path: Path) -> None:
    uv = find_uv()
    if uv is None:
        pytest.skip("uv is neither next to this Python nor on the PATH")
    env = make_isolated_environment(
        index, bin_folder(tmp_path / "bin", uv=f'exec {uv} "$@"'), tmp_path
    )
    # the only Python that it finds
    env |= {
        "UV_PYTHON_PREFERENCE": "only-managed",
        "UV_PYTHON_INSTALL_DIR": str(tmp_path / "none"),
    }
    (tmp_path / "repo").mkdir()
    result = subprocess.run(
        [ROOT / "install.sh", tmp_path / "repo"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1 and "uv python install" in result.stderr
    assert index.other_requests == [] and not os.listdir(tmp_path / "repo")
