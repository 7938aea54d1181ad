"""A Jupyter server as one asks it over HTTP: a kernel started, looked at, interrupted, ended. Nothing secret is told.

The token is looked up where the configuration says it is, and again when the server refuses it: a hub may change it. It
is in no record, no log and no message.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import ssl
import stat
import subprocess
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from tornado.httpclient import HTTPClientError, HTTPRequest, HTTPResponse
from tornado.httputil import HTTPHeaders
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from stepper.common.errors import KernelError
from stepper.common.text import one_line
from stepper.policy.kernel_config import TOKEN_KEYS, JupyterSettings

SECONDS = 10.0  # for an answer
COMMAND_SECONDS = 10.0  # for the command that tells the token
GONE = (404, 410)
HUB = "a hub's own address is not that of a server: `url:` is to end in /user/NAME/"


class NoAnswerError(KernelError):
    """Nobody knows what became of the request."""


class StoppedError(KernelError):
    """The server's hub says that it is not running: its kernels ended with it."""


class Answer:
    """What a server said, or a hub in its place: its status, and its JSON."""

    def __init__(self, response: HTTPResponse) -> None:
        self.code = response.code
        # without what may be secret
        self.to = urlsplit(response.headers.get("Location", "")).path
        self.body: Any = None
        self.is_json = False
        # the hub's own, or one of its servers'
        self.of_hub = "X-JupyterHub-Version" in response.headers
        if "json" in response.headers.get("Content-Type", ""):
            try:
                self.body = json.loads(response.body or b"")
                self.is_json = True
            except ValueError:
                pass

    @property
    def why(self) -> str:
        """The server's own words on what it refuses."""
        said = (
            self.body.get("message") or self.body.get("reason")
            if isinstance(self.body, dict)
            else ""
        )
        return one_line(str(said or ""), 300)


