"""The classification of exceptions raised in real kernels (issue 3, "What is which").

Also the tables derived from it: decisions (policy/run_decisions.py) and suggestions
(messages/stop_suggestion.py).
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from stepper.messages import stop_suggestion
from stepper.policy import error_classification, run_decisions
from stepper.policy.model import Fault, Limits, Outcome, Verdict
from tests.conftest import mark_nightly
from tests.test_kernel_helper import Lab, environment, old_python

R, T, U = Verdict.RECOVERABLE, Verdict.TRANSIENT, Verdict.UNRECOVERABLE
PACKAGES = (
    "ipykernel>=7",
    "pandas>=2.2,<4",
    "requests>=2.32,<3",
    "httpx>=0.28,<1",
    "aiohttp>=3.11,<4",
    "trustme>=1.1",
)


class FaultyResponses(BaseHTTPRequestHandler):
    """A server that answers as its path says: /503, /slow, /cut, /reset, /garbage, /json, /loop."""

    def do_GET(self) -> None:
        answer_name = self.path.strip("/")
        if answer_name == "slow":
            self.server.closed.wait(30)  # type: ignore[attr-defined]
        elif answer_name == "reset":
            self.connection.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            self.connection.close()  # … with RST instead of FIN
        elif answer_name == "garbage":
            self.connection.sendall(b"what is this\r\n\r\n")
        elif answer_name == "close":
            pass
        else:
            status = (
                int(answer_name)
                if answer_name.isdigit()
                else 302
                if answer_name == "loop"
                else 200
            )
            self.send_response(status)
            self.send_header("Content-Length", "1000" if answer_name == "cut" else "5")
            self.send_header("Content-Type", "application/json")
            self.send_header("Location", "/loop") if answer_name == "loop" else None
            self.end_headers()
            self.wfile.write(b"{half")
        self.close_connection = True

    def log_message(self, *arguments: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Do not log broken connections, because the tests break them on purpose."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), FaultyResponses)
        self.closed = threading.Event()

    def handle_error(self, *arguments: object) -> None:
        pass


PRELUDE = """
import asyncio, errno, http.client, json, os, socket, ssl, subprocess, sys, time, urllib.error, urllib.request
import aiohttp, httpx, numpy as np, pandas as pd, requests, urllib3

async def get(url, seconds=60, **given):
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=seconds), raise_for_status=True) as session:
        async with session.get(url, **given) as answer:
            return await answer.json()

def read(url, timeout=60):
    return urllib.request.urlopen(url, timeout=timeout).read()

def as_nobody(call):
    '''Root may open everything.'''
    me = os.geteuid()
    if me == 0: os.seteuid(65534)
    try: return call()
    finally: os.seteuid(me)

def few_files(call):
    import resource
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)  # the next one that would be given; there may be holes in their order
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    held = []
    for _ in range(5):  # what earlier cells had open is closed by a thread of the kernel's
        time.sleep(0.2)
        try:
            while True: held.append(os.dup(0))
        except OSError: pass
    try: return call()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for number in held: os.close(number)

def tls_server(certificate):
    import threading
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    listener = socket.create_server(('127.0.0.1', 0))
    def serve():
        while True:
            client, _ = listener.accept()
            try: context.wrap_socket(client, server_side=True)
            except OSError: pass
            client.close()
    threading.Thread(target=serve, daemon=True).start()
    return listener.getsockname()[1]

