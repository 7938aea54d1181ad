"""`stepper view` in a real browser: live updates, safety, and no effect on the daemon."""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from stepper.common import wire_format
from stepper.common.paths import Paths
from stepper.hook import daemon_client
from stepper.install import trust
from stepper.policy import journal_events
from stepper.policy.changed_cells import hash_source
from stepper.policy.model import Fault, Outcome, Verdict
from stepper.web.access_control import PAGE_POLICY, ViewServer
from stepper.web.daemon_client import DaemonClient
from stepper.web.project_notebook_list import NotebookList
from stepper.web.watch_command import render
from tests.chromium import Browser, Page, wait_until
from tests.conftest import Notebook, Project, code, reuse_project
from tests.environments import environment

COMMAND = [sys.executable, "-c", "from stepper.cli.main import main; main()", "view"]


class View:
    """A process of `stepper view`."""

    def __init__(self, project: Project, *arguments: str, **environ: str) -> None:
        self.output = (project.folder / "said").open("w+")
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=project.folder,
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=self.output,
            env={**os.environ, **environ},
        )
        wait_until(
            lambda: "Ctrl-C" in self.text() or self.process.poll() is not None,
            self.text,
        )
        self.address = re.findall(r"http://\S+", self.text())[0]
        self.port, self.key = re.fullmatch(
            r"http://127\.0\.0\.1:(\d+)/\?key=([\w-]{22,})", self.address
        ).groups()
        self.cookie = f"stepper-{self.port}={self.key}"

    def text(self) -> str:
        return Path(self.output.name).read_text()

    def ask(
        self, path: str, method: str = "GET", **headers: str | None
    ) -> http.client.HTTPResponse:
        """Send a request like the page, with other headers (None: without the header)."""
        data = {"Host": f"127.0.0.1:{self.port}", "Cookie": self.cookie}
        data |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection(
            "127.0.0.1", int(self.port), timeout=120
        )
        connection.putrequest(method, path, skip_host=True)
        for name, value in data.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        response.body = (
            response.read()
            if "event-stream" not in response.headers.get("Content-Type", "")
            else b""
        )
        connection.close()
        return response

    def close(self) -> None:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(120) == 0, self.text()
        self.output.close()


@pytest.fixture
def project(module_project: Project) -> Iterator[Project]:
    yield from reuse_project(module_project)


@pytest.fixture(scope="module")
def view(module_project: Project) -> Iterator[View]:
    view = View(module_project, "--no-browser")
    yield view
    view.close()
    assert view.text().count("\n") == 2, view.text()  # it printed only its address


@pytest.fixture
def page(browser: Browser, view: View) -> Iterator[Page]:
    """A page with the cookie. It must have no errors and no requests to other hosts."""
    page = browser.page()
    page.size(1280)
    page.go(view.address)
    page.until(
        f"location.href === 'http://127.0.0.1:{view.port}/' && document.querySelector('#shelf')"
    )
    yield page
    assert page.errors() == []
    other_requests = {
        url
        for url in page.requests()
        if not url.startswith((f"http://127.0.0.1:{view.port}/", "data:", "about:"))
    }
    assert other_requests == set()
    page.close()


def show(page: Page, view: View, notebook: Notebook) -> str:
    """Open a notebook on the page; return its name."""
    name = str(notebook.path.relative_to(notebook.project.folder))
    page.go(f"http://127.0.0.1:{view.port}/?notebook={name}")
    page.until(
        f"document.querySelector('#facts') && document.querySelector('#facts').innerText.includes({json.dumps(name)})"
    )
    return name


# --- the door -------------------------------------------------------------------------


def test_key_becomes_a_cookie_and_leaves_the_address(view: View) -> None:
    answer = view.ask(f"/?key={view.key}&notebook=a%20b.ipynb", Cookie=None)
    assert (answer.status, answer.headers["Location"]) == (303, "/?notebook=a+b.ipynb")
    name, *flags = [part.strip() for part in answer.headers["Set-Cookie"].split(";")]
    assert name == view.cookie
    assert {"httponly", "samesite=strict", "path=/"} == {flag.lower() for flag in flags}
    # The browser does not send a strict cookie here.
    by_link = view.ask(f"/?key={view.key}", Cookie=None, Sec_Fetch_Site="cross-site")
    assert by_link.status == 200
    assert b'http-equiv="refresh" content="0;url=/"' in by_link.body
    assert view.key.encode() not in by_link.body
    assert len(view.key) * 6 >= 128
    # With the cookie, too, so that the key does not stay in the address.
    assert view.ask(f"/?key={view.key}").status == 303
    assert view.ask("/?key=wrong").status == 403


@pytest.mark.parametrize(
    ("status", "path", "headers"),
    [
        (403, "/", {"Cookie": None}),
        (403, "/", {"Cookie": "stepper-1=x"}),
        (403, "/?key=", {"Cookie": None}),
        (403, "/?key=%ff%00", {"Cookie": None}),
        (403, "/events", {"Cookie": None}),
        (403, "/view.js", {"Cookie": None}),
        (403, "/nothing", {"Cookie": None}),
        (421, "/", {"Host": "evil.example:80"}),
        (421, "/", {"Host": "127.0.0.1"}),
        (
            421,
            "/?key=KEY",
            {"Host": "evil.example", "Cookie": None},
        ),  # DNS rebinding
        (403, "/", {"Origin": "http://evil.example"}),
        (403, "/", {"Origin": "null"}),
        (403, "/?key=KEY", {"Origin": "http://127.0.0.1:1", "Cookie": None}),
        (400, "/run?run=%FF", {}),
        (404, "/nothing", {}),
        (404, "/view.css/../../server.py", {}),
        (404, "/cell?notebook=../../etc/passwd&cell=a", {}),
        (404, "/output?notebook=a%00.ipynb&cell=a&n=0", {}),
        (404, "/run?notebook=/etc/passwd&run=1", {}),
    ],
)
def test_unauthorized_requests_are_refused(
    view: View, status: int, path: str, headers: dict[str, str | None]
) -> None:
    answer = view.ask(path.replace("KEY", view.key), **headers)
    assert answer.status == status
    assert answer.headers["Content-Security-Policy"] == PAGE_POLICY
    assert "Set-Cookie" not in answer.headers
    assert view.key.encode() not in answer.body


