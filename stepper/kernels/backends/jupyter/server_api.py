"""A client for the REST API of a Jupyter server.

The token is read from the source that the configuration names. It is read again if the
server refuses it, because a hub may replace tokens. The token is never written to a
record, a log or a message.
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
from stepper.kernels.backends.jupyter.jupyter_settings import (
    TOKEN_KEYS,
    JupyterSettings,
)

REQUEST_SECONDS = 10.0
TOKEN_COMMAND_SECONDS = 10.0
NOT_FOUND = (404, 410)
REFUSED = (401, 403)
UNAVAILABLE = (502, 503, 504)
HUB_HINT = (
    "set `url:` to the URL of your server; on a JupyterHub, it ends in /user/NAME/"
)


class NoAnswerError(KernelError):
    """A request got no response, so its effect is not known."""


class StoppedError(KernelError):
    """The hub reports that the server is not running, so its kernels are dead."""


class Response:
    """The response of a server or its hub, with the decoded JSON content.

    `body` is None if the response is not JSON.
    """

    def __init__(self, response: HTTPResponse) -> None:
        self.code = response.code
        # The query is left out, because it may contain a secret.
        self.redirect_path = urlsplit(response.headers.get("Location", "")).path
        self.body: Any = None
        self.is_json = False
        # The hub and its servers have this header.
        self.is_from_hub = "X-JupyterHub-Version" in response.headers
        if "json" in response.headers.get("Content-Type", ""):
            try:
                self.body = json.loads(response.body or b"")
                self.is_json = True
            except ValueError:
                pass

    @property
    def is_redirect(self) -> bool:
        """Whether the response redirects to another page."""
        return 300 <= self.code < 400

    @property
    def reason(self) -> str:
        """The server's error message, or an empty string."""
        if not isinstance(self.body, dict):
            return ""
        message = self.body.get("message") or self.body.get("reason")
        return one_line(str(message or ""), 300)

    @property
    def reason_suffix(self) -> str:
        """The server's error message after a colon, or an empty string."""
        if self.reason:
            return f": {self.reason}"
        return ""