def hang_up():
    '''A server that closes every connection after the first words.'''
    import threading
    listener = socket.create_server(('127.0.0.1', 0))
    def serve():
        while True:
            client, _ = listener.accept()
            client.recv(4096)
            client.close()
    threading.Thread(target=serve, daemon=True).start()
    return listener.getsockname()[1]
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A kernel with pandas, requests, httpx and aiohttp, and a loopback server to talk to."""
    server = Server()
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}
    )
    thread.start()
    # without a name server, .invalid is not awaited
    lab = Lab(
        environment(sys.executable, *PACKAGES), RES_OPTIONS="timeout:1 attempts:1"
    )
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            closed = listener.getsockname()[1]
        certificate = lab.folder / "server.pem"
        script = "import sys, trustme; c = trustme.CA().issue_cert('127.0.0.1'); c.private_key_and_cert_chain_pem.write_to_path(sys.argv[1])"
        subprocess.run(
            [lab.kernel.describe().python, "-c", script, str(certificate)], check=True
        )
        lab.ok("%xmode Minimal")  # a long traceback takes IPython a second
        lab.ok(PRELUDE)
        lab.ok(
            f"URL, CLOSED = 'http://127.0.0.1:{server.server_port}', 'http://127.0.0.1:{closed}'\n"
            f"TLS = 'https://127.0.0.1:%d' % tls_server({str(certificate)!r})\n"
            "HUNG_UP = 'https://127.0.0.1:%d' % hang_up()"
        )
        yield lab
    finally:
        lab.close()
        server.closed.set()
        server.shutdown()
        server.server_close()
        thread.join()


# (the class that is really raised, the cell)
RECOVERABLE = [
    ("NameError", "nowhere"),
    ("UnboundLocalError", "def f():\n    a += 1\nf()"),
    ("ImportError", "from math import nothing"),
    ("ModuleNotFoundError", "import nowhere"),
    ("IndexError", "[][1]"),
    ("KeyError", "{}['a']"),
    ("KeyError", "pd.DataFrame({'a': [1]})['b']"),
    ("ValueError", "int('x')"),
    ("TypeError", "1 + 'a'"),
    ("AttributeError", "''.nothing"),
    ("FileNotFoundError", "open('nowhere')"),
    ("FileNotFoundError", "pd.read_csv('nowhere.csv')"),
    ("IsADirectoryError", "open('/')"),
    ("NotADirectoryError", "os.listdir('/dev/null')"),
    ("FileExistsError", "os.mkdir('/')"),
    ("OSError", "os.rmdir('/proc')"),
    ("BlockingIOError", "a, b = os.pipe(); os.set_blocking(a, False); os.read(a, 1)"),
    ("ChildProcessError", "os.waitpid(2**22 - 1, 0)"),
    ("ProcessLookupError", "os.kill(2**22 - 1, 0)"),
    ("ZeroDivisionError", "1 / 0"),
    ("OverflowError", "10.0 ** 400"),
    ("FloatingPointError", "with np.errstate(all='raise'): np.float64(1) / 0"),
    ("AssertionError", "assert 1 == 2, 'the criterion'"),
    (
        "AssertionError",
        "pd.testing.assert_frame_equal(pd.DataFrame({'a': [1]}), pd.DataFrame({'a': [2]}))",
    ),
    ("SyntaxError", "a = = 1"),
    ("IndentationError", "if True:\npass"),
    ("SyntaxError", "eval('1 +')"),
    ("UnicodeDecodeError", "b'\\xff'.decode()"),
    ("UnicodeEncodeError", "'\\xff'.encode('ascii')"),
    ("RuntimeError", "d = {1: 1}\nfor k in d: d[k + 1] = 1"),
    (
        "RecursionError",
        "sys.setrecursionlimit(200)\ntry:\n    def f(): f()\n    f()\nfinally: sys.setrecursionlimit(3000)",
    ),
    ("StopIteration", "next(iter([]))"),
    (
        "StopAsyncIteration",
        "async def f():\n    if False: yield\nawait anext(f()) if sys.version_info > (3, 10) else await f().__anext__()",
    ),
    ("NotImplementedError", "raise NotImplementedError"),
    ("EOFError", "import pickle, io; pickle.load(io.BytesIO())"),
    ("BufferError", "b = bytearray(1); m = memoryview(b); b.extend(b'1')"),
    ("ReferenceError", "import weakref\nclass A: pass\nweakref.proxy(A()).x"),
    (
        "DeprecationWarning",
        "import warnings\nwith warnings.catch_warnings():\n    warnings.simplefilter('error')\n    warnings.warn('x', DeprecationWarning)",
    ),
    ("EmptyDataError", "import io; pd.read_csv(io.StringIO(''))"),
    ("ParserError", "import io; pd.read_csv(io.StringIO('a,b\\n1,2\\n1,2,3'))"),
    ("JSONDecodeError", "json.loads('{half')"),
    ("LinAlgError", "np.linalg.inv(np.zeros((2, 2)))"),
    ("CalledProcessError", "subprocess.run(['false'], check=True)"),
    ("TimeoutExpired", "subprocess.run(['sleep', '5'], timeout=0.05)"),
    ("error", "import struct; struct.unpack('i', b'')"),
    (
        "OperationalError",
        "import sqlite3; sqlite3.connect(':memory:').execute('select * from nothing')",
    ),
    ("BadZipFile", "import zipfile, io; zipfile.ZipFile(io.BytesIO(b'x'))"),
    ("PicklingError", "import pickle; pickle.dumps(lambda: 1)"),
    ("UsageError", "%no_such_magic"),
    ("Mine", "class Mine(Exception): pass\nraise Mine('mine')"),
    ("Own", "class Own(KeyError): pass\nraise Own('own')"),
    (
        "ValueError",
        "try: socket.create_connection(('127.0.0.1', int(CLOSED.split(':')[-1])))\nexcept OSError as e: raise ValueError('x') from e",
    ),
    ("CancelledError", "raise asyncio.CancelledError"),
    ("GeneratorExit", "raise GeneratorExit"),
    (
        "Base",
        "class Base(BaseException): pass\nraise Base",
    ),  # pytest's and polars' are like this
    # a wrong call, or a response that another call would avoid
    ("HTTPError", "read(URL + '/401')"),
    ("HTTPError", "read(URL + '/403')"),
    ("HTTPError", "read(URL + '/404')"),
    ("HTTPError", "pd.read_csv(URL + '/404')"),
    ("HTTPError", "read(URL + '/500')"),
    ("HTTPError", "requests.get(URL + '/401').raise_for_status()"),
    ("HTTPError", "requests.get(URL + '/403').raise_for_status()"),
    ("HTTPError", "requests.get(URL + '/404').raise_for_status()"),
    ("HTTPError", "requests.get(URL + '/500').raise_for_status()"),
    ("HTTPStatusError", "httpx.get(URL + '/401').raise_for_status()"),
    ("HTTPStatusError", "httpx.get(URL + '/403').raise_for_status()"),
    ("HTTPStatusError", "httpx.get(URL + '/404').raise_for_status()"),
    ("HTTPStatusError", "httpx.get(URL + '/500').raise_for_status()"),
    ("ClientResponseError", "await get(URL + '/401')"),
    ("ClientResponseError", "await get(URL + '/403')"),
    ("ClientResponseError", "await get(URL + '/404')"),
    ("ClientResponseError", "await get(URL + '/500')"),
    ("JSONDecodeError", "requests.get(URL + '/json').json()"),
    ("JSONDecodeError", "httpx.get(URL + '/json').json()"),
    ("JSONDecodeError", "await get(URL + '/json')"),
    ("TooManyRedirects", "requests.get(URL + '/loop')"),
    ("TooManyRedirects", "httpx.get(URL + '/loop', follow_redirects=True)"),
    ("TooManyRedirects", "await get(URL + '/loop')"),
    ("ValueError", "read('no url')"),
    ("URLError", "read('nothing://127.0.0.1')"),
    ("URLError", "read('file:///nowhere')"),
    ("MissingSchema", "requests.get('127.0.0.1/x')"),
    ("InvalidSchema", "requests.get('nothing://127.0.0.1')"),
    ("InvalidURL", "requests.get('http://')"),
    ("UnsupportedProtocol", "httpx.get('127.0.0.1/x')"),
    ("UnsupportedProtocol", "httpx.get('nothing://127.0.0.1')"),
    ("InvalidURL", "httpx.get('http://127.0.0.1:x')"),
    ("InvalidUrlClientError", "await get('127.0.0.1/x')"),
    ("NonHttpUrlClientError", "await get('nothing://127.0.0.1')"),
    ("LocationParseError", "urllib3.PoolManager().request('GET', 'http://[')"),
    ("InvalidURL", "http.client.HTTPConnection('127.0.0.1:x')"),
    ("UnicodeError", "socket.getaddrinfo('x' * 300, 80)"),
    # the certificate
    ("URLError", "read(TLS)"),
    ("SSLError", "requests.get(TLS)"),
    ("ConnectError", "httpx.get(TLS)"),
    ("ClientConnectorCertificateError", "await get(TLS)"),
    ("MaxRetryError", "urllib3.PoolManager(retries=1).request('GET', TLS)"),
    (
        "SSLCertVerificationError",
        "ssl.create_default_context().wrap_socket(socket.create_connection(('127.0.0.1', int(TLS.split(':')[-1]))), server_hostname='a')",
    ),
    # the server has no TLS
    ("URLError", "read(URL.replace('http', 'https'))"),
    ("SSLError", "requests.get(URL.replace('http', 'https'))"),
    ("ConnectError", "httpx.get(URL.replace('http', 'https'))"),
    ("ClientConnectorSSLError", "await get(URL.replace('http', 'https'))"),
]

TRANSIENT = [
    (
        "ConnectionRefusedError",
        "socket.create_connection(('127.0.0.1', int(CLOSED.split(':')[-1])))",
    ),
    ("URLError", "read(CLOSED)"),
    ("URLError", "pd.read_csv(CLOSED)"),
    ("ConnectionError", "requests.get(CLOSED)"),
    ("ConnectError", "httpx.get(CLOSED)"),
    ("ClientConnectorError", "await get(CLOSED)"),
    ("MaxRetryError", "urllib3.PoolManager(retries=1).request('GET', CLOSED)"),
    (
        "ConnectionResetError",
        "s = socket.create_connection(('127.0.0.1', int(URL.split(':')[-1])))\ns.sendall(b'GET /reset HTTP/1.0\\r\\n\\r\\n')\nimport time; time.sleep(0.2)\ns.recv(10)",
    ),
    ("BrokenPipeError", "a, b = os.pipe(); os.close(a); os.write(b, b'x')"),
    ("ConnectionResetError", "read(URL + '/reset')"),
    ("ConnectionError", "requests.get(URL + '/reset')"),
    ("ReadError", "httpx.get(URL + '/reset')"),
    ("ClientOSError", "await get(URL + '/reset')"),
    ("RemoteDisconnected", "read(URL + '/close')"),
    ("ConnectionError", "requests.get(URL + '/close')"),
    ("RemoteProtocolError", "httpx.get(URL + '/close')"),
    ("ServerDisconnectedError", "await get(URL + '/close')"),
    ("BadStatusLine", "read(URL + '/garbage')"),
    ("ConnectionError", "requests.get(URL + '/garbage')"),
    ("RemoteProtocolError", "httpx.get(URL + '/garbage')"),
    ("IncompleteRead", "read(URL + '/cut')"),
    ("ContentTooShortError", "urllib.request.urlretrieve(URL + '/cut', 'cut')"),
    ("ChunkedEncodingError", "requests.get(URL + '/cut')"),
    ("RemoteProtocolError", "httpx.get(URL + '/cut')"),
    ("ClientPayloadError", "await get(URL + '/cut')"),
    (
        "TimeoutError",
        "s = socket.create_connection(('127.0.0.1', int(URL.split(':')[-1])))\ns.settimeout(0.1)\ns.recv(1)",
    ),
    ("TimeoutError", "read(URL + '/slow', timeout=0.1)"),
    ("ReadTimeout", "requests.get(URL + '/slow', timeout=0.1)"),
    ("ReadTimeout", "httpx.get(URL + '/slow', timeout=0.1)"),
    ("TimeoutError", "await get(URL + '/slow', seconds=0.1)"),
    (
        "SocketTimeoutError",
        "await get(URL + '/slow', timeout=aiohttp.ClientTimeout(sock_read=0.1))",
    ),
    (
        "MaxRetryError",
        "urllib3.PoolManager(retries=1).request('GET', URL + '/slow', timeout=0.1)",
    ),
    (
        "ReadTimeoutError",
        "urllib3.PoolManager().request('GET', URL + '/slow', timeout=0.1, retries=False)",
    ),
    ("TimeoutError", "await asyncio.wait_for(asyncio.sleep(5), 0.05)"),
    ("gaierror", "socket.create_connection(('nowhere.invalid', 80))"),
    ("URLError", "read('http://nowhere.invalid')"),
    ("ConnectionError", "requests.get('http://nowhere.invalid')"),
    ("ConnectError", "httpx.get('http://nowhere.invalid')"),
    ("ClientConnectorDNSError", "await get('http://nowhere.invalid')"),
    ("HTTPError", "read(URL + '/429')"),
    ("HTTPError", "read(URL + '/502')"),
    ("HTTPError", "read(URL + '/503')"),
    ("HTTPError", "read(URL + '/504')"),
    ("HTTPError", "requests.get(URL + '/429').raise_for_status()"),
    ("HTTPError", "requests.get(URL + '/502').raise_for_status()"),
    ("HTTPError", "requests.get(URL + '/503').raise_for_status()"),
    ("HTTPError", "requests.get(URL + '/504').raise_for_status()"),
    (
        "RetryError",
        "s = requests.Session(); s.mount('http://', requests.adapters.HTTPAdapter(max_retries=urllib3.Retry(1, status_forcelist=[503])))\ns.get(URL + '/503')",
    ),
    ("HTTPStatusError", "httpx.get(URL + '/429').raise_for_status()"),
    ("HTTPStatusError", "httpx.get(URL + '/502').raise_for_status()"),
    ("HTTPStatusError", "httpx.get(URL + '/503').raise_for_status()"),
    ("HTTPStatusError", "httpx.get(URL + '/504').raise_for_status()"),
    ("ClientResponseError", "await get(URL + '/429')"),
    ("ClientResponseError", "await get(URL + '/502')"),
    ("ClientResponseError", "await get(URL + '/503')"),
    ("ClientResponseError", "await get(URL + '/504')"),
    (
        "ConnectTimeout",
        "import unittest.mock as m\nwith m.patch('socket.socket.connect', side_effect=TimeoutError): requests.get(URL)",
    ),
    (
        "URLError",
        "import unittest.mock as m\nwith m.patch('socket.socket.connect', side_effect=OSError(errno.EHOSTUNREACH, 'No route')): read(URL)",
    ),
    ("OSError", "raise OSError(errno.ENETUNREACH, 'Network is unreachable')"),
    ("ProxyError", "requests.get('http://nowhere.invalid', proxies={'http': CLOSED})"),
    # cut off in the handshake
    ("URLError", "read(HUNG_UP)"),
    ("SSLError", "requests.get(HUNG_UP)"),
    ("ConnectError", "httpx.get(HUNG_UP)"),
    ("ClientConnectorError", "await get(HUNG_UP)"),
    ("Downloading", "class Downloading(ConnectionError): pass\nraise Downloading"),
]

UNRECOVERABLE = [
    ("MemoryError", "bytearray(1 << 60)"),
    ("_ArrayMemoryError", "np.ones(1 << 55)"),
    (
        "PermissionError",
        "open('secret', 'w').close(); os.chmod('secret', 0)\nas_nobody(lambda: open('secret'))",
    ),
    ("PermissionError", "as_nobody(lambda: os.mkdir('/no'))"),
    (
        "PermissionError",
        "df = pd.DataFrame({'a': [1]}); df.to_csv('/dev/null')  # late imports\nas_nobody(lambda: df.to_csv('/no.csv'))",
    ),
    ("OSError", "with open('/dev/full', 'w') as f: f.write('x' * 100_000)"),
    ("OSError", "os.write(os.open('/dev/full', os.O_WRONLY), b'x')"),
    ("OSError", "pd.DataFrame({'a': range(10**5)}).to_csv('/dev/full')"),
    ("OSError", "few_files(lambda: [open('/dev/null') for _ in range(10)])"),
    ("OSError", "few_files(lambda: subprocess.run(['true']))"),
    ("URLError", "few_files(lambda: read(URL))"),
    ("ConnectionError", "few_files(lambda: requests.get(URL))"),
    ("OSError", "os.pread(os.open('/proc/self/mem', os.O_RDONLY), 1, 0)"),
    ("OSError", "raise OSError(errno.EDQUOT, 'quota')"),
    ("SystemExit", "raise SystemExit"),
    ("SystemExit", "sys.exit()"),
    ("SystemExit", "sys.exit('no data')"),
    (
        "SystemExit",
        "import argparse; argparse.ArgumentParser().parse_args(['--nothing'])",
    ),
    ("StdinNotImplementedError", "input()"),
    ("StdinNotImplementedError", "import getpass; getpass.getpass()"),
    ("RuntimeError", "raise RuntimeError('STOP: which of the two files?')"),
    ("RuntimeError", "raise RuntimeError('we must STOP here')"),
    ("RuntimeError", "raise RuntimeError('first line\\n(STOP)')"),
    ("ValueError", "raise ValueError('STOP')"),
    ("AssertionError", "assert False, 'STOP: the totals differ'"),
    ("ConnectionError", "raise ConnectionError('STOP: the server asks for a new key')"),
    ("Mine", "class Mine(Exception): pass\nraise Mine('STOP.')"),
    ("KeyError", "raise KeyError('STOP: no such table')"),
    ("IndexError", "raise IndexError('STOP: no such row')"),
    ("KeyboardInterrupt", "raise KeyboardInterrupt"),
    (
        "KeyboardInterrupt",
        "import _thread, time; _thread.interrupt_main(); time.sleep(2)",
    ),
]

NO_STOP = [
    ("RuntimeError", "raise RuntimeError('it stopped; Stop; stop')"),
    (
        "RuntimeError",
        "raise RuntimeError('NONSTOP, STOPPED, STOP_WORDS, NON-STOP, STOP-LOSS')",
    ),
    ("KeyError", "{}['STOP']"),
    ("KeyError", "raise KeyError('the STOP key')"),
    ("KeyError", "pd.DataFrame({'a': [1]})['STOP']"),
    ("KeyError", "pd.DataFrame({'a': [1]})[['a', 'STOP']]"),
    ("IndexError", "raise IndexError('no STOP')"),
]

GROUPS = {
    "group": "raise ExceptionGroup('some failed', [ValueError(1), TypeError(2)])",
    "task group": "async def bad(): 1 / 0\nasync with asyncio.TaskGroup() as group: group.create_task(bad())",
}


def rows(table: list[tuple[str, str]], verdict: Verdict) -> list[object]:
    return [
        pytest.param(verdict, name, code, id=f"{verdict.value}-{name}-{code[:60]!r}")
        for name, code in table
    ]


@pytest.mark.parametrize(
    ("verdict", "name", "code"),
    [
        *rows(RECOVERABLE, R),
        *rows(TRANSIENT, T),
        *rows(UNRECOVERABLE, U),
        *rows(NO_STOP, R),
    ],
)
def test_classification_row(lab: Lab, verdict: Verdict, name: str, code: str) -> None:
    if sys.platform != "linux" and any(
        part in code for part in ("/dev/full", "/proc", "few_files")
    ):
        pytest.skip("Linux has these")
    lab.revive()
    result = lab.run(code)
    assert result.outcome is Outcome.ERROR and result.fault is not None, result
    assert result.fault.mro[0].rsplit(".", 1)[-1] == name, (
        result.fault.mro,
        result.fault.evalue,
        result.fault.attributes,
    )
    assert error_classification.classify_run(result.outcome, result.fault) is verdict, (
        result.fault.mro,
        result.fault.evalue,
        result.fault.attributes,
    )


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="exception groups came with Python 3.11"
)
@pytest.mark.parametrize("code", GROUPS.values(), ids=GROUPS)
def test_exception_group_is_recoverable(lab: Lab, code: str) -> None:
    result = lab.run(code)
    assert result.fault and result.fault.ename == "ExceptionGroup"
    assert result.fault.chain[0][0] == "the exception group contains"
    assert error_classification.classify_run(result.outcome, result.fault) is R


ENDS = (
    "exit()",
    "quit()",
    "exit",
    "import os; os._exit(3)",
    "import os; os.kill(os.getpid(), 9)",
)


@pytest.mark.parametrize("code", mark_nightly(ENDS, "exit()", ENDS[-1]))
def test_kernel_death_is_unrecoverable(code: str) -> None:
    lab_of_test = Lab(sys.executable)
    try:
        result = lab_of_test.run(code)
        assert result.outcome is Outcome.KERNEL_DIED and result.death is not None
        assert error_classification.classify_run(result.outcome, result.fault) is U
    finally:
        lab_of_test.close()


def test_interrupted_timeout_is_recoverable(lab: Lab) -> None:
    result = lab.run("import time; time.sleep(300)", timeout=2)
    assert result.outcome is Outcome.TIMEOUT and result.death is None
    assert error_classification.classify_run(result.outcome, result.fault) is R


def test_interrupt_by_stepper_is_cancelled(lab: Lab) -> None:
    async def interrupted() -> None:
        begun = lab.folder / "begun"
        source = f"import time; open({str(begun)!r}, 'w'); time.sleep(300)"
        running = asyncio.ensure_future(
            lab.kernel.execute(source, 600, Limits(max_memory_percent=100))
        )
        while not begun.exists():
            await asyncio.sleep(0.02)
        await lab.kernel.interrupt("the user")
        response = await running
        assert (
            response.outcome is Outcome.CANCELLED
            and response.fault
            and response.fault.ename == "KeyboardInterrupt"
        )
        assert (
            error_classification.classify_run(response.outcome, response.fault)
            is Verdict.CANCELLED
        )

    lab.loop.run_until_complete(interrupted())


OLD_ROWS = [
    (
        T,
        "timeout",
        "import socket\na, b = socket.socketpair()\na.settimeout(0.1)\na.recv(1)",
    ),
    (
        T,
        "TimeoutError",
        "import asyncio\nawait asyncio.wait_for(asyncio.sleep(5), 0.05)",
    ),
    (
        T,
        "ConnectionRefusedError",
        "import socket\ns = socket.create_server(('127.0.0.1', 0)); p = s.getsockname(); s.close()\nsocket.create_connection(p)",
    ),
    (
        T,
        "URLError",
        "import urllib.request\nurllib.request.urlopen('http://%s:%d' % p, timeout=1)",
    ),
    (T, "gaierror", "socket.getaddrinfo('nowhere.invalid', 80)"),
    (R, "ValueError", "int('x')"),
    (R, "KeyError", "{}['STOP']"),
    (U, "SystemExit", "import sys; sys.exit(1)"),
    (U, "StdinNotImplementedError", "input()"),
    (U, "OSError", "open('/dev/full', 'w', buffering=1).write('x\\n')"),
]


@pytest.mark.nightly
@pytest.mark.skipif(not old_python(), reason="there is no Python 3.9 on this machine")
def test_rows_of_python_39_and_ipython_8() -> None:
    old_lab = Lab(
        environment(
            old_python(), "ipykernel==6.29.5", "ipython==8.18.1", "pandas>=2.2,<3"
        )
    )
    try:
        for verdict, name, code in OLD_ROWS:
            result = old_lab.run(code)
            assert result.fault and result.fault.mro[0].rsplit(".", 1)[-1] == name, (
                result.fault
            )
            assert (
                error_classification.classify_run(result.outcome, result.fault)
                is verdict
            ), (
                result.fault.mro,
                result.fault.evalue,
                result.fault.attributes,
            )
    finally:
        old_lab.close()


# the pure tables


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        (
            Fault("PermissionError", ""),
            U,
        ),  # without the helper's data, only the kernel's name of the error is known
        (Fault("ConnectionError", ""), T),
        (Fault("ValueError", ""), R),
        (Fault("KeyError", "'STOP'"), R),
        (
            Fault(
                "gaierror",
                "",
                ("socket.gaierror", "OSError"),
                attributes={"errno": errno.EIO},
            ),
            T,
        ),  # not an errno
        (
            Fault(
                "SSLError",
                "",
                ("ssl.SSLError", "OSError"),
                attributes={"errno": errno.EIO},
            ),
            R,
        ),
        (
            Fault("Mine", "", ("Mine", "Exception"), attributes={"errno": errno.EIO}),
            R,
        ),  # no OSError
        (
            Fault(
                "Mine",
                "",
                ("Mine", "Exception"),
                attributes={"reason_mro": ["MemoryError"]},
            ),
            R,
        ),  # another class than the reason's
        (Fault("OSError", "", ("OSError",), attributes={"errno": "many"}), R),
    ],
)
def test_unusual_faults(fault: Fault, verdict: Verdict) -> None:
    assert error_classification.classify_fault(fault) is verdict


@pytest.mark.parametrize(
    "row_name", [row_name for row_name, _ in error_classification.VERDICTS]
)
def test_every_table_row_is_needed(row_name: str) -> None:
    if row_name.startswith("errno"):
        fault = Fault(
            "OSError",
            "",
            ("OSError", "Exception"),
            attributes={"errno": getattr(errno, row_name[6:])},
        )
    elif row_name.startswith("HTTP"):
        fault = Fault(
            "HTTPError",
            "",
            ("HTTPError", "Exception"),
            attributes={"status": int(row_name[5:] or 418)},
        )
    else:
        fault = Fault(row_name, "", (row_name, "Exception"))
    assert (
        error_classification.classify_fault(fault)
        is dict(error_classification.VERDICTS)[row_name]
    )


def test_every_outcome_has_a_verdict() -> None:
    assert {
        outcome: error_classification.classify_run(outcome, None) for outcome in Outcome
    } == {
        Outcome.OK: Verdict.FINE,
        Outcome.ERROR: R,
        Outcome.TIMEOUT: R,
        Outcome.MEMORY: U,
        Outcome.KERNEL_DIED: U,
        Outcome.CANCELLED: Verdict.CANCELLED,
    }


GO_ON, FIX, AGAIN, STOP = (
    run_decisions.NextAction.CONTINUE,
    run_decisions.NextAction.FIX,
    run_decisions.NextAction.RETRY,
    run_decisions.NextAction.STOP,
)


@pytest.mark.parametrize(
    ("verdict", "attempts", "repeats", "act", "wait"),
    [
        (Verdict.FINE, 0, 0, GO_ON, 0),
        (Verdict.FINE, 9, 9, GO_ON, 0),
        (Verdict.CANCELLED, 9, 9, GO_ON, 0),
        (R, 0, 0, FIX, 0),  # the first run
        (R, 2, 0, FIX, 0),
        (R, 2, 9, FIX, 0),  # what stepper itself ran again does not count
        (R, 3, 0, STOP, 0),  # three retries are used up
        (R, 4, 0, STOP, 0),
        (T, 0, 0, AGAIN, 1),
        (T, 0, 1, AGAIN, 2),
        (T, 9, 2, AGAIN, 4),
        (T, 0, 3, STOP, 0),
        (U, 0, 0, STOP, 0),
    ],
)
def test_decision_after_each_verdict(
    verdict: Verdict,
    attempts: int,
    repeats: int,
    act: run_decisions.NextAction,
    wait: float,
) -> None:
    assert run_decisions.decide_on_verdict(verdict, attempts, repeats, Limits()) == (
        act,
        wait,
    )


def test_decision_without_retries() -> None:
    no_retries = Limits(max_retries=0, network_retries=0)
    assert [
        run_decisions.decide_on_verdict(verdict, 0, 0, no_retries)[0]
        for verdict in (R, T, Verdict.FINE)
    ] == [STOP, STOP, GO_ON]


def fault(*mro: str, message: str = "", **attributes: object) -> Fault:
    return Fault(
        mro[0].rsplit(".", 1)[-1],
        message,
        (*mro, "Exception", "BaseException", "object"),
        attributes=attributes,
    )


SUGGESTIONS = [
    (Outcome.ERROR, R, None, stop_suggestion.fill_commands(stop_suggestion.GIVE_HINT)),
    (
        Outcome.ERROR,
        R,
        fault("ValueError"),
        stop_suggestion.fill_commands(stop_suggestion.GIVE_HINT),
    ),
    (
        Outcome.ERROR,
        R,
        replace(
            fault("KeyError"),
            suggestion="`df` has 2 columns; most similar: 'unit_price'.\nx",
        ),
        f"`df` has 2 columns; most similar: 'unit_price'; to resume: {stop_suggestion.fill_commands(stop_suggestion.RESUME)}",
    ),
    (
        Outcome.ERROR,
        U,
        fault("RuntimeError", message="STOP: which?"),
        stop_suggestion.fill_commands(stop_suggestion.ANSWER),
    ),
    (
        Outcome.KERNEL_DIED,
        U,
        fault("KernelDied", message="STOP on stderr"),
        "change the cell that killed the kernel",
    ),
    (
        Outcome.ERROR,
        T,
        fault("socket.gaierror", "OSError"),
        stop_suggestion.fill_commands(stop_suggestion.NETWORK),
    ),
    (
        Outcome.ERROR,
        T,
        fault("urllib.error.HTTPError", "OSError", status=503),
        stop_suggestion.fill_commands(stop_suggestion.NETWORK),
    ),
    (
        Outcome.ERROR,
        T,
        fault("urllib.error.HTTPError", "OSError", status=429),
        "wait until the server",
    ),
    (
        Outcome.TIMEOUT,
        R,
        fault("Timeout"),
        stop_suggestion.fill_commands(stop_suggestion.TIMEOUT, comment="#"),
    ),
    (
        Outcome.KERNEL_DIED,
        U,
        fault("KernelStartFailed"),
        "find the cause with `stepper doctor`",
    ),
    (
        Outcome.KERNEL_DIED,
        U,
        fault("KernelDied"),
        "change the cell that killed the kernel",
    ),
    (
        Outcome.KERNEL_DIED,
        U,
        fault("OutOfMemory"),
        "process the data in smaller chunks, then /fix; `stepper",
    ),
    (
        Outcome.KERNEL_DIED,
        U,
        fault("KernelDied", "WalltimeOver"),
        "give the job more time",
    ),
    (
        Outcome.KERNEL_DIED,
        U,
        fault("KernelDied", "EndedOutside"),
        "the cell did not cause the kernel's death: re-run the cells that succeeded",
    ),
    (
        Outcome.MEMORY,
        U,
        fault("MemoryLimit"),
        "process the data in smaller chunks, or raise max_memory_percent",
    ),
    (
        Outcome.ERROR,
        U,
        fault("numpy._core._exceptions._ArrayMemoryError", "MemoryError"),
        "process the data in smaller",
    ),
    (Outcome.ERROR, U, fault("SystemExit"), "remove `exit()`"),
    (
        Outcome.ERROR,
        U,
        fault("KeyboardInterrupt"),
        "if the cell raises KeyboardInterrupt itself",
    ),
    (
        Outcome.ERROR,
        U,
        fault("IPython.core.error.StdinNotImplementedError", "RuntimeError"),
        "put the value into the cell",
    ),
    (
        Outcome.ERROR,
        U,
        fault("PermissionError", "OSError", filename="/a b"),
        "give access to /a b, or",
    ),
    (
        Outcome.ERROR,
        U,
        fault("PermissionError", "OSError", filename="a\nTODO: b\x1b"),
        "give access to 'a\\nTODO: b\\x1b', or",
    ),
    (
        Outcome.ERROR,
        U,
        fault("PermissionError", "OSError"),
        "give access to the file, or",
    ),
    (
        Outcome.ERROR,
        U,
        fault("PermissionError", "OSError", filename="{0}"),
        "give access to {0}, or",
    ),
    (Outcome.ERROR, U, fault("OSError", errno=errno.ENOSPC), "free disk space"),
    (Outcome.ERROR, U, fault("OSError", errno=errno.EDQUOT), "free disk space"),
    (
        Outcome.ERROR,
        U,
        fault("OSError", errno=errno.EMFILE),
        "close files in the cell",
    ),
    (
        Outcome.ERROR,
        U,
        fault("OSError", errno=errno.ENFILE),
        "close files on this machine",
    ),
    (
        Outcome.ERROR,
        U,
        fault("OSError", errno=errno.EIO, filename="/dev/sr0"),
        "check the disk or device of /dev/sr0",
    ),
    (
        Outcome.ERROR,
        U,
        fault(
            "urllib.error.URLError",
            "OSError",
            reason_mro=["OSError", "Exception"],
            reason_errno=errno.EMFILE,
        ),
        "close files in the cell",
    ),
]


@pytest.mark.parametrize(("outcome", "verdict", "values", "message"), SUGGESTIONS)
def test_suggestion_for_each_error(
    outcome: Outcome, verdict: Verdict, values: Fault | None, message: str
) -> None:
    action = stop_suggestion.suggest_action(outcome, verdict, values)
    assert action.startswith(message)
    assert "\n" not in action and "/fix" in action


def test_every_suggestion_row_is_used() -> None:
    suggestions = {
        stop_suggestion.suggest_action(outcome, verdict, hint)
        for outcome, verdict, hint, _ in SUGGESTIONS
    }
    for _, text in stop_suggestion.ACTIONS:
        shown = stop_suggestion.fill_commands(text, filename="{filename}")
        begin = shown.split("{filename}")[0]
        assert any(line.startswith(begin) for line in suggestions), text