@pytest.mark.parametrize(
    "method",
    ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "CONNECT", "BREW"],
)
def test_server_is_read_only(view: View, method: str) -> None:
    assert view.ask("/", method).status == 405
    assert view.ask(f"/?key={view.key}", method, Cookie=None).status in (403, 405)


def test_response_headers(view: View) -> None:
    for path in ("/", "/view.js", "/view.css", "/nothing"):
        headers = view.ask(path).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; ")
        assert "frame-ancestors 'none'" in policy and "unsafe" not in policy
        assert "Server" not in headers
    same_origin = view.ask("/", Origin=f"http://127.0.0.1:{view.port}")
    assert (
        same_origin.status == view.ask("/", Host=f"localhost:{view.port}").status == 200
    )
    # no resource of another host
    assert b"http" not in same_origin.body.replace(b"http-equiv", b"")
    assert b"<script src=" in same_origin.body and b"style=" not in same_origin.body


def test_server_listens_on_loopback_and_key_is_in_no_command_line(
    view: View, project: Project
) -> None:
    process = psutil.Process(view.process.pid)
    assert {
        (item.laddr.ip, item.status)
        for item in process.net_connections("inet")
        if item.status == "LISTEN"
    } == {("127.0.0.1", "LISTEN")}
    command_lines = [
        " ".join(process.info["cmdline"] or ())
        for process in psutil.process_iter(["cmdline"])
    ]
    assert [line for line in command_lines if view.key in line] == []
    for path in (project.folder / ".stepper").rglob("*"):
        assert not path.is_file() or view.key.encode() not in path.read_bytes(), path


def test_browser_opens_a_private_redirect_file(
    project: Project, tmp_path: Path
) -> None:
    opener = tmp_path / "opener"
    opener.write_text(
        f'#!/bin/sh\nstat -c \'%a %U\' "${{1#file://}}" > {tmp_path}/mode\ncat "${{1#file://}}" > {tmp_path}/file\necho "$1" > {tmp_path}/told\n'
    )
    opener.chmod(0o755)
    view = View(project, BROWSER=str(opener))
    wait_until(lambda: (tmp_path / "told").exists() and (tmp_path / "told").read_text())
    lead = Path((tmp_path / "told").read_text().strip().removeprefix("file://"))
    assert view.key not in (tmp_path / "told").read_text()
    assert (tmp_path / "mode").read_text().split()[0] == "600"
    assert lead.parent.stat().st_mode & 0o077 == 0
    assert (
        f"url=http://127.0.0.1:{view.port}/?key={view.key}"
        in (tmp_path / "file").read_text()
    )
    view.ask(f"/?key={view.key}", Cookie=None)
    wait_until(lambda: not lead.exists())  # the browser has opened it
    view.close()


@pytest.mark.nightly
def test_leftovers_of_a_killed_view_are_removed(
    project: Project, tmp_path: Path
) -> None:
    opener = tmp_path / "opener"
    opener.write_text("#!/bin/sh\nexit 0\n")  # opens no page
    opener.chmod(0o755)
    view = View(project, BROWSER=str(opener))
    wait_until(
        lambda: (
            (leads := [*Path(project.paths.runtime).glob("view-*.html")])
            and view.key in leads[0].read_text()
        )
    )
    view.process.kill()
    view.process.wait()
    (leftover,) = Path(project.paths.runtime).glob("view-*.html")
    view.output.close()
    View(project, "--no-browser").close()
    assert not leftover.exists()


@pytest.mark.nightly
def test_port_in_use_is_reported_with_a_fix(project: Project) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        result = project.stepper("view", "--no-browser", "--port", port, check=1)
    assert f"port {port} of 127.0.0.1 is not available: " in result.stderr
    assert "stepper view" in result.stderr.splitlines()[1]
    assert project.stepper("view", "nowhere", check=2).stderr.startswith(
        "stepper: there is no notebook 'nowhere'"
    )
    assert "99999" in project.stepper("view", "--port", "99999", check=2).stderr


def test_default_http_port_is_omitted_from_host_names(tmp_path: Path) -> None:
    paths = Paths(str(tmp_path))
    face = ViewServer(paths, NotebookList(paths), "")
    face.port = 80
    assert face.hosts == ["127.0.0.1", "localhost"]


def test_second_user_is_refused_even_with_the_key(view: View) -> None:
    if os.geteuid() != 0 or not sys.platform.startswith("linux"):
        pytest.skip("only root can become another user")
    from tests.test_second_user import OTHER, as_user

    def get_statuses() -> list[int]:
        return [
            view.ask("/").status,
            view.ask(f"/?key={view.key}", Cookie=None).status,
            view.ask("/events").status,
        ]

    # The view and its readers run as root; the system reports the user of a connection.
    assert as_user(OTHER, get_statuses) == [403, 403, 403]

    def by_six() -> str:
        with socket.socket(socket.AF_INET6) as link:
            link.connect(("::ffff:127.0.0.1", int(view.port)))
            link.sendall(
                f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{view.port}\r\nCookie: {view.cookie}\r\n\r\n".encode()
            )
            return link.recv(20).decode()

    assert as_user(OTHER, by_six).startswith("HTTP/1.1 403 ")
    assert view.ask("/").status == 200


# --- live -----------------------------------------------------------------------------


