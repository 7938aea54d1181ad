"""The launcher for kernels on a Jupyter server.

It starts a kernel, or attaches to a running kernel that the settings name.
"""

from __future__ import annotations

import contextlib
import json
import logging
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from stepper.common import secure_files
from stepper.common.errors import KernelError
from stepper.common.text import one_line
from stepper.kernels import sealed_kernel_records
from stepper.kernels.backends.jupyter import jupyter_settings
from stepper.kernels.backends.jupyter.jupyter_process import (
    CHECK_SECONDS,
    JupyterProcess,
)
from stepper.kernels.backends.jupyter.jupyter_settings import KIND, JupyterSettings
from stepper.kernels.backends.jupyter.server_api import (
    NOT_FOUND,
    NoAnswerError,
    Response,
    Server,
    StoppedError,
)
from stepper.kernels.client import KernelClient
from stepper.policy.configuration.kernel_config import KERNELSPEC_NAME, BackendConfig
from stepper.policy.model import Death, KernelMetadata
from stepper.session.protocols import LaunchConfig, QueueStatus

START_SECONDS = 120.0  # a gateway's cluster may download images
READY_SECONDS = 60.0
MAX_LIST_REQUESTS = 10
log = logging.getLogger("stepper")


class JupyterLauncher:
    """Starts and finds the kernel of one notebook.

    `record` is the path of the kernel's record, which never contains a token. `parts`
    maps each module that the helper in the kernel may load to its package.
    `get_environ` returns the environment of the last client, which may contain a token.
    """

    queue_status: QueueStatus | None = None  # a server has no queue

    def __init__(
        self,
        record: str,
        parts: Mapping[str, str],
        get_environ: Callable[[], Mapping[str, str]],
    ) -> None:
        self.record = record
        self.parts = parts
        self.get_environ = get_environ

    async def start(self, config: LaunchConfig) -> KernelClient:
        """Start a kernel, or attach to the configured kernel.

        Return the kernel when it is ready. Raise KernelError if the kernel cannot be
        started or reached.
        """
        backend = config.backend
        assert backend is not None
        settings = backend.settings
        assert isinstance(settings, JupyterSettings)
        try:
            await self.cancel_request()
        except KernelError as error:
            # If the server is the same, the request below fails with the same error.
            log.warning("%s", error.message)
        server = Server(settings, lambda: {**self.get_environ(), **config.environ})
        data = _create_record(backend, settings)
        # The record is written before the request: if the response is lost, the kernel
        # is found by its session.
        sealed_kernel_records.save(self.record, data)
        try:
            data["kernel"] = await self._request_kernel(server, data)
        except NoAnswerError:
            raise
        except KernelError:
            secure_files.remove(self.record)
            raise
        process = JupyterProcess(data, server, self.record)
        kernel = KernelClient(process, self.parts)
        try:
            sealed_kernel_records.save(self.record, data)
            await kernel.connect(READY_SECONDS)
            sealed_kernel_records.save(
                self.record, {**data, "life": process.channels.kernel_session}
            )
            # Later clients may have a newer token.
            server.get_environ = lambda: {**config.environ, **self.get_environ()}
        except BaseException:
            with contextlib.suppress(KernelError):  # the record remains
                await kernel.shutdown()
            raise
        return kernel

    async def _request_kernel(self, server: Server, data: Mapping[str, Any]) -> str:
        """Start a kernel, or find the configured one, and return its id.

        The kernel can be found later by the name of its session, or on an Enterprise
        Gateway by the id in `data`. Raise KernelError if there is no kernel.
        """
        settings = server.settings
        if settings.kernel_id:
            response = await server.request(f"/api/kernels/{settings.kernel_id}")
            if response.code in NOT_FOUND:
                raise KernelError(f"{server.name} has no kernel {settings.kernel_id}")
            if not _get_kernel_id(response):
                raise KernelError(
                    f"{server.name} returned no information about the kernel"
                    f" {settings.kernel_id} (HTTP {response.code})"
                    f"{response.reason_suffix}"
                )
            return settings.kernel_id
        response = await self._request_start(server, data)
        kernel_id = _get_kernel_id(response)
        if kernel_id:
            return kernel_id
        kernelspecs = await list_kernelspecs(server)
        if kernelspecs and settings.kernel not in kernelspecs:
            raise KernelError(
                f"{server.name} has no kernelspec {settings.kernel!r}; available:"
                f" {', '.join(kernelspecs)}",
                "set `kernel:` of the backend to one of them",
            )
        raise KernelError(
            f"{server.name} did not start a kernel {settings.kernel!r}"
            f" (HTTP {response.code}){response.reason_suffix}"
        )

    async def _request_start(self, server: Server, data: Mapping[str, Any]) -> Response:
        """Request a new kernel from the server, and return the response.

        Raise KernelError if the server cannot be reached or refuses the request.
        """
        settings = server.settings
        if settings.env:  # the sessions API has no environment variables
            environ = {**settings.env, "KERNEL_ID": data["kernel"]}
            body: dict[str, Any] = {"name": settings.kernel, "env": environ}
            return await server.request("/api/kernels", "POST", body, START_SECONDS)
        name = _create_session_name(data["session"])
        body = {
            "path": name,
            "name": name,
            "type": "notebook",
            "kernel": {"name": settings.kernel},
        }
        return await server.request("/api/sessions", "POST", body, START_SECONDS)

    async def _find_session_kernel(self, server: Server, session: str) -> str:
        """Return the id of a session's kernel, or an empty string if there is none.

        The id is unknown if the response to the start request was lost. If the server
        does not list sessions, the session is requested again. Raise KernelError if the
        server cannot be reached.
        """
        try:
            sessions = await _list_sessions(server)
        except NoAnswerError:
            raise
        except StoppedError:
            return ""
        except KernelError:
            # A request for a session with the same name returns the existing session.
            return await self._request_kernel(server, {"session": session})
        name = _create_session_name(session)
        for entry in sessions:
            # Gateways nest the path.
            paths = (entry.get("path"), entry.get("notebook", {}).get("path"))
            if name in paths:
                return str(entry["kernel"]["id"])
        return ""

    async def cancel_request(self) -> None:
        """Delete the recorded kernel if stepper started it, and remove the record.

        Raise KernelError if the kernel may still be running.
        """
        process = self._read_record()
        if process is None:
            return
        if not process.id:
            session = process.channels.session
            process.id = await self._find_session_kernel(process.server, session)
        if process.id:
            await process.kill()
        process.remove_record()

    def _read_record(self) -> JupyterProcess | None:
        """Return the process of the recorded kernel.

        Return None if there is no record, or if the record is not valid.
        """
        try:
            data = json.loads(secure_files.read(self.record))
            if data.get("kind") != KIND:
                return None
            identifiers = [data["session"]]
            if data["kernel"]:  # empty if the server's response was lost
                identifiers.append(data["kernel"])
            if not all(map(KERNELSPEC_NAME.fullmatch, identifiers)):
                return None
            values = data["definition"][KIND]
            settings = jupyter_settings.parse_settings(values, (KIND,))
            server = Server(settings, self.get_environ)
            return JupyterProcess(data, server, self.record)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    async def attach(self) -> KernelClient | Death | None:
        """Return the kernel that an earlier daemon started.

        Return how the kernel died if it is dead, or None if there is no recorded
        kernel. Nothing is executed in the kernel.
        """
        process = self._read_record()
        if process is None or not process.id:
            return None
        process.checked_at = -CHECK_SECONDS
        kernel = KernelClient(process, self.parts)
        death = await kernel.check_death()
        if death is None:
            return kernel
        with contextlib.suppress(KernelError):
            await kernel.shutdown()
        return death