class Server:
    """A Jupyter server.

    `get_environ` returns the environment that contains the variable with the token.
    """

    def __init__(
        self, settings: JupyterSettings, get_environ: Callable[[], Mapping[str, str]]
    ) -> None:
        self.settings = settings
        self.get_environ = get_environ
        self.base = settings.url.rstrip("/")
        self.client = SimpleAsyncHTTPClient(force_instance=True)
        self.token = ""  # empty until it is read, and after the server refuses it

    @property
    def name(self) -> str:
        """The server's URL for messages, without user name and password."""
        parts = urlsplit(self.base)
        host = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{host}{parts.path}/"

    async def request(
        self,
        path: str,
        method: str = "GET",
        body: object = None,
        seconds: float = REQUEST_SECONDS,
    ) -> Response:
        """Send a request and return the response.

        Raise KernelError if the server cannot be reached or refuses the request.
        """
        response = await self._send(path, method, body, seconds)
        if response.code in REFUSED and self.token:
            self.token = ""  # the second attempt reads the token again
            response = await self._send(path, method, body, seconds)
        await self._check_response(response)
        return response

    async def explain_loss(
        self, kernel_id: str, seconds: float = REQUEST_SECONDS
    ) -> str:
        """Return the reason why the server no longer has a kernel.

        Return an empty string if the server still has the kernel. Raise KernelError if
        the server cannot be reached or refuses the request.
        """
        path = f"/api/kernels/{kernel_id}"
        try:
            response = await self.request(path, seconds=seconds)
        except StoppedError as error:
            return f"{error.message}; {error.hint}"
        if response.code in NOT_FOUND:
            return f"{self.name} no longer has the kernel"
        return ""

    async def _send(
        self,
        path: str,
        method: str = "GET",
        body: object = None,
        seconds: float = REQUEST_SECONDS,
        base: str = "",
    ) -> Response:
        """Send a request once, and return the response even if it is an error.

        Raise NoAnswerError if there is no response, and KernelError if the server
        cannot be reached.
        """
        text = None
        if method not in ("GET", "DELETE"):
            if body is None:
                body = {}
            text = json.dumps(body)
        url = f"{base or self.base}{path}"
        request = await self.create_request(url, method, text, seconds)
        try:
            return Response(await self.client.fetch(request, raise_error=False))
        except (OSError, ValueError, HTTPClientError) as error:
            hint = f"curl -I {shlex.quote(self.base + '/api')}"
            if isinstance(error, ssl.SSLError):
                hint = (
                    "set `ca_file:` to the certificate of the CA that the server uses"
                )
            message = self.explain_unreachable(error)
            if isinstance(error, HTTPClientError):
                raise NoAnswerError(message, hint) from None
            raise KernelError(message, hint) from None

    async def create_request(
        self,
        url: str,
        method: str = "GET",
        body: str | None = None,
        seconds: float = REQUEST_SECONDS,
    ) -> HTTPRequest:
        """Return a request with token, headers and certificate.

        Raise KernelError if the token or the certificate cannot be read.
        """
        headers = HTTPHeaders(
            {"Content-Type": "application/json", **self.settings.headers}
        )
        token = await self._get_token()
        if token:
            headers["Authorization"] = f"token {token}"
        ca_file = os.path.expanduser(self.settings.ca_file) or None
        if ca_file and not os.path.isfile(ca_file):
            raise KernelError(
                f"the certificate file {ca_file} (`ca_file:`) does not exist",
                f"ls -l {shlex.quote(ca_file)}",
            )
        return HTTPRequest(
            url,
            method,
            headers,
            body,
            connect_timeout=REQUEST_SECONDS,
            request_timeout=seconds,
            ca_certs=ca_file,
            follow_redirects=False,  # a redirect leads to a login page
        )

    def explain_unreachable(self, error: Exception) -> str:
        """Return the message for an error that prevented a request to the server."""
        text = one_line(str(error), 200)
        if isinstance(error, ssl.SSLError):
            return f"{self.name}: TLS failed: {text}"
        return f"{self.name} can't be reached: {text or type(error).__name__}"

    async def _check_response(self, response: Response) -> None:
        """Raise KernelError if the server refused the request or is not available."""
        code = response.code
        token, hint = self._describe_token()
        is_refused = code in REFUSED or response.is_redirect
        # A hub responds in place of a server that is not running.
        if response.is_from_hub and is_refused:
            await self._check_hub(response, token, hint)
        if code == 401:
            raise KernelError(f"{self.name} refuses {token} (401)", hint)
        if code == 403:
            raise await self._explain_forbidden(response, token, hint)
        if response.is_redirect:
            page = response.redirect_path or "another page"
            raise KernelError(
                f"{self.name} refuses {token}: it redirects to {page} ({code})",
                HUB_HINT,
            )
        has_content = code < 500 and code != 204
        if has_content and not response.is_json:
            raise KernelError(
                f"{self.name} is not a Jupyter server: its response is not JSON"
                f" ({code})",
                HUB_HINT,
            )
        if code in UNAVAILABLE:
            raise KernelError(
                f"{self.name} is not available ({code}){response.reason_suffix}"
            )

    def _describe_token(self) -> tuple[str, str]:
        """Return a description of the token for messages, and a hint on how to set it.

        The hint is empty if the token comes from a file or from a command.
        """
        settings = self.settings
        for key in TOKEN_KEYS:
            if getattr(settings, key):
                hint = ""
                if settings.token_env:
                    hint = f"export {settings.token_env}=…"
                return f"the token from `{key}`", hint
        return "a request without a token", "to use a token, set `token_env:`"

    async def _explain_forbidden(
        self, response: Response, token: str, hint: str
    ) -> KernelError:
        """Return the error for the status 403.

        A server may also send this status for an unknown token. `token` and `hint` are
        the results of `_describe_token`. Raise KernelError if the server cannot be
        reached.
        """
        code = (await self._send("/api/me")).code
        if code in REFUSED:
            return KernelError(f"{self.name} refuses {token} (403)", hint)
        is_owner_known = code == 200 and bool(self.token)
        user = "the client"
        if is_owner_known:
            user = f"the owner of {token}"
        fix = ""
        if code != 200:
            fix = "an Enterprise Gateway requires `env: {KERNEL_USERNAME: …}`"
        return KernelError(
            f"{self.name} does not permit {user} to do this (403)"
            f"{response.reason_suffix}",
            fix,
        )

    async def _check_hub(self, refusal: Response, token: str, hint: str) -> None:
        """Ask the hub about a refused request, and raise KernelError with the reason.

        `refusal` is the response to the request, and `token` and `hint` are the results
        of `_describe_token`. Do nothing if `refusal` is from the server itself and the
        hub does not know the token's owner.
        """
        hub, _, path = self.base.partition("/user/")
        if not path:
            raise KernelError(f"{self.name} is the URL of a hub", HUB_HINT)
        # Ask the hub which user the token belongs to.
        response = await self._send("/hub/api/user", base=hub)
        if response.code in REFUSED:
            raise KernelError(f"{self.name} refuses {token} ({response.code})", hint)
        user_model: dict[str, Any] = {}
        if response.code == 200 and isinstance(response.body, dict):
            user_model = response.body
        owner = one_line(str(user_model.get("name") or ""), 100)
        if refusal.is_json:  # the server itself has responded
            if not owner:
                return
            raise KernelError(
                f"{self.name} does not permit {owner}, the owner of {token}, to do this"
                f" ({refusal.code})",
                hint,
            )
        user, _, server_name = unquote(path).partition("/")
        servers = user_model.get("servers")
        if owner == user and isinstance(servers, dict):
            start_url = f"{hub}/hub/spawn/{path}"
            self._check_server_model(servers.get(server_name), start_url)
        raise KernelError(
            f"the hub does not give access to {self.name}: the server is not running,"
            f" or {token} is not valid for it",
            f"your servers are listed at {hub}/hub/home",
        )

    def _check_server_model(self, model: Any, start_url: str) -> None:
        """Raise KernelError if the hub reports that the server is not ready.

        `model` is the hub's description of the server, or None if the server is not
        running. `start_url` is the page that starts the server.
        """
        if model is None:
            raise StoppedError(
                f"{self.name} is not running (reported by its hub)",
                f"start the server at {start_url}",
            )
        pending_action = model.get("pending")
        if pending_action:
            action = one_line(str(pending_action), 40)
            raise KernelError(f"{self.name} is not ready; its hub reports: {action}")

    async def _get_token(self) -> str:
        """Return the token, or an empty string if none is configured.

        Raise KernelError if the token cannot be read or is not valid.
        """
        settings = self.settings
        if self.token:
            return self.token
        token = ""
        if settings.token_env:
            token = self.get_environ().get(settings.token_env, "").strip()
            if not token:
                raise KernelError(
                    f"the environment variable {settings.token_env}, which should"
                    " contain a token, is not set or is empty",
                    f"export {settings.token_env}=…",
                )
        elif settings.token_file:
            path = os.path.expanduser(settings.token_file)
            token = await asyncio.to_thread(_read_token_file, path)
        elif settings.token_command:
            token = await asyncio.to_thread(
                _run_token_command, settings.token_command, self.get_environ()
            )
        # Errors about an invalid header would contain the token.
        if not (token.isascii() and token.isprintable()):
            raise KernelError(
                "the configured token is not valid: it contains a line break or another"
                " character that is not allowed in tokens"
            )
        self.token = token
        return token