def test_live_job_on_the_page(project: Project, view: View, page: Page) -> None:
    notebook = project.new(
        "Load :: three rows", "Look", "Train", "Ask", problem="How wet is Seattle?"
    )
    # The page shows the current notebook without a request.
    page.until("document.querySelector('#title').textContent === 'How wet is Seattle?'")
    assert (
        page.js(
            "[...document.querySelectorAll('#plan .sign')].map(each => each.className)"
        )
        == ["sign pending"] * 4
    )
    notebook.insert(
        "## Rows\n\nThey are `made` here, **three** of them.\n\n2. b\n3. c",
        kind="markdown",
    )
    notebook.insert("rows = [1, 2, 3]\nprint('\\x1b[32mgreen\\x1b[0m plain')\nrows")
    page.until(
        "document.querySelector('.cell.done .outputs .f2')?.textContent === 'green'"
    )
    assert page.js("document.querySelector('.prose code').textContent") == "made"
    assert (
        page.js("document.querySelector('.prose ol[start=\"2\"]').innerText") == "b\nc"
    )
    failing, _ = notebook.insert("1/0")
    # the report
    page.until(
        "document.querySelector('.cell.failed .foot pre')?.textContent.includes('ZeroDivisionError')"
    )
    # The page opens the report even if it arrives after the end of the run.
    opened = page.js(
        """(() => {
            const card = document.querySelector('.cell.failed').card;
            const last = state.status.last;
            card.reportedRun = undefined;
            return [null, last].map((number) => {
                state.status.last = number;
                card.drawHead();
                return card.foot.querySelector('details').open;
            });
        })()"""
    )
    assert opened == [False, True]
    notebook.replace(failing, "print('mended')")
    page.until(
        "document.querySelector('#plan li:nth-child(2)').innerText.includes('1 retry')"
    )
    page.until(
        "document.querySelectorAll('svg .run.bad').length === 1 && document.querySelectorAll('svg .again').length === 1"
    )

    gate = project.folder / "notebooks" / "gate"
    source = f"import os, time\nn = 0\nwhile not os.path.exists({str(gate)!r}):\n    n += 1\n    print('epoch', n, flush=True)\n    time.sleep(0.05)\nprint('over')"
    runs = threading.Thread(target=notebook.insert, args=(source,))
    runs.start()
    page.until(
        "!document.querySelector('#now').hidden && /epoch \\d/.test(document.querySelector('#now .last').textContent)"
    )
    page.until(
        "/epoch \\d+/.test(document.querySelector('.cell.running .outputs')?.textContent || '')"
    )
    assert page.js("document.querySelector('#now .clock').textContent").endswith(
        " of 30 s"
    )
    assert page.js(
        "document.querySelector('#plan [aria-current]').textContent"
    ).startswith("▶Train")
    assert page.js("document.title").startswith("▶ 2/4")
    before = page.js(
        "Number(/epoch (\\d+)/.exec(document.querySelector('#now .last').textContent)[1])"
    )
    page.until(
        f"Number(/epoch (\\d+)/.exec(document.querySelector('#now .last').textContent)[1]) > {before}"
    )
    gate.write_text("")
    runs.join()
    page.until(
        "document.querySelector('#now').hidden && document.querySelectorAll('.cell.done').length === 3"
    )

    notebook.insert("raise RuntimeError('STOP: may I drop the duplicates?')")
    page.until("document.querySelector('.stop')")
    # The page has scrolled to the running cell.
    page.until(
        "document.querySelector('.cell.failed').getBoundingClientRect().top < innerHeight"
    )
    commands = page.js(
        "[...document.querySelectorAll('.stop .ways button')].map(each => each.textContent)"
    )
    assert commands == ["stepper continue", "stepper fix", "stepper skip"]
    assert "The agent asks: may I drop the duplicates?" in page.js(
        "document.querySelector('.stop').innerText"
    )
    assert page.js("document.querySelector('#announce').textContent").startswith(
        "Stopped: "
    )
    project.stepper("skip", "not needed")
    page.until(
        "!document.querySelector('.stop') && document.querySelector('#state').textContent === 'complete'"
    )
    assert "RuntimeError" in page.js(
        "document.querySelector('#ran') && (document.querySelector('#history').open = true, new Promise(done => setTimeout(() => done(document.querySelector('#ran').innerText), 100)))"
    )


@pytest.mark.nightly
def test_event_appears_within_half_a_second(
    project: Project, view: View, page: Page
) -> None:
    """The test asserts the order of events; the server's interval bounds the delay."""
    notebook = project.new("A", problem="Quick")
    page.until("document.querySelector('#title').textContent === 'Quick'")
    took = []
    for number in range(3):
        page.js(
            f"window.seen = new Promise(done => {{ const look = () => document.querySelector('#cells').textContent.includes('here-{number}-is') ? done(Date.now()) : setTimeout(look, 5); look(); }}); 0"
        )
        notebook.insert(f"print('here', {number}, 'is', sep='-')")
        ended = project.json("history")[-1]
        at = time.time()
        took.append(page.js("window.seen") / 1000 - at)
        assert ended["outcome"] == "ok"
    assert min(took) < 0.5, took


@pytest.mark.nightly
def test_daemon_is_killed_and_restarted(
    project: Project, view: View, page: Page
) -> None:
    notebook = project.new("A", "B", problem="Killed")
    notebook.insert("x = 1")
    page.until(
        "document.querySelectorAll('.cell.done').length === 1 && document.querySelector('#facts').innerText.includes('idle')"
    )
    project.kill_daemon()
    # Without a daemon, no kernel is reported; the journal contains the rest.
    page.until("document.querySelector('#facts').innerText.includes('none')")
    assert page.js("document.querySelector('.cell h3').textContent") == "1. A"
    notebook.insert("print('again', x + 1)")
    page.until(
        "[...document.querySelectorAll('.cell.done .outputs')].some(each => each.innerText.includes('again 2'))"
    )


