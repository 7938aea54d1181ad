"""A second user on the machine cannot read or reach anything, and does not interfere."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401  # the other user may not be able to load it later
import contextlib
import json
import os
import shutil
import socket
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stepper.common import hook_paths
from stepper.common.errors import DaemonError
from stepper.common.hook_paths import fnv1a
from stepper.common.paths import Paths
from stepper.daemon import server
from stepper.hook import daemon_client
from tests.conftest import Project

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can become another user"
)
VICTIM, OTHER = 54322, 54321  # user ids that no machine uses


def as_user(uid: int, work: Callable[[], Any], wait: bool = True) -> Any:
    """Run a function in a process of the user and return its result."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python warns about threads, which the child does not use
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reading)
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            with open(writing, "w") as stream:
                json.dump(work(), stream)
            code = 0
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    if not wait:
        os.close(reading)
        return pid
    with open(reading) as stream:
        result = stream.read()
    assert os.waitpid(pid, 0)[1] == 0
    return json.loads(result)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter, so that only stepper restricts access."""
    path = Path(tempfile.mkdtemp(prefix="st-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def open_project(open_folder: Path) -> Iterator[Project]:
    """A project that everyone can read, except for what stepper restricts."""
    new_project = Project(open_folder / "repo")
    yield new_project
    new_project.stepper("shutdown", check=None)
    shutil.rmtree(new_project.paths.runtime, ignore_errors=True)


def list_reachable(tops: list[str]) -> dict[str, list[str]]:
    """Return what this user can list, read, write or connect to, by kind of access."""
    reachable: dict[str, list[str]] = {
        "listed": [],
        "read": [],
        "written": [],
        "connected": [],
    }
    waiting = list(tops)
    while waiting:
        path = waiting.pop()
        with contextlib.suppress(OSError):
            waiting += [os.path.join(path, name) for name in os.listdir(path)]
            reachable["listed"].append(path)
        for flags, access in ((os.O_RDONLY, "read"), (os.O_WRONLY, "written")):
            with contextlib.suppress(OSError):
                os.close(os.open(path, flags | os.O_NONBLOCK))
                if not os.path.isdir(path):
                    reachable[access].append(path)
        with (
            contextlib.closing(socket.socket(socket.AF_UNIX)) as sock,
            contextlib.suppress(OSError),
        ):
            sock.connect(path)
            reachable["connected"].append(path)
    return reachable


def test_second_user_cannot_read_or_connect(
    open_project: Project,
) -> None:
    umask = os.umask(0)
    try:
        notebook = open_project.new("Load")
        notebook.insert("secret = 42\nprint(secret)")
    finally:
        os.umask(umask)
    home, runtime = open_project.paths.home, open_project.paths.runtime
    # by full paths too: a folder without read permission can have search permission
    everything = [str(path) for top in (home, runtime) for path in Path(top).rglob("*")]
    assert (
        any(name.endswith("daemon.sock") for name in everything)
        and len(everything) > 12
    )
    readme = Path(open_project.folder, "README")
    readme.write_text("for all")
    reachable = as_user(
        OTHER,
        lambda: list_reachable(
            [str(open_project.folder / "README"), home, runtime, *everything]
        ),
    )
    assert reachable == {
        "listed": [],
        "read": [str(readme)],
        "written": [],
        "connected": [],
    }
    # the same search finds the socket for its owner
    assert list_reachable([open_project.paths.socket])["connected"]
    assert open_project.json("status")["kernel"]["state"] == "idle"


def test_daemon_rejects_another_user_even_in_an_open_folder(
    open_project: Project,
) -> None:
    open_project.new("Load")
    # A second link in an open folder, because the socket's own folder is private.
    socket_link = Path(open_project.folder).parent / "open.sock"
    os.link(open_project.paths.socket, socket_link)
    socket_link.chmod(0o777)

    def talk() -> str:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as sock:
            sock.settimeout(120)
            sock.connect(str(socket_link))
            try:
                sock.sendall(b"STP1\x01" + (4).to_bytes(8, "big") + b"what")
                return repr(sock.recv(100))
            except ConnectionError:
                return "b''"

    assert as_user(OTHER, talk) == "b''"
    log = Path(open_project.paths.log).read_text()
    assert f"rejected a client: the client belongs to another user (uid {OTHER})" in log


def test_client_sends_nothing_to_socket_of_another_user(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_paths, "RUNTIME_ROOTS", (str(open_folder),))
    (open_folder / "repo").mkdir()
    paths = Paths(str(open_folder / "repo"))
    os.makedirs(paths.runtime)
    os.chown(paths.runtime, OTHER, OTHER)
    listening, ready = os.pipe()

    def squat() -> None:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as sock:
            sock.bind(paths.socket)
            os.chmod(paths.socket, 0o777)
            sock.listen()
            os.write(ready, b"x")
            with contextlib.suppress(OSError):
                connection, _ = sock.accept()
                data = connection.recv(100)
                os.write(ready, b"heard" if data else b"gone")

    pid = as_user(OTHER, squat, wait=False)
    try:
        assert os.read(listening, 1) == b"x"
        with pytest.raises(
            DaemonError, match=f"belongs to another user \\(uid {OTHER}\\)"
        ):
            daemon_client.send_request(paths, b"status", b"{}")
        assert os.read(listening, 10) == b"gone"
        with pytest.raises(DaemonError, match="belongs to another user"):
            paths.create_runtime_folder()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(listening)
        os.close(ready)


# --- names in /tmp that another user has taken ----------------------------------------


def sticky(folder: Path) -> str:
    """Make a sticky folder like /tmp."""
    folder.mkdir()
    folder.chmod(0o1777)
    return str(folder)


@pytest.mark.parametrize("kind", ["folder", "link", "file"])
def test_squatted_name_is_not_used_and_blocks_nothing(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    roots = sticky(open_folder / "tmp"), sticky(open_folder / "var")
    monkeypatch.setattr(hook_paths, "RUNTIME_ROOTS", roots)
    home = open_folder / "repo"
    home.mkdir()
    os.chown(home, VICTIM, VICTIM)
    name = f"stepper-{VICTIM}"

    def squat(root: str) -> Callable[[], None]:
        def make() -> None:
            path = os.path.join(root, name)
            if kind == "folder":
                os.mkdir(path, 0o777)
            elif kind == "link":
                os.symlink(str(home), path)
            else:
                Path(path).touch()

        return make

    def served() -> tuple[str, str, int]:
        """A daemon of the victim and a client that searches for it again."""
        paths = Paths(str(home))
        paths.create_home_folder()

        async def both() -> str:
            serving = server.Daemon(paths)
            task = asyncio.create_task(serving.serve())
            while not (os.path.exists(paths.daemon_json) or task.done()):
                await asyncio.sleep(0.01)
            response = await asyncio.to_thread(
                daemon_client.send_request,
                Paths(str(home)),
                b"status",
                b"{}",
                None,
                False,
            )
            serving.exit_requested.set()
            await task
            return json.loads(response or b"null")["state"]

        return (
            paths.runtime,
            asyncio.run(both()),
            os.lstat(paths.runtime).st_mode & 0o777,
        )

    hash_name = fnv1a(os.fsencode(str(home)))
    expected = [f"{root}/{name}/{hash_name}" for root in roots] + [
        str(home / ".stepper" / "run" / "s")
    ]
    as_user(OTHER, squat(roots[0]))
    assert as_user(VICTIM, served) == [expected[1], "ready", 0o700]
    shutil.rmtree(os.path.join(roots[1], name))
    as_user(OTHER, squat(roots[1]))
    assert as_user(VICTIM, served) == [expected[2], "ready", 0o700]
    for root in roots:  # no file was created there
        path = Path(root, name)
        assert path.lstat().st_uid == OTHER and (
            kind != "folder" or not list(path.iterdir())
        )
    assert as_user(
        OTHER,
        lambda: list_reachable(
            [expected[2], f"{expected[2]}/daemon.sock", str(home / ".stepper")]
        ),
    ) == {
        "listed": [],
        "read": [],
        "written": [],
        "connected": [],
    }


def test_unavailable_socket_names_are_reported(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = sticky(open_folder / "tmp"), sticky(open_folder / "var")
    monkeypatch.setattr(hook_paths, "RUNTIME_ROOTS", roots)
    deep = open_folder / ("deep" * 25)
    deep.mkdir()
    for root in roots:
        as_user(OTHER, lambda root=root: os.mkdir(f"{root}/stepper-0"))
    with pytest.raises(
        DaemonError, match=r"are not folders of this user, .* is too long for a socket"
    ) as refused:
        Paths(str(deep)).create_runtime_folder()
    assert (
        refused.value.hint.startswith("To fix this, remove one of these folders")
        and f"{roots[0]}/stepper-0" in refused.value.hint
    )


def test_clients_use_the_first_folder_owned_by_the_user(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = sticky(open_folder / "tmp"), sticky(open_folder / "var")
    monkeypatch.setattr(hook_paths, "RUNTIME_ROOTS", roots)
    first = Paths(str(open_folder)).runtime
    assert first.startswith(roots[0])
    Path(roots[0], "stepper-0").mkdir(mode=0o700)
    assert Paths(str(open_folder)).runtime == first
    os.chown(Path(roots[0], "stepper-0"), OTHER, OTHER)
    assert Paths(str(open_folder)).runtime.startswith(roots[1])
