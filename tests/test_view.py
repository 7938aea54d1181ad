"""`stepper view` in a real browser: live, safe, readable; and what it must not do to the daemon."""

from __future__ import annotations

import http.client
import json
import os
import re
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

from stepper.web.server import PAGE_POLICY
from tests.chromium import Browser, Page, until
from tests.conftest import Notebook, Project, reused
from tests.npm import Unavailable, unavailable

COMMAND = [sys.executable, "-c", "from stepper.cli.main import main; main()", "view"]


class View:
    """`stepper view`, as a process."""

    def __init__(self, project: Project, *arguments: str, **environ: str) -> None:
        self.said = (project.folder / "said").open("w+")
        self.process = subprocess.Popen(
            [*COMMAND, *arguments], cwd=project.folder, stdin=subprocess.DEVNULL, stdout=self.said, stderr=self.said,
            env={**os.environ, **environ},
        )  # fmt: skip
        until(lambda: "Ctrl-C" in self.text() or self.process.poll() is not None, self.text)
        self.address = re.findall(r"http://\S+", self.text())[0]
        self.port, self.key = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?key=([\w-]{22,})", self.address).groups()
        self.cookie = f"stepper-{self.port}={self.key}"

    def text(self) -> str:
        return Path(self.said.name).read_text()

    def ask(self, path: str, method: str = "GET", **headers: str | None) -> http.client.HTTPResponse:
        """Ask as the page does, but for the headers that are given (None: without)."""
        told = {"Host": f"127.0.0.1:{self.port}", "Cookie": self.cookie}
        told |= {name.replace("_", "-"): value for name, value in headers.items()}
        link = http.client.HTTPConnection("127.0.0.1", int(self.port), timeout=20)
        link.putrequest(method, path, skip_host=True)
        for name, value in told.items():
            if value is not None:
                link.putheader(name, value)
        link.endheaders()
        answer = link.getresponse()
        answer.body = answer.read() if "event-stream" not in answer.headers.get("Content-Type", "") else b""
        link.close()
        return answer

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(20) == 0, self.text()
        self.said.close()


@pytest.fixture
def project(lasting: Project) -> Iterator[Project]:
    yield from reused(lasting)


@pytest.fixture(scope="module")
def view(lasting: Project) -> Iterator[View]:
    made = View(lasting, "--no-browser")
    yield made
    made.end()
    assert made.text().count("\n") == 2, made.text()  # nothing was said but where it is


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        made = Browser()
    except Unavailable as reason:
        unavailable(reason)
    yield made
    made.close()


@pytest.fixture
def page(browser: Browser, view: View) -> Iterator[Page]:
    """A page that has the cookie; at its end nothing had gone wrong on it, and nothing was asked for elsewhere."""
    made = browser.page()
    made.size(1280)
    made.go(view.address)
    made.until(f"location.href === 'http://127.0.0.1:{view.port}/' && document.querySelector('#shelf')")
    yield made
    assert made.errors() == []
    outside = {
        url for url in made.requests() if not url.startswith((f"http://127.0.0.1:{view.port}/", "data:", "about:"))
    }
    assert outside == set()
    made.close()


def show(page: Page, view: View, notebook: Notebook) -> str:
    """Open a notebook on the page; return its name."""
    name = str(notebook.path.relative_to(notebook.project.folder))
    page.go(f"http://127.0.0.1:{view.port}/?notebook={name}")
    page.until(
        f"document.querySelector('#facts') && document.querySelector('#facts').innerText.includes({json.dumps(name)})"
    )
    return name


# --- the door -------------------------------------------------------------------------------------------------