def _read_token_file(path: str) -> str:
    """Return the token in a file.

    Raise KernelError if the file is empty or unreadable, or if other users can read it.
    """
    list_command = f"ls -l {shlex.quote(path)}"
    try:
        with open(path, encoding="utf-8") as stream:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            if mode & 0o077:
                raise KernelError(
                    f"{path} contains a token, but other users can read it",
                    f"chmod 600 {shlex.quote(path)}",
                )
            token = stream.read(10_000).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", "") or type(error).__name__
        raise KernelError(
            f"the token file {path} can't be read: {reason}", list_command
        ) from None
    if not token:
        raise KernelError(f"the token file {path} is empty", list_command)
    return token


def _run_token_command(command: str, environ: Mapping[str, str]) -> str:
    """Return the token that a command prints.

    Raise KernelError if the command fails or prints nothing.
    """
    try:
        result = subprocess.run(
            shlex.split(command),
            capture_output=True,
            text=True,
            timeout=TOKEN_COMMAND_SECONDS,
            stdin=subprocess.DEVNULL,
            # The client's session has access to its keyring.
            env={**os.environ, **environ},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise KernelError(
            f"the token command timed out after {TOKEN_COMMAND_SECONDS:.0f} s", command
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", "") or str(error)
        if isinstance(error, UnicodeDecodeError):
            reason = "its output is not text"
        raise KernelError(
            f"the token command could not be executed: {reason}", command
        ) from None
    if result.returncode:
        raise KernelError(
            f"the token command failed with exit code {result.returncode}", command
        )
    token = result.stdout.strip()
    if not token:
        raise KernelError("the token command printed nothing", command)
    return token
