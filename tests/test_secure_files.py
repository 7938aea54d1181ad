"""State files are private to the user and are never written through a link."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stepper.common import secure_files, wire_format
from stepper.common.paths import Paths
from stepper.daemon.daemon_log import PrivateLogHandler
from stepper.install import trust
from tests.conftest import Project, code, mark_nightly, text_of

ROOT_ALONE = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can change a file's owner"
)
STRANGER = 54321
FIGURE = """
import base64, sys
from IPython.display import Image, display
display(Image(base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")))
print("ran")
"""


def make_treasure(tmp_path: Path) -> Path:
    path = tmp_path / "treasure"
    path.mkdir()
    return path


def snapshot_folder(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return the mode, time and bytes of each path in a folder."""
    contents = {}
    for path in sorted([folder, *folder.rglob("*")]):
        about = path.lstat()
        contents[str(path)] = (
            about.st_mode,
            about.st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
    return contents


# --- links instead of stepper's files -------------------------------------------------

FILES = (
    "journal/n.jsonl",
    "kernels/n.json",
    "state.json",
    "active",
    "batch",
    "daemon.json",
    "figures/n/0001-1.png",
)


@pytest.mark.nightly
def test_symlinked_files_are_never_written_through(
    project: Project, tmp_path: Path
) -> None:
    notebook, treasure = (
        project.notebook("n.ipynb", [code("1", "a")]),
        make_treasure(tmp_path),
    )
    for number, name in enumerate(FILES):
        path = project.folder / ".stepper" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (treasure / f"{number}.json").write_text("precious\n")
        path.symlink_to(treasure / f"{number}.json")
    before = snapshot_folder(treasure)
    response = notebook.replace("a", FIGURE)
    assert "| ran" in response.text and "Figure 1" in response.text, response.text
    assert (
        "journal/n.jsonl is a symbolic link" in response.text
        and "was renamed to" in response.text
    )
    project.stepper("status")
    project.stepper("restart")
    notebook.batch_end("NotebookEdit")
    project.stepper("shutdown")
    assert snapshot_folder(treasure) == before


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["kernels/n.stderr", "kernels/n.stack"])
def test_kernel_does_not_start_with_symlinked_files(
    project: Project, tmp_path: Path, name: str
) -> None:
    notebook, treasure = (
        project.notebook("n.ipynb", [code("1", "a")]),
        make_treasure(tmp_path),
    )
    (treasure / "bashrc").write_text("precious\n")
    path = project.folder / ".stepper" / name
    path.parent.mkdir(parents=True)
    path.symlink_to(treasure / "bashrc")
    before = snapshot_folder(treasure)
    response = notebook.replace("a", "print('ran')")
    assert (
        "NOT run" in response.text
        and f"{name} is a symbolic link" in response.text
        and f"rm {path}" in response.text
    )
    assert snapshot_folder(treasure) == before
    path.unlink()
    assert "| ran" in notebook.replace("a", "print('ran')").text


@pytest.mark.parametrize(
    "name",
    ["", "journal", "kernels", "figures", "daemon.log", "daemon.lock", "start.lock"],
    ids=lambda n: n or "home",
)
def test_daemon_does_not_start_with_symlinked_files(
    project: Project, tmp_path: Path, name: str
) -> None:
    notebook, treasure = (
        project.notebook("n.ipynb", [code("1", "a")]),
        make_treasure(tmp_path),
    )
    path = project.folder / ".stepper" / name if name else project.folder / ".stepper"
    if name in ("", "journal", "kernels", "figures"):
        (treasure / "n.json").write_text('{"kernel": "precious"}\n')
        if not name:
            shutil.rmtree(path)
        path.symlink_to(treasure)
    else:
        (treasure / "bashrc").write_text("precious\n")
        path.symlink_to(treasure / "bashrc")
    before = snapshot_folder(treasure)
    response = notebook.replace("a", "print('ran')")
    assert (
        "NOT run" in response.text and f"{path} is a symbolic link" in response.text
    ), response.text
    assert f"rm {path}" in response.text
    # also with --force: records behind a link are not removed
    project.stepper("shutdown", check=None)
    assert snapshot_folder(treasure) == before


@pytest.mark.nightly
def test_symlinked_figures_folder_is_unchanged(
    project: Project, tmp_path: Path
) -> None:
    notebook, treasure = (
        project.notebook("n.ipynb", [code("1", "a")]),
        make_treasure(tmp_path),
    )
    for number in range(300):
        (treasure / f"{number:04d}-1.png").touch()
    (project.folder / ".stepper" / "figures").mkdir()
    (project.folder / ".stepper" / "figures" / "n").symlink_to(treasure)
    before = snapshot_folder(treasure)
    response = notebook.replace("a", FIGURE)
    assert (
        "| ran" in response.text
        and "Figure 1: not saved: cannot write the file" in response.text
    )
    assert snapshot_folder(treasure) == before


def test_hard_link_of_own_file_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "bashrc").write_text("precious")
    os.link(tmp_path / "bashrc", tmp_path / "daemon.log")
    with pytest.raises(secure_files.UnsafeFileError, match="2 names"):
        secure_files.open_private(
            str(tmp_path / "daemon.log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        )
    secure_files.replace(str(tmp_path / "daemon.log"), b"own")
    assert (tmp_path / "bashrc").read_text() == "precious"


def swapped_for_a_link(home: Path, treasure: Path) -> None:
    shutil.rmtree(home / "journal")
    (home / "journal").symlink_to(treasure)


def swap_parent_for_symlink(home: Path, treasure: Path) -> None:
    (treasure / "journal").mkdir(mode=0o700)
    shutil.rmtree(home)
    home.symlink_to(treasure)


def move_and_link(home: Path, treasure: Path) -> None:
    shutil.move(home / "journal", treasure)
    (home / "journal").symlink_to(treasure / "journal")


@pytest.mark.parametrize(
    "swap", [swapped_for_a_link, swap_parent_for_symlink, move_and_link]
)
def test_open_folder_is_entered_only_by_its_path(
    tmp_path: Path, swap: Callable[[Path, Path], None]
) -> None:
    home, treasure = tmp_path / "home", make_treasure(tmp_path)
    file = home / "journal" / "n.jsonl"
    for _ in range(2):
        secure_files.replace(str(file), b"own")
    swap(home, treasure)
    before = snapshot_folder(treasure)
    for work in (
        secure_files.read,
        lambda path: secure_files.replace(path, b"new"),
        secure_files.remove,
    ):
        with pytest.raises(secure_files.UnsafeFileError, match="is a symbolic link"):
            work(str(file))
    assert snapshot_folder(treasure) == before


def test_open_folder_may_be_deleted_and_recreated(tmp_path: Path) -> None:
    file = tmp_path / "home" / "journal" / "n.jsonl"
    for moved in (False, True):
        secure_files.replace(str(file), b"own")
        assert secure_files.read(str(file)) == b"own"
        if moved:
            shutil.move(file.parent, tmp_path / "away")
        else:
            shutil.rmtree(file.parent)
        with pytest.raises(FileNotFoundError):
            secure_files.read(str(file))
    secure_files.replace(str(file), b"new")
    assert (file.read_bytes(), (tmp_path / "away" / "n.jsonl").read_bytes()) == (
        b"new",
        b"own",
    )


def test_too_many_open_files_leave_no_descriptor_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "file")

    def fail(descriptor: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    handles = os.listdir("/dev/fd")
    monkeypatch.setattr(os, "dup", fail)
    secure_files.replace(path, b"contents")
    assert secure_files.read(path) == b"contents"
    assert os.listdir("/dev/fd") == handles


def test_number_of_open_folders_is_bounded(tmp_path: Path) -> None:
    for number in range(3 * secure_files.CACHED_FOLDERS):
        secure_files.replace(str(tmp_path / f"{number}" / "file"), b"")
    open_paths = [
        os.path.realpath(f"/proc/self/fd/{name}")
        for name in os.listdir("/proc/self/fd")
    ]
    assert (
        sum(path.startswith(str(tmp_path)) for path in open_paths)
        == secure_files.CACHED_FOLDERS
    )


# --- modes and owners -----------------------------------------------------------------


@pytest.fixture
def _open_to_all() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_open_to_all")
def test_created_files_are_private(project: Project) -> None:
    shutil.rmtree(project.folder / ".stepper")
    (project.folder / ".stepper").mkdir(mode=0o777)
    trust.save_record(project.paths, {"python": sys.executable})
    notebook = project.new("Load", "Plot")
    notebook.insert(FIGURE)
    project.stepper("restart")
    notebook.insert("print(1)")
    assert "ran" in text_of(notebook.raw["cells"][1])
    modes = {}
    for top in (
        project.paths.home,
        project.paths.runtime,
        os.path.dirname(project.paths.runtime),
    ):
        for path in [
            Path(top),
            *(
                Path(top).rglob("*")
                if top != os.path.dirname(project.paths.runtime)
                else ()
            ),
        ]:
            modes[path.name] = stat.S_IMODE(path.lstat().st_mode)
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}
    names = " ".join(modes)
    for expected in (
        "daemon.sock",
        "daemon.log",
        ".jsonl",
        ".png",
        ".stderr",
        ".stack",
        "start.lock",
        "state.json",
    ):
        assert expected in names, names
    sockets = [
        path for path in Path(project.paths.runtime).iterdir() if path.is_socket()
    ]
    assert len(sockets) >= 5  # the daemon's and the kernel's channels


def test_wrong_modes_are_fixed(project: Project) -> None:
    notebook = project.new("Load")
    project.stepper("shutdown")
    home = project.folder / ".stepper"
    spoiled = [
        home,
        home / "journal",
        home / "daemon.log",
        next((home / "journal").glob("*.jsonl")),
    ]
    for path in spoiled:
        path.chmod(0o777)
    os.makedirs(project.paths.runtime, exist_ok=True)
    os.chmod(project.paths.runtime, 0o777)
    notebook.insert("1")
    for path in (*spoiled, Path(project.paths.runtime)):
        assert path.stat().st_mode & 0o077 == 0, path


@ROOT_ALONE
@pytest.mark.parametrize("name", mark_nightly(["", "journal", "daemon.log"], ""))
def test_files_of_another_user_are_refused(project: Project, name: str) -> None:
    notebook = project.new("Load")
    project.stepper("shutdown")
    path = project.folder / ".stepper" / name if name else project.folder / ".stepper"
    os.chown(path, STRANGER, STRANGER)
    response = notebook.insert("print('ran')")[1]
    assert (
        "NOT run" in response.text
        and f"{path} belongs to another user (uid {STRANGER})" in response.text
    )
    assert f"chown -R {os.geteuid()} {path}" in response.text
    os.chown(path, os.geteuid(), os.getegid())
    assert "| ran" in notebook.insert("print('ran')")[1].text


@pytest.mark.usefixtures("_open_to_all")
def test_rotated_log_is_private(tmp_path: Path) -> None:
    handler = PrivateLogHandler(
        str(tmp_path / "daemon.log"), maxBytes=100, backupCount=1
    )
    for _ in range(10):
        handler.emit(logging.LogRecord("x", logging.INFO, "", 0, "y" * 60, None, None))
    handler.close()
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
        "daemon.log": 0o600,
        "daemon.log.1": 0o600,
    }


# --- user of the peer -----------------------------------------------------------------

GETPEEREID = """
#define _GNU_SOURCE
#include <errno.h>
#include <sys/socket.h>
int getpeereid(int s, uid_t *u, gid_t *g) {
    struct ucred c; socklen_t n = sizeof c;
    if (getsockopt(s, SOL_SOCKET, SO_PEERCRED, &c, &n)) return -1;
    *u = c.uid; *g = c.gid; return 0;
}
"""


def test_get_peer_uid() -> None:
    first, second = socket.socketpair()
    with first, second:
        assert (
            wire_format.get_peer_uid(first)
            == wire_format.get_peer_uid(second)
            == os.getuid()
        )


@pytest.mark.skipif(sys.platform != "linux", reason="a library that replaces macOS's")
def test_get_peer_uid_by_getpeereid(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to make a getpeereid")
    (tmp_path / "peer.c").write_text(GETPEEREID)
    library = str(tmp_path / "peer.so")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, str(tmp_path / "peer.c")],
        check=True,
    )
    first, second = socket.socketpair()
    with first, second:
        assert wire_format.get_peer_uid_bsd(first.fileno(), library) == os.getuid()
    with pytest.raises(OSError, match="Bad file descriptor"):
        wire_format.get_peer_uid_bsd(first.fileno(), library)
    with open(os.devnull) as stream, pytest.raises(OSError):
        wire_format.get_peer_uid_bsd(stream.fileno(), library)


def test_runtime_folder_does_not_depend_on_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Paths(str(tmp_path)).runtime
    for name in ("HOME", "TMPDIR", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, "/nowhere")
    assert Paths(str(tmp_path)).runtime == before


def test_file_that_is_deleted_during_the_listing_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "b").touch()
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda handle: ["gone", *listdir(handle)])
    assert sorted(secure_files.list_names(str(tmp_path))) == ["a", "b"]