def test_the_key_becomes_a_cookie_and_leaves_the_address(view: View) -> None:
    answer = view.ask(f"/?key={view.key}&notebook=a%20b.ipynb", Cookie=None)
    assert (answer.status, answer.headers["Location"]) == (303, "/?notebook=a+b.ipynb")
    name, *flags = [part.strip() for part in answer.headers["Set-Cookie"].split(";")]
    assert name == view.cookie
    assert {"httponly", "samesite=strict", "path=/"} == {flag.lower() for flag in flags}
    by_link = view.ask(
        f"/?key={view.key}", Cookie=None, Sec_Fetch_Site="cross-site"
    )  # a strict cookie would not go along
    assert by_link.status == 200
    assert b'http-equiv="refresh" content="0;url=/"' in by_link.body
    assert view.key.encode() not in by_link.body
    assert len(view.key) * 6 >= 128


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
        (421, "/?key=KEY", {"Host": "evil.example", "Cookie": None}),  # a name that was rebound to 127.0.0.1
        (403, "/", {"Origin": "http://evil.example"}),
        (403, "/", {"Origin": "null"}),
        (403, "/?key=KEY", {"Origin": "http://127.0.0.1:1", "Cookie": None}),
        (404, "/nothing", {}),
        (404, "/view.css/../../server.py", {}),
        (404, "/cell?notebook=../../etc/passwd&cell=a", {}),
        (404, "/output?notebook=a%00.ipynb&cell=a&n=0", {}),
        (404, "/run?notebook=/etc/passwd&run=1", {}),
    ],
)
def test_who_is_refused(view: View, status: int, path: str, headers: dict[str, str | None]) -> None:
    answer = view.ask(path.replace("KEY", view.key), **headers)
    assert answer.status == status
    assert answer.headers["Content-Security-Policy"] == PAGE_POLICY
    assert "Set-Cookie" not in answer.headers
    assert view.key.encode() not in answer.body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "CONNECT", "BREW"])
def test_it_only_reads(view: View, method: str) -> None:
    assert view.ask("/", method).status == 405
    assert view.ask(f"/?key={view.key}", method, Cookie=None).status in (403, 405)


def test_what_each_answer_says(view: View) -> None:
    for path in ("/", "/view.js", "/view.css", "/nothing"):
        headers = view.ask(path).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; ")
        assert "frame-ancestors 'none'" in policy and "unsafe" not in policy
        assert "Server" not in headers
    own = view.ask("/", Origin=f"http://127.0.0.1:{view.port}")
    assert own.status == view.ask("/", Host=f"localhost:{view.port}").status == 200
    assert b"http" not in own.body.replace(b"http-equiv", b"")  # no resource of anywhere else is named
    assert b"<script src=" in own.body and b"style=" not in own.body


def test_it_listens_on_loopback_alone_and_its_key_is_in_no_command_line(view: View, project: Project) -> None:
    process = psutil.Process(view.process.pid)
    assert {(each.laddr.ip, each.status) for each in process.net_connections("inet") if each.status == "LISTEN"} == {
        ("127.0.0.1", "LISTEN")
    }
    told = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]
    assert [line for line in told if view.key in line] == []
    for path in (project.folder / ".stepper").rglob("*"):
        assert not path.is_file() or view.key.encode() not in path.read_bytes(), path


def test_the_browser_is_led_by_a_file_of_the_users_alone(project: Project, tmp_path: Path) -> None:
    opener = tmp_path / "opener"
    opener.write_text(
        f'#!/bin/sh\nstat -c \'%a %U\' "${{1#file://}}" > {tmp_path}/mode\ncat "${{1#file://}}" > {tmp_path}/file\necho "$1" > {tmp_path}/told\n'
    )
    opener.chmod(0o755)
    view = View(project, BROWSER=str(opener))
    until(lambda: (tmp_path / "told").exists() and (tmp_path / "told").read_text())
    lead = Path((tmp_path / "told").read_text().strip().removeprefix("file://"))
    assert view.key not in (tmp_path / "told").read_text()
    assert (tmp_path / "mode").read_text().split()[0] == "600"
    assert lead.parent.stat().st_mode & 0o077 == 0
    assert f"url=http://127.0.0.1:{view.port}/?key={view.key}" in (tmp_path / "file").read_text()
    view.ask(f"/?key={view.key}", Cookie=None)
    until(lambda: not lead.exists())  # it was followed
    view.end()


def test_a_port_that_is_taken_is_named_with_the_mend(project: Project) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = project.stepper("view", "--no-browser", "--port", port, check=1)
    assert f"port {port} of 127.0.0.1 can't be taken: " in done.stderr
    assert "stepper view" in done.stderr.splitlines()[1]
    assert project.stepper("view", "nowhere", check=2).stderr.startswith("stepper: there is no notebook 'nowhere'")
    assert "99999" in project.stepper("view", "--port", "99999", check=1).stderr