def _create_record(backend: BackendConfig, settings: JupyterSettings) -> dict[str, Any]:
    """Return the record of a new kernel before its start.

    The kernel's id is empty, unless stepper can choose the id. This is the case if
    `env` is set, because KERNEL_ID is then sent to the server.
    """
    kernel_id = ""
    if settings.env:
        kernel_id = str(uuid.uuid4())
    return {
        "kind": KIND,
        "name": backend.name,
        "definition": dict(backend.definition),
        "kernel": kernel_id,
        "session": uuid.uuid4().hex,
    }


def _create_session_name(session: str) -> str:
    """Return the name of a kernel's session on the server."""
    return f"stepper-{session[:12]}"


def _get_kernel_id(response: Response) -> str:
    """Return the kernel id in a response, or an empty string if there is none."""
    if not isinstance(response.body, dict) or response.code >= 300:
        return ""
    kernel = response.body.get("kernel") or response.body
    kernel_id = kernel.get("id")
    if kernel_id is None or not KERNELSPEC_NAME.fullmatch(str(kernel_id)):
        return ""
    return str(kernel_id)


async def _list_sessions(server: Server) -> list[dict[str, Any]]:
    """Return the sessions of a server.

    Raise KernelError if the server cannot be reached or does not list its sessions.
    """
    # A gateway fails once for each session whose kernel does not exist.
    for _ in range(MAX_LIST_REQUESTS):
        response = await server.request("/api/sessions")
        if isinstance(response.body, list):
            return [entry for entry in response.body if isinstance(entry, dict)]
        if response.code < 500:
            break
    raise KernelError(f"{server.name} does not list its sessions ({response.code})")


