"""A Jupyter server as one asks it over HTTP: a kernel started, looked at, interrupted, ended. Nothing secret is told.

The token is looked up anew for each request, where the configuration says it is: it is in no record, no log and no
message, and a hub may change it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import ssl
import stat
import subprocess
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from tornado.httpclient import HTTPRequest, HTTPResponse
from tornado.httputil import HTTPHeaders
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from stepper.ground.errors import KernelError
from stepper.ground.text import one_line
from stepper.policy.kernels import Jupyter

SECONDS = 30.0  # for a request; a gateway's cluster starts a kernel in that time, or says so
COMMAND_SECONDS = 10.0  # for the command that tells the token
GONE = (404, 410)


class Answer:
    """What a server said: its status, and its JSON."""

    def __init__(self, response: HTTPResponse) -> None:
        self.code = response.code
        self.body: Any = None
        text = response.body.decode("utf-8", "replace") if response.body else ""
        self.is_json = "json" in response.headers.get("Content-Type", "")
        if self.is_json:
            try:
                self.body = json.loads(text)
            except ValueError:
                self.is_json = False

    @property
    def why(self) -> str:
        """The server's own words on what it refuses."""
        said = self.body.get("message") or self.body.get("reason") if isinstance(self.body, dict) else ""
        return one_line(str(said or ""), 300)


class Server:
    """One server; `environ` holds the token's variable, where that is what names it."""

    def __init__(self, where: Jupyter, environ: Mapping[str, str]) -> None:
        self.where, self.environ = where, environ
        self.base = where.url.rstrip("/")
        self.client = SimpleAsyncHTTPClient(force_instance=True)

    @property
    def host(self) -> str:
        """How messages name it."""
        parts = urlsplit(self.base)
        return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"

    async def request(self, path: str, method: str = "GET", body: object = None) -> Answer:
        """Ask, and return what it says; raise KernelError where it can't be reached, or refuses the token."""
        given = None if method in ("GET", "DELETE") else json.dumps(body if body is not None else {})
        request = await self.made(f"{self.base}{path}", method, given)
        try:
            answer = Answer(await self.client.fetch(request, raise_error=False))
        except ssl.SSLError as error:
            why = f"{self.host}: TLS was refused: {one_line(str(error.reason or error), 200)}"
            raise KernelError(why, "`ca_file:` names the certificate of its authority") from None
        except (OSError, ValueError) as error:
            raise KernelError(f"{self.host} can't be reached: {one_line(str(error), 200)}") from None
        self.check(answer)
        return answer

    async def made(self, url: str, method: str = "GET", body: str | None = None) -> HTTPRequest:
        """Return a request with all that this server asks of one."""
        headers = HTTPHeaders({"Content-Type": "application/json", **self.where.headers})
        if token := await self.token():
            headers["Authorization"] = f"token {token}"
        ca = os.path.expanduser(self.where.ca_file) or None
        return HTTPRequest(
            url, method, headers, body, connect_timeout=SECONDS, request_timeout=SECONDS, ca_certs=ca,
            follow_redirects=False,  # to a page that asks who one is, where the token is not right
        )  # fmt: skip

    def check(self, answer: Answer) -> None:
        """Raise KernelError where the server did not take the request for what it is."""
        where = next((key for key in ("token_env", "token_file", "token_command") if getattr(self.where, key)), "")
        if answer.code == 401 or (300 <= answer.code < 400):
            told = f"the token that `{where}` names" if where else "a request without a token (`token_env:` names one)"
            raise KernelError(f"{self.host} refuses {told} ({answer.code})")
        if answer.code == 403:
            hint = "an Enterprise Gateway wants `env: {KERNEL_USERNAME: …}`"
            why = answer.why and f": {answer.why}"
            raise KernelError(f"{self.host} does not allow this to who holds that token (403){why}", hint)
        if answer.code not in GONE and answer.code < 500 and answer.code != 204 and not answer.is_json:
            raise KernelError(f"{self.host} answers, but is no Jupyter server: it sends no JSON ({answer.code})")
        if answer.code == 599:
            raise KernelError(f"{self.host} did not answer within {SECONDS:.0f} s")

    async def token(self) -> str:
        """Return the token; '' where none is named. Raise KernelError where it is not there."""
        where = self.where
        if where.token_env:
            if not (token := self.environ.get(where.token_env, "")):
                raise KernelError(f"the variable {where.token_env}, which is to hold a token, is not set")
            return token
        if where.token_file:
            return await asyncio.to_thread(_of_file, os.path.expanduser(where.token_file))
        return await asyncio.to_thread(_of_command, where.token_command) if where.token_command else ""


def _of_file(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as stream:
            about = os.fstat(stream.fileno())
            if stat.S_IMODE(about.st_mode) & 0o077:
                raise KernelError(f"{path} holds a token, and others can read it", f"chmod 600 {shlex.quote(path)}")
            return stream.read(10_000).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise KernelError(f"{path}, which is to hold a token, can't be read: {error}") from error


def _of_command(command: str) -> str:
    try:
        done = subprocess.run(
            shlex.split(command), capture_output=True, text=True, timeout=COMMAND_SECONDS, stdin=subprocess.DEVNULL,
            check=True,
        )  # fmt: skip
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise KernelError(f"the command that is to tell a token failed: {type(error).__name__}", command) from None
    return done.stdout.strip()