def test_a_second_user_is_refused_even_with_the_key(view: View) -> None:
    if os.geteuid() != 0 or not sys.platform.startswith("linux"):
        pytest.skip("only root becomes another user")
    from tests.test_second_user import OTHER, as_user

    def look() -> list[int]:
        return [view.ask("/").status, view.ask(f"/?key={view.key}", Cookie=None).status, view.ask("/events").status]

    # The view runs as root here, and so do its readers; another user's connection is told from theirs by the system.
    assert as_user(OTHER, look) == [403, 403, 403]
    assert view.ask("/").status == 200


# --- live -----------------------------------------------------------------------------------------------------


def test_a_job_as_it_happens(project: Project, view: View, page: Page) -> None:
    notebook = project.new("Load :: three rows", "Look", "Train", "Ask", problem="How wet is Seattle?")
    page.until("document.querySelector('#title').textContent === 'How wet is Seattle?'")  # the current one, by itself
    assert page.js("[...document.querySelectorAll('#plan .sign')].map(each => each.className)") == ["sign pending"] * 4
    notebook.insert("## Rows\n\nThey are `made` here, **three** of them.", kind="markdown")
    notebook.insert("rows = [1, 2, 3]\nprint('\\x1b[32mgreen\\x1b[0m plain')\nrows")
    page.until("document.querySelector('.cell.done .outputs .f2')?.textContent === 'green'")
    assert page.js("document.querySelector('.prose code').textContent") == "made"
    failing, _ = notebook.insert("1/0")
    page.until(
        "document.querySelector('.cell.failed .foot pre')?.textContent.includes('ZeroDivisionError')"
    )  # the report
    notebook.replace(failing, "print('mended')")
    page.until("document.querySelector('#plan li:nth-child(2)').innerText.includes('1 retry')")
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
    page.until("/epoch \\d+/.test(document.querySelector('.cell.running .outputs')?.textContent || '')")
    assert page.js("document.querySelector('#now .clock').textContent").endswith(" of 30 s")
    assert page.js("document.querySelector('#plan [aria-current]').textContent").startswith("▶Train")
    assert page.js("document.title").startswith("▶ 2/4")
    before = page.js("Number(/epoch (\\d+)/.exec(document.querySelector('#now .last').textContent)[1])")
    page.until(f"Number(/epoch (\\d+)/.exec(document.querySelector('#now .last').textContent)[1]) > {before}")
    gate.write_text("")
    runs.join()
    page.until("document.querySelector('#now').hidden && document.querySelectorAll('.cell.done').length === 3")

    notebook.insert("raise PermissionError('human: may I drop the duplicates?')")
    page.until("document.querySelector('.stop')")
    ways = page.js("[...document.querySelectorAll('.stop .ways button')].map(each => each.textContent)")
    assert ways == ["stepper continue", "stepper fix", "stepper skip"]
    assert "may I drop the duplicates?" in page.js("document.querySelector('.stop').innerText")
    assert page.js("document.querySelector('#announce').textContent").startswith("Stopped: ")
    project.stepper("skip", "not needed")
    page.until("!document.querySelector('.stop') && document.querySelector('#state').textContent === 'complete'")
    assert "PermissionError" in page.js(
        "document.querySelector('#ran') && (document.querySelector('#history').open = true, new Promise(done => setTimeout(() => done(document.querySelector('#ran').innerText), 100)))"
    )


def test_an_event_is_on_the_page_within_half_a_second(project: Project, view: View, page: Page) -> None:
    """The bound of a hang apart, what is asserted is the order of things: the tick is what the server promises."""
    notebook = project.new("A", problem="Quick")
    page.until("document.querySelector('#title').textContent === 'Quick'")
    took = []
    for number in range(3):
        page.js(
            f"window.seen = new Promise(done => {{ const look = () => document.body.innerText.includes('here-{number}-is') ? done(Date.now()) : setTimeout(look, 5); look(); }})"
        )
        notebook.insert(f"print('here', {number}, 'is', sep='-')")
        ended = project.json("history")[-1]
        at = time.time()
        took.append(page.js("window.seen") / 1000 - at)
        assert ended["outcome"] == "ok"
    assert min(took) < 0.5, took