class Server:
    """One server; `environ` returns what holds the token's variable, where that is what names it."""

    def __init__(
        self, where: JupyterSettings, environ: Callable[[], Mapping[str, str]]
    ) -> None:
        self.where, self.environ = where, environ
        self.base = where.url.rstrip("/")
        self.client = SimpleAsyncHTTPClient(force_instance=True)
        self.kept = ""  # the token, until it is refused

    @property
    def name(self) -> str:
        """How messages name it."""
        parts = urlsplit(self.base)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}/"

    async def request(
        self,
        path: str,
        method: str = "GET",
        body: object = None,
        seconds: float = SECONDS,
    ) -> Answer:
        """Ask, and return what it says; raise KernelError where it can't be reached, or does not take the request."""
        answer = await self._asked(path, method, body, seconds)
        if answer.code in (401, 403) and self.kept:
            self.kept = ""
            answer = await self._asked(path, method, body, seconds)
        await self._check(answer)
        return answer

    async def lacks(self, kernel: str, seconds: float = SECONDS) -> str:
        """Return how it lost a kernel, '' where it has it; raise KernelError where nobody knows."""
        try:
            gone = (
                await self.request(f"/api/kernels/{kernel}", seconds=seconds)
            ).code in GONE
        except StoppedError as error:
            return f"{error.message}; {error.hint}"
        return f"{self.name} has it no more" if gone else ""

    async def _asked(
        self,
        path: str,
        method: str = "GET",
        body: object = None,
        seconds: float = SECONDS,
        base: str = "",
    ) -> Answer:
        given = (
            None
            if method in ("GET", "DELETE")
            else json.dumps(body if body is not None else {})
        )
        request = await self.made(f"{base or self.base}{path}", method, given, seconds)
        try:
            return Answer(await self.client.fetch(request, raise_error=False))
        except (OSError, ValueError, HTTPClientError) as error:
            mend = (
                "`ca_file:` names the certificate of its authority"
                if isinstance(error, ssl.SSLError)
                else ""
            )
            kind = NoAnswerError if isinstance(error, HTTPClientError) else KernelError
            raise kind(
                self.unreached(error),
                mend or f"curl -I {shlex.quote(self.base + '/api')}",
            ) from None

    async def made(
        self,
        url: str,
        method: str = "GET",
        body: str | None = None,
        seconds: float = SECONDS,
    ) -> HTTPRequest:
        """Return a request with all that this server asks of one; raise KernelError."""
        headers = HTTPHeaders(
            {"Content-Type": "application/json", **self.where.headers}
        )
        if token := await self._token():
            headers["Authorization"] = f"token {token}"
        ca = os.path.expanduser(self.where.ca_file) or None
        if ca and not os.path.isfile(ca):
            raise KernelError(
                f"there is no file {ca}, which `ca_file:` names",
                f"ls -l {shlex.quote(ca)}",
            )
        return HTTPRequest(
            url,
            method,
            headers,
            body,
            connect_timeout=SECONDS,
            request_timeout=seconds,
            ca_certs=ca,
            follow_redirects=False,  # to a page that asks who one is
        )

    def unreached(self, error: Exception) -> str:
        """Return why it can't be reached."""
        if isinstance(error, ssl.SSLError):
            return f"{self.name}: TLS was refused: {one_line(str(error), 200)}"
        return f"{self.name} can't be reached: {one_line(str(error), 200) or type(error).__name__}"

    async def _check(self, answer: Answer) -> None:
        """Raise KernelError where the server did not take the request for what it is."""
        where = next((key for key in TOKEN_KEYS if getattr(self.where, key)), "")
        told = (
            f"the token that `{where}` names" if where else "a request without a token"
        )
        mend = (
            f"export {self.where.token_env}=…"
            if self.where.token_env
            else ""
            if where
            else "`token_env:` names one"
        )
        if answer.of_hub and (answer.code in (401, 403) or 300 <= answer.code < 400):
            await self._ask_hub(answer.is_json, told, mend)
        if answer.code == 401:
            raise KernelError(f"{self.name} refuses {told} (401)", mend)
        if answer.code == 403:
            # a server says 403 of a token that it does not know, too
            known = (await self._asked("/api/me")).code
            if known in (401, 403):
                raise KernelError(f"{self.name} refuses {told} (403)", mend)
            whose = "the owner of " + told if known == 200 else "whoever asks"
            why = answer.why and f": {answer.why}"
            hint = (
                ""
                if known == 200
                else "an Enterprise Gateway wants `env: {KERNEL_USERNAME: …}`"
            )
            raise KernelError(
                f"{self.name} does not allow this to {whose} (403){why}", hint
            )
        if 300 <= answer.code < 400:
            raise KernelError(
                f"{self.name} sends to {answer.to or 'another page'} ({answer.code}): {told} is refused",
                HUB,
            )
        if answer.code < 500 and answer.code != 204 and not answer.is_json:
            raise KernelError(
                f"{self.name} answers, but is no Jupyter server: it sends no JSON ({answer.code})",
                HUB,
            )
        if answer.code in (502, 503, 504):
            raise KernelError(
                f"{self.name} is away ({answer.code}){answer.why and ': '}{answer.why}"
            )

    async def _ask_hub(self, answers: bool, told: str, mend: str) -> None:
        """Raise KernelError with what its hub knows: whose the token is, and whether the server runs (it `answers`)."""
        start, _, path = self.base.partition("/user/")
        if not path:
            raise KernelError(f"{self.name} is a hub's own address", HUB)
        user, _, server = unquote(path).partition("/")
        said = await self._asked("/hub/api/user", base=start)
        if said.code in (401, 403):
            raise KernelError(f"{self.name} refuses {told} ({said.code})", mend)
        about = said.body if said.code == 200 and isinstance(said.body, dict) else {}
        owner, servers = (
            one_line(str(about.get("name") or ""), 100),
            about.get("servers"),
        )
        if answers and owner:
            raise KernelError(
                f"{self.name} does not allow this to {owner}, the owner of {told} (403)",
                mend,
            )
        if answers:
            return
        if owner == user and isinstance(servers, dict):
            if server not in servers:
                raise StoppedError(
                    f"{self.name} is not running, says its hub",
                    f"start it at {start}/hub/spawn/{path}",
                )
            if doing := servers[server].get("pending"):
                raise KernelError(
                    f"{self.name} is not ready, its hub is at it: {one_line(str(doing), 40)}"
                )
        why = f"its hub does not lead to {self.name}: it is not running, or {told} is not for it"
        raise KernelError(why, f"{start}/hub/home shows the servers that are yours")

    async def _token(self) -> str:
        """Return the token; '' where none is named. Raise KernelError where it is not there, or is none."""
        where = self.where
        if not self.kept and where.token_env:
            if not (found := self.environ().get(where.token_env, "")):
                why = f"the variable {where.token_env}, which is to hold a token, is not set"
                raise KernelError(why, f"export {where.token_env}=…")
            self.kept = found.strip()
        elif not self.kept and where.token_file:
            self.kept = await asyncio.to_thread(
                _of_file, os.path.expanduser(where.token_file)
            )
        elif not self.kept and where.token_command:
            self.kept = await asyncio.to_thread(
                _of_command, where.token_command, self.environ()
            )
        # a header's text is told where it is none
        if not (self.kept.isascii() and self.kept.isprintable()):
            self.kept = ""
            raise KernelError(
                "what is named as a token is none: it has several lines, or characters that none has"
            )
        return self.kept


def _of_file(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as stream:
            about = os.fstat(stream.fileno())
            if stat.S_IMODE(about.st_mode) & 0o077:
                raise KernelError(
                    f"{path} holds a token, and others can read it",
                    f"chmod 600 {shlex.quote(path)}",
                )
            found = stream.read(10_000).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "") or type(error).__name__
        raise KernelError(
            f"{path}, which is to hold a token, can't be read: {why}", f"ls -l {path}"
        ) from None
    if not found:
        raise KernelError(
            f"{path}, which is to hold a token, is empty", f"ls -l {path}"
        )
    return found


def _of_command(command: str, environ: Mapping[str, str]) -> str:
    told = "the command that is to tell a token"
    try:
        done = subprocess.run(
            shlex.split(command),
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **environ},  # a keyring is found by the asker's session
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise KernelError(
            f"{told} did not end within {COMMAND_SECONDS:.0f} s", command
        ) from None
    except (OSError, ValueError) as error:
        raise KernelError(
            f"{told} can't be run: {getattr(error, 'strerror', '') or 'it is no text'}",
            command,
        ) from None
    if done.returncode or not done.stdout.strip():
        how = f"failed with {done.returncode}" if done.returncode else "printed nothing"
        raise KernelError(f"{told} {how}", command)
    return done.stdout.strip()