async def list_kernelspecs(server: Server) -> list[str]:
    """Return the names of the server's kernelspecs.

    Return an empty list if the server does not list its kernelspecs. Raise KernelError
    if the server cannot be reached.
    """
    response = await server.request("/api/kernelspecs")
    if not isinstance(response.body, dict):
        return []
    kernelspecs = response.body.get("kernelspecs")
    if not isinstance(kernelspecs, dict):
        return []
    return [one_line(str(name), 100) for name in kernelspecs]


async def get_metadata(
    settings: JupyterSettings, environ: Mapping[str, str]
) -> KernelMetadata:
    """Return the metadata of the server's kernel for the notebook file.

    Raise KernelError if the server cannot be reached or lacks the kernel.
    """
    server = Server(settings, lambda: environ)
    name = settings.kernel
    missing = f"kernelspec {name!r}"
    if settings.kernel_id:
        response = await server.request(f"/api/kernels/{settings.kernel_id}")
        name = ""
        if isinstance(response.body, dict):
            name = str(response.body.get("name"))
        missing = f"kernel {settings.kernel_id} with an installed kernelspec"
    response = await server.request("/api/kernelspecs")
    try:
        spec = response.body["kernelspecs"][name]["spec"]
        display_name = str(spec["display_name"])
        language = str(spec["language"])
    except (KeyError, TypeError):
        raise KernelError(
            f"{server.name} has no {missing}",
            "stepper kernels  # shows the kernelspecs of the server",
        ) from None
    return KernelMetadata(
        one_line(name, 100), one_line(display_name, 100), one_line(language, 100)
    )


async def check_server(
    settings: JupyterSettings, environ: Mapping[str, str]
) -> list[str]:
    """Check that the server can be reached and has the configured kernel.

    Return a list with a description of the server's kernelspecs. The list is empty if
    the server has none. Raise KernelError if a check fails.
    """
    server = Server(settings, lambda: environ)
    kernelspecs = await list_kernelspecs(server)
    names = ", ".join(kernelspecs)
    if settings.kernel_id:
        kernel_id = settings.kernel_id
        response = await server.request(f"/api/kernels/{kernel_id}")
        if response.code in NOT_FOUND:
            raise KernelError(f"{server.name} has no kernel {kernel_id}")
    elif kernelspecs and settings.kernel not in kernelspecs:
        raise KernelError(
            f"{server.name} has no kernelspec {settings.kernel!r}; available: {names}"
        )
    if kernelspecs:
        return [f"kernelspecs: {names}"]
    return []