@pytest.mark.nightly
def test_missing_notebook_is_reported_with_existing_ones(
    project: Project, view: View, page: Page
) -> None:
    notebook = project.new("A", problem="One that is there")
    existing = str(notebook.path.relative_to(project.folder))
    assert view.ask("/?notebook=notebooks/nosuch.ipynb").status == 404
    assert view.ask(f"/?notebook={existing}").status == 200
    page.go(f"http://127.0.0.1:{view.port}/?notebook=notebooks/nosuch.ipynb")
    page.until(
        "document.querySelector('.empty h2')?.textContent === 'The notebook notebooks/nosuch.ipynb does not exist'"
    )
    page.until(
        f"[...document.querySelectorAll('.empty a')].some(each => each.textContent === {existing!r})"
    )
    page.events.clear()  # a browser counts 404 as an error
    notebook.path.rename(notebook.path.with_name("nosuch.ipynb"))
    page.until("document.querySelector('#facts').innerText.includes('nosuch')")


@pytest.mark.nightly
def test_followed_cell_stays_visible_while_the_page_grows(
    project: Project, view: View, browser: Browser
) -> None:
    """On a page that was just opened, the cells above are loaded and move the cell down."""
    notebook = project.new(
        *(f"Part {number}" for number in range(6)), problem="A long one"
    )
    for number in range(6):
        notebook.insert(f"## Part {number}\n\n" + "text " * 100, kind="markdown")
        notebook.insert("print('line\\n' * 40)")
    page = browser.page()
    page.size(1280)
    page.go(view.address)
    page.until("document.querySelector('#state')?.textContent === 'complete'")
    gate = notebook.path.with_name("gate")
    source = "import os, time\nwhile not os.path.exists('gate'):\n    print('goes on', flush=True)\n    time.sleep(0.05)"
    runs = threading.Thread(target=notebook.insert, args=(source,))
    runs.start()
    is_visible = "(each => each && each.textContent.includes('goes on') && each.getBoundingClientRect().bottom <= innerHeight)"
    page.until(f"{is_visible}(document.querySelector('.cell.running .outputs'))")
    assert "Part 5" in page.js("document.querySelector('#plan a.here').innerText")
    page.click("#title")  # the page does not scroll while the user interacts
    page.js("scrollTo({top: 0, behavior: 'instant'})")
    page.until("document.querySelector('.cell.done .outputs pre')")
    page.js("new Promise(done => setTimeout(done, 500))")
    assert page.js("scrollY") < 200
    gate.touch()
    runs.join()
    page.js("setFollowing(false)")
    page.js("document.querySelector('.cell').scrollIntoView()")
    page.until("document.querySelector('#plan a.here')?.innerText.includes('Part 0')")
    page.send("Emulation.setFocusEmulationEnabled", enabled=True)
    page.send(
        "Browser.grantPermissions",
        permissions=["clipboardReadWrite", "clipboardSanitizedWrite"],
        browserContextId=page.context,
    )
    page.until("document.querySelector('.cell .source code')")
    page.js("document.querySelector('.cell .copy').focus()")
    page.key("Enter", 13)
    page.until("document.querySelector('.cell .copy.copied')")
    assert page.js("navigator.clipboard.readText()") == "print('line\\n' * 40)"
    page.close()


@pytest.mark.nightly
def test_notebook_deleted_while_open(project: Project, view: View, page: Page) -> None:
    notebook = project.new("A", problem="Going")
    notebook.insert("print('it was here')")
    show(page, view, notebook)
    page.until("document.querySelector('.cell.done')")
    notebook.path.rename(notebook.path.with_name("gone_elsewhere.ipynb"))
    page.until("document.querySelector('#state').textContent === 'the file is missing'")
    page.until(
        "[...document.querySelectorAll('#shelf a')].some(each => each.title.includes('gone_elsewhere'))"
    )
    page.go(page.js("location.href"))  # reopened: the journal lists the runs
    page.until(
        "document.querySelector('.cell.done .source')?.innerText.includes('it was here')"
    )


@pytest.mark.nightly
def test_stale_cells_and_the_last_verify(
    project: Project, view: View, page: Page
) -> None:
    notebook = project.new("A", "B", problem="Stale")
    first, _ = notebook.insert("rows = 1")
    notebook.insert("twice = 2 * rows\nprint(rows)")
    notebook.insert("print(twice)")
    project.stepper("verify")
    page.until(
        "/verified\\s*just now: reproduces/.test(document.querySelector('#facts').innerText)"
    )
    notebook.replace(first, "rows = 2")
    page.until("document.querySelector('.cell .stale')?.innerText.includes('rows')")
    page.until(
        "/stepper run( \\S+)? --stale/.test(document.querySelector('#notices').innerText)"
    )
    page.until(
        "document.querySelector('#notices').innerText.includes('1 cell is stale, 1 more indirectly')"
    )
    page.until(
        "[...document.querySelectorAll('.cell .stale')].at(-1)?.innerText.includes('indirectly stale: reads `twice` from cell 2')"
    )
    page.until("document.querySelector('#facts').innerText.includes('changed since')")
    project.stepper("run", "--stale")
    page.until("!document.querySelector('.cell .stale')")


@pytest.mark.nightly
def test_two_viewers_with_different_notebooks(
    project: Project, view: View, page: Page, browser: Browser
) -> None:
    new_notebook = project.new("A", problem="The one")
    new_notebook.insert("print('of the one')")
    other = project.new("B", problem="The other")
    second = browser.page()
    second.go(view.address)
    second.until("document.querySelector('#title')?.textContent === 'The other'")
    show(page, view, new_notebook)
    assert page.js("document.querySelector('#shelf [aria-current]').title") == str(
        new_notebook.path.relative_to(project.folder)
    )
    other.insert("print('of the other')")
    second.until("document.querySelector('#cells').innerText.includes('of the other')")
    assert "of the other" not in page.js("document.querySelector('#cells').innerText")
    second.close()


# --- nothing of a notebook's becomes more than a text ---------------------------------

EVIL = (
    "<img src=x onerror=hacked()><script>hacked()</script><svg onload=hacked()></svg>"
)


def test_notebook_content_cannot_affect_the_page(
    project: Project, view: View, page: Page
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as evil:
        evil.settimeout(0.2)
        evil_url = f"http://127.0.0.1:{evil.getsockname()[1]}"
        loads = f'<img src="{evil_url}/i"><iframe src="{evil_url}/f"></iframe><link rel=stylesheet href="{evil_url}/c"><meta http-equiv=refresh content="0;url={evil_url}/m"><style>@import "{evil_url}/s";</style><object data="{evil_url}/o"></object><form action="{evil_url}/p"><button autofocus>x</button></form>'
        html = f"{EVIL}{loads}<script>fetch('{evil_url}/x'); parent.postMessage('hacked', '*'); top.location = '{evil_url}/t'</script><a href='{evil_url}/a' target=_top>a</a>"
        svg = f'<svg xmlns="http://www.w3.org/2000/svg" onload="hacked()" width="50" height="50"><script>fetch("{evil_url}/v")</script><image href="{evil_url}/w"/><foreignObject><iframe xmlns="http://www.w3.org/1999/xhtml" src="{evil_url}/y"/></foreignObject></svg>'
        outputs = [
            {
                "output_type": "stream",
                "name": "stdout",
                "text": f"{EVIL}\x1b[31m{EVIL}\x1b[0m\x1b]8;;javascript:hacked()\x07link\x1b]8;;\x07",
            },
            {
                "output_type": "error",
                "ename": EVIL,
                "evalue": EVIL,
                "traceback": [EVIL],
            },
            *(
                {"output_type": "display_data", "metadata": {}, "data": data}
                for data in (
                    {"text/html": html},
                    {"image/svg+xml": svg},
                    {
                        "text/markdown": f"# {EVIL}\n\n[a](javascript:hacked()) `{EVIL}`\n\n![x]({evil_url}/k)"
                    },
                    {
                        "text/html": "<table><tr><td>&lt;img src=x onerror=hacked()&gt;</td></tr></table>"
                    },
                    {"text/plain": EVIL},
                    {"text/latex": EVIL},
                    {"application/json": {"a": EVIL}},
                    {"application/javascript": "hacked()"},
                    {EVIL: EVIL},
                    {"image/png": EVIL},
                    {
                        "application/vnd.plotly.v1+json": {
                            "data": [{"y": [1, 2], "name": EVIL}, {"y": [2]}],
                            "layout": {"title": EVIL},
                        }
                    },
                )
            ),
        ]
        cells = [
            {
                "cell_type": "markdown",
                "id": "m",
                "metadata": {},
                "source": f"# {EVIL}\n\n{html}\n\n[x](javascript:hacked())",
            },
            {
                "cell_type": "code",
                "id": '"><img onerror=hacked()>',
                "metadata": {},
                "source": f"{EVIL} # {EVIL}",
                "execution_count": 1,
                "outputs": outputs,
            },
        ]
        steps = [{"id": 1, "title": EVIL, "criterion": EVIL, "kind": "step"}]
        notebook = project.notebook(
            f"{EVIL.replace('/', '')[:60]}.ipynb",
            cells,
            stepper={"problem": EVIL, "steps": steps},
        )
        page.js(
            "window.hacked = () => { window.was = 1 }; addEventListener('message', () => { window.was = 1 })"
        )
        name = str(notebook.path.relative_to(project.folder))
        page.until(
            f"[...document.querySelectorAll('#shelf a')].some(each => each.title === {json.dumps(name)})"
        )
        page.js(
            f"[...document.querySelectorAll('#shelf a')].find(each => each.title === {json.dumps(name)}).click()"
        )
        page.until(
            f"document.querySelector('#title')?.textContent.startsWith('<img') && document.querySelectorAll('.cell .outputs > *').length === {len(outputs)}"
        )
        page.js(
            "window.hacked = () => { window.was = 1 }; addEventListener('message', () => { window.was = 1 }); document.querySelector('iframe').scrollIntoView()"
        )
        page.until(
            "document.querySelector('iframe').getBoundingClientRect().height > 100"
        )
        page.js("new Promise(done => setTimeout(done, 1500))")
        with contextlib.suppress(TimeoutError):
            # A browser may connect in advance, but must send no request.
            while True:
                connection, _ = evil.accept()
                connection.settimeout(1)
                with connection, contextlib.suppress(TimeoutError):
                    assert connection.recv(200) == b""
        assert page.js("window.was") is None
        assert page.js("location.host") == f"127.0.0.1:{view.port}"
        count = "document.querySelectorAll('script, #cells svg, [onerror], [onload], a[href^=javascript]').length"
        assert page.js(count) == 1  # the page's own script
        frame = page.js(
            "(f => [f.getAttribute('sandbox'), f.contentDocument === null])(document.querySelector('iframe'))"
        )
        assert frame == ["", True]  # has an opaque origin
        raw = view.ask(
            page.js("document.querySelector('iframe').src.replace(location.origin, '')")
        )
        assert raw.headers["Content-Security-Policy"].startswith(
            "sandbox; default-src 'none'; "
        )
        assert "frame-ancestors 'self'" in raw.headers["Content-Security-Policy"]
        # The console reports what was blocked in the frame, but nothing of the page.
        errors = [
            error
            for error in page.errors()
            if "sandbox" not in error
            and "/output" not in error
            and evil_url not in error
        ]
        assert errors == []
        page.events.clear()


# --- large ----------------------------------------------------------------------------

CELLS, MEGABYTES, RUNS = 100, 20, 1000
CLICK = 0.100  # maximum seconds until a click has an effect


def make_large_notebook(project: Project) -> Notebook:
    """Make a notebook of 100 cells and 20 MB, with a journal of 1,000 runs on two days."""
    from PIL import Image

    def png(seed: int) -> str:
        noise = Image.frombytes(
            "L", (560, 560), random.Random(seed).randbytes(560 * 560)
        )
        noise.save(buffer := io.BytesIO(), "png")
        return base64.b64encode(buffer.getvalue()).decode()

    row = "".join(f"<td>{number}</td>" for number in range(40))
    kinds = [
        lambda number: {
            "output_type": "stream",
            "name": "stdout",
            "text": "".join(
                f"epoch {line} of {number}: loss {1 / (line + 1):.8f}\n"
                for line in range(6000)
            ),
        },
        lambda number: {
            "output_type": "display_data",
            "metadata": {},
            "data": {"image/png": png(number), "text/plain": "<Figure>"},
        },
        lambda number: {
            "output_type": "display_data",
            "metadata": {},
            "data": {
                "text/html": f"<table>{f'<tr>{row}</tr>' * 100}</table>",
                "text/plain": "",
            },
        },
        lambda number: {
            "output_type": "display_data",
            "metadata": {},
            "data": {
                "text/html": f"<section>{'<b>text</b> ' * 10000}</section>",
                "text/plain": "",
            },
        },
    ]
    cells = [
        code(f"# cell {number}\nx = {number}", f"c{number:03}")
        | {"execution_count": number + 1, "outputs": [kinds[number % 4](number)]}
        for number in range(CELLS)
    ]
    notebook = project.notebook("large.ipynb", cells)
    size = notebook.path.stat().st_size
    short = MEGABYTES * 1_000_000 - size
    if short > 0:
        cells[0]["outputs"][0]["text"] += "y" * 80 + "\n"
        cells[0]["outputs"].append(
            {
                "output_type": "stream",
                "name": "stderr",
                "text": ("z" * 79 + "\n") * (short // 80 + 1),
            }
        )
        notebook = project.notebook("large.ipynb", cells)
    journal = Path(project.paths.journals) / "large.jsonl"
    journal.parent.mkdir(parents=True, exist_ok=True)
    with journal.open("w") as stream:
        for run in range(1, RUNS + 1):
            cell, fine = cells[run % CELLS], run % 9 != 0
            at = f"2026-11-{20 + (run > RUNS // 2)}T{8 + run % 500 // 50:02}:{run % 50:02}:00.000Z"
            about = {"run": run, "cell_id": cell["id"], "key": cell["id"]}
            fault = None if fine else Fault("KeyError", "'x'")
            verdict = Verdict.FINE if fine else Verdict.RECOVERABLE
            events = [
                journal_events.RunStarted(**about, at=at, source=cell["source"]),
                journal_events.RunEnded(
                    **about,
                    index=0,
                    step=None,
                    source_hash=hash_source(cell["source"]),
                    started_at=at,
                    duration_s=run % 7,
                    outcome=Outcome.OK if fine else Outcome.ERROR,
                    verdict=verdict,
                    fault=fault,
                ),
            ]
            stream.writelines(json.dumps(event.to_json()) + "\n" for event in events)
    return notebook


@pytest.mark.nightly
def test_hundred_cells_with_20_mb_and_a_thousand_runs(
    project: Project, view: View, page: Page
) -> None:
    notebook = make_large_notebook(project)
    assert notebook.path.stat().st_size >= MEGABYTES * 1_000_000
    show(page, view, notebook)
    page.until(
        f"document.querySelectorAll('.cell').length === {CELLS} && document.querySelector('.cell .outputs pre')"
    )
    # the runs of the last day
    page.until("document.querySelectorAll('svg .run').length === 500")
    assert page.js("document.querySelectorAll('#days button').length") == 2
    most = 0.0
    # scroll through the page like a reader
    for share in (
        0.0,
        0.2,
        0.4,
        0.6,
        0.8,
        1.0,
    ):
        page.js(
            f"scrollTo({{top: document.body.scrollHeight * {share}, behavior: 'instant'}})"
        )
        page.until(
            "[...document.querySelectorAll('.cell')].filter(each => { const at = each.getBoundingClientRect(); return at.bottom > 0 && at.top < innerHeight }).every(each => each.querySelector('.outputs').children.length)"
        )
        page.until("[...document.images].every(each => each.complete)")
        most = max(
            most,
            page.js("performance.memory.usedJSHeapSize") + 0.0,
            float(page.memory()),
        )
    assert most < 200e6, f"{most / 1e6:.0f} MB"
    page.js(
        "scrollTo({top: 0, behavior: 'instant'}); window.long = []; new PerformanceObserver(list => list.getEntries().forEach(each => each.name === 'click' && window.long.push(each.duration))).observe({type: 'event', durationThreshold: 16, buffered: false}); window.clicks = 0; addEventListener('click', () => { window.clicks += 1 })"
    )
    for kind, selector in enumerate(("#theme", "#history summary")):
        page.js("window.long = []")
        for number in range(1, 6):
            page.click(selector)
            page.until(f"window.clicks === {number + 5 * kind}")
            page.js(
                "new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))"
            )
        # The browser reports clicks that were painted after 16 ms or later. The best of
        # five counts, because the machine may be busy.
        delays = page.js("window.long")
        best = min([*delays, *[0] * (5 - len(delays))])
        assert best <= CLICK * 1000, (selector, delays)


# --- for everybody --------------------------------------------------------------------

CONTRAST = """(() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgb = (text) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => { const f = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
  const found = [];
  for (const each of document.querySelectorAll('body *')) {
    const own = [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const box = each.getBoundingClientRect(), style = getComputedStyle(each);
    if (!own || !box.width || style.visibility === 'hidden' || each.closest('.visually-hidden, .skip, option')) continue;
    let behind = [255, 255, 255, 0];
    for (let up = each; up && behind[3] < 255; up = up.parentElement) { const c = rgb(getComputedStyle(up).backgroundColor); if (c[3] === 255) behind = c; else if (c[3] > 0) throw new Error('a mixed background'); }
    if (behind[3] < 255) behind = rgb(matchMedia('(prefers-color-scheme: dark)').matches ? '#000' : '#fff');
    const colour = rgb(each.ownerSVGElement ? style.fill : style.color), [a, b] = [light(colour), light(behind)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05), large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) found.push(`${ratio.toFixed(2)} ${each.tagName}.${each.className.baseVal ?? each.className}: ${each.textContent.trim().slice(0, 40)}`);
  }
  return found;
})()"""
COLOURS = "\n".join(
    f"\x1b[{code}mcolour {code}\x1b[0m"
    for code in (*range(30, 38), *range(90, 98), "38;5;208", "38;2;10;200;30", "1;31")
)


@pytest.mark.nightly
def test_page_is_accessible_in_light_and_dark_on_a_phone_and_by_keyboard(
    project: Project, view: View, page: Page
) -> None:
    notebook = project.new(
        "A step :: that holds",
        "Another",
        "Third",
        problem="A problem whose name is rather long, as they often are when one thinks about it",
    )
    notebook.insert(
        "# A heading\n\nA text with `code`, and a list:\n\n- one\n- two",
        kind="markdown",
    )
    notebook.insert(
        f"import sys\nprint({COLOURS!r})\nprint('warned', file=sys.stderr)\nprint('w' * 3000)\n{{'a': 1}}"
    )
    cell, _ = notebook.insert("1/0")
    notebook.replace(cell, "raise RuntimeError('STOP: may I?')")
    page.until(
        "document.querySelector('.stop') && document.querySelector('.cell.failed .foot pre')"
    )
    page.js(
        "document.querySelectorAll('details').forEach(each => { each.open = true })"
    )
    for scheme in ("light", "dark"):
        page.prefer(prefers_color_scheme=scheme)
        page.until(f"matchMedia('(prefers-color-scheme: {scheme})').matches")
        assert page.js(CONTRAST) == [], scheme
        dark = (
            page.js("getComputedStyle(document.body).backgroundColor")
            == "rgb(20, 21, 24)"
        )
        assert dark == (scheme == "dark")
    # The choice on the page takes precedence over the system's setting.
    page.js("document.querySelector('#theme').click()")
    assert (
        page.js("getComputedStyle(document.body).backgroundColor")
        == "rgb(250, 249, 247)"
    )
    page.size(1280)
    page.prefer(prefers_reduced_motion="reduce")
    assert page.js(
        "[...document.querySelectorAll('*')].every(each => getComputedStyle(each).animationName === 'none')"
    )
    for width in (320, 390, 768):
        page.size(width, 800, phone=True)
        page.until(f"innerWidth === {width}")
        assert page.js("document.documentElement.scrollWidth") <= width
    page.size(1280)

    page.js("document.activeElement.blur(); scrollTo(0, 0)")
    page.key("Tab", 9)
    page.until(
        "document.activeElement.className === 'skip' && document.activeElement.getBoundingClientRect().top >= 0"
    )
    page.key("Enter", 13)
    page.until("document.activeElement.id === 'cells'")
    reached = []
    page.js("document.activeElement.blur(); document.querySelector('.skip').focus()")
    for _ in range(40):
        page.key("Tab", 9)
        reached.append(
            page.js(
                "(each => each.id || each.className || each.closest('[id]')?.id || each.tagName)(document.activeElement)"
            )
        )
        outline = page.js("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none" or reached[-1] in ("BODY", "HTML"), reached[-1]
    assert {"theme", "plan", "shelf", "notices", "source"} <= set(reached), reached
    names = page.js(
        "[...document.querySelectorAll('a, button, summary, iframe, img, [role=region], [role=img], progress')].filter(each => !(each.getAttribute('aria-label') || each.innerText || each.textContent || each.title || each.alt)).map(each => each.outerHTML.slice(0, 80))"
    )
    assert names == []
    assert page.js("document.documentElement.lang") == "en"
    assert page.js("[...document.querySelectorAll('h1')].length") == 1


# --- what it leaves alone -------------------------------------------------------------


@pytest.mark.nightly
def test_empty_project_shows_instructions_and_starts_no_daemon(
    fresh_project: Project, browser: Browser
) -> None:
    view = View(fresh_project, "--no-browser")
    page = browser.page()
    page.go(view.address)
    page.until(
        "document.querySelector('.empty')?.innerText.includes('stepper new \"PROBLEM\"')"
    )
    notebook = fresh_project.notebook("by_hand.ipynb", [code("1 + 1", "a")])
    page.until("document.querySelector('#shelf')?.innerText.includes('by_hand')")
    show(page, view, notebook)
    page.until("document.querySelector('.cell.pending')?.innerText.includes('not run')")
    assert page.errors() == []
    view.close()
    assert not os.path.exists(fresh_project.paths.socket) and not os.path.exists(
        fresh_project.paths.daemon_json
    )
    assert not os.path.exists(fresh_project.paths.journals)
    # The page reports that the view was stopped.
    page.until("document.querySelector('#notices').innerText.includes('stepper view')")
    second_view = View(fresh_project, "--no-browser", "--port", view.port)
    page.events.clear()
    other_page = browser.page(page.context)
    other_page.go(second_view.address)  # as the user who restarts the view
    page.until("!document.querySelector('#notices').innerText.includes('stepper view')")
    second_view.close()
    page.close()


IMPATIENT = """
import sys
from stepper.daemon import server
server.IDLE_SECONDS, server.WATCH_SECONDS = 2.0, 0.2
server.main()
"""


@pytest.mark.nightly
def test_viewer_does_not_keep_the_daemon_alive(fresh_project: Project) -> None:
    notebook = fresh_project.notebook("a.ipynb", [code("1 + 1", "a")])
    with subprocess.Popen(
        [sys.executable, "-I", "-c", IMPATIENT, str(fresh_project.folder)],
        stderr=subprocess.DEVNULL,
    ) as daemon:
        wait_until(lambda: os.path.exists(fresh_project.paths.socket))
        sock = daemon_client.connect(fresh_project.paths)
        about = b"look", b"0.0", b"", os.fsencode(fresh_project.folder), b"{}"
        assert [*daemon_client.exchange(fresh_project.paths, sock, *about)][-1][
            0
        ] == wire_format.STALE
        other = DaemonClient(str(fresh_project.folder))
        poll_count = 0
        while daemon.poll() is None:  # like an open page
            snapshot = other.request_snapshot(
                str(notebook.path.relative_to(fresh_project.folder)),
                0,
                0,
                marks=True,
            )
            poll_count += snapshot is not None
            assert poll_count < 400, "polling prevents the daemon's exit"
            time.sleep(0.05)
        # The daemon exited, although a view of another version was connected.
        assert poll_count > 5 and daemon.returncode == 0
        assert other.request_snapshot(
            "a.ipynb", 0, 0, marks=False
        ) is None and other.error.startswith("No daemon is running")
    assert not [*Path(fresh_project.paths.kernels).rglob("*.json")]


# --- pictures of it, for docs/ (`make pictures`) --------------------------------------

DOCS = Path(__file__).resolve().parent.parent / "docs"
LOAD = "import pandas as pd\nfrom vega_datasets import data\n\nweather = data.seattle_weather()\nprint(f'{len(weather):,} days, {len(weather.columns)} columns')\nweather.head()"
WRONG = "weather['month'] = weather.date.dt.month\nwet = weather.groupby('month')['rain'].mean()"
RIGHT = "weather['month'] = weather.date.dt.month\nwet = weather.groupby('month')['precipitation'].mean()\nwet.round(1).to_frame('mm a day').T"
PLOT = "import matplotlib.pyplot as plt\n\nfigure, axes = plt.subplots(figsize=(8, 3), layout='constrained')\naxes.bar(wet.index, wet, color='#4c6ef5')\naxes.set(title='Seattle: rain by month, 2012–2015', xlabel='month', ylabel='mm a day')\naxes.spines[['top', 'right']].set_visible(False)"
TRAIN = "import os, time\nfor epoch in range(1, 400):\n    print(f'epoch {epoch:3}  loss {1 / epoch ** 0.5:.4f}', flush=True)\n    time.sleep(0.1)\n    if os.path.exists('enough'):\n        break"


def save_screenshot(page: Page, path: Path) -> None:
    """Save a screenshot, and copy it to docs/ if PICTURES is set."""
    from PIL import Image

    page.until("[...document.images].every(each => each.complete)")
    time.sleep(0.4)
    page.picture(path)
    image = Image.open(path).convert("RGB")
    assert len(image.getcolors(1 << 20) or ()) > 100
    image.quantize(
        256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
    ).save(path, optimize=True)
    if os.environ.get("PICTURES"):
        shutil.copy(path, DOCS / path.name)


@pytest.mark.nightly
def test_screenshots_for_the_docs(
    fresh_project: Project, browser: Browser, tmp_path: Path
) -> None:
    """The screenshots show a real session and are copied to docs/ if PICTURES is set."""
    fresh_project.folder.rename(folder := fresh_project.folder.with_name("weather"))
    new_project = Project(folder)
    trust.save_record(
        new_project.paths,
        {
            "python": environment(
                sys.executable, "pandas", "matplotlib", "vega_datasets"
            )
        },
    )
    new_project.compiled, fresh_project.folder, fresh_project.paths = (
        fresh_project.compiled,
        new_project.folder,
        new_project.paths,
    )
    view = View(new_project, "--no-browser")
    page = browser.page()
    page.size(1280, 860)
    page.go(view.address)

    steps = (
        "Load the weather",
        "Rain by month",
        "Plot it",
        "Fit a model :: the loss falls",
        "Drop the outliers",
        "Write the summary",
    )
    notebook = new_project.new(
        *steps, problem="How wet is Seattle, and does it get wetter?"
    )
    notebook.insert(
        "Four years of days, from the package `vega_datasets`.", kind="markdown"
    )
    notebook.insert(LOAD)
    cell, _ = notebook.insert(WRONG)
    notebook.replace(cell, RIGHT)
    notebook.insert(PLOT)
    runs = threading.Thread(target=notebook.insert, args=(TRAIN,))
    runs.start()
    page.until(
        "/epoch +\\d\\d/.test(document.querySelector('.cell.running .outputs')?.textContent || '')"
    )
    page.js(
        "setFollowing(false); scrollTo({top: document.querySelector('.cell.running').offsetTop - 560, behavior: 'instant'})"
    )
    save_screenshot(page, tmp_path / "view.png")
    console = Console(
        record=True,
        width=96,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
    )
    book = NotebookList(new_project.paths).get_view(
        str(notebook.path.relative_to(folder))
    )
    book.refresh("")
    console.print(render(book, 50))
    picture = re.sub(
        r"@font-face \{.*?\}\s*",
        "",
        console.export_svg(title="stepper watch"),
        flags=re.DOTALL,
    )
    assert "url(http" not in picture  # no font of another host
    (tmp_path / "watch.svg").write_text(picture)
    if os.environ.get("PICTURES"):
        shutil.copy(tmp_path / "watch.svg", DOCS / "watch.svg")
    (folder / "notebooks" / "enough").write_text("")
    runs.join()
    notebook.insert(
        "raise RuntimeError('STOP: 3 days have over 50 mm of rain. Shall I drop them, or keep them as they are?')"
    )
    page.until("document.querySelector('.stop')")
    page.js("scrollTo({top: 0, behavior: 'instant'})")
    page.prefer(prefers_color_scheme="dark")
    save_screenshot(page, tmp_path / "view-dark.png")
    page.size(390, 844, phone=True)
    page.js(
        "scrollTo({top: document.querySelector('main').offsetTop, behavior: 'instant'})"
    )
    save_screenshot(page, tmp_path / "view-phone.png")
    assert page.errors() == []
    view.close()
    page.close()
