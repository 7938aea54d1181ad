"""The kernel provider `jupyter`: a server starts a kernel, or has one of the id that is named."""

from __future__ import annotations

import contextlib
import json
import logging
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from stepper.common import private_files
from stepper.common.errors import KernelError
from stepper.common.text import one_line
from stepper.kernels import kernel_records
from stepper.kernels.backends.jupyter.server_api import (
    GONE,
    NoAnswerError,
    Server,
    StoppedError,
)
from stepper.kernels.backends.jupyter.server_kernel import LOOK_SECONDS, JupyterProcess
from stepper.kernels.client import KernelClient
from stepper.policy import kernel_config
from stepper.policy.kernel_config import KERNELSPEC_NAME, BackendConfig, JupyterSettings
from stepper.policy.model import Death
from stepper.session.protocols import KernelMetadata, LaunchConfig, QueueStatus

START_SECONDS = 120.0  # a gateway's cluster pulls images
READY_SECONDS = 60.0
TRIES = 10
log = logging.getLogger("stepper")


class JupyterKernels:
    """One notebook's kernel, kept in `record` for the next daemon: its id, and no token."""

    queue_status: QueueStatus | None = None  # it waits in no queue

    def __init__(
        self,
        record: str,
        runtime: str,
        parts: Mapping[str, str],
        environ: Callable[[], Mapping[str, str]],
    ) -> None:
        self.record, self.parts, self.environ = record, parts, environ

    async def start(self, place: LaunchConfig) -> KernelClient:
        """Have a kernel started, or take the one that is named; return it when it is ready. Raise KernelError."""
        assert place.backend is not None and isinstance(
            place.backend.settings, JupyterSettings
        )
        try:
            await self.cancel_request()
        except KernelError as error:  # where it is this server, what follows fails, too
            log.warning("%s", error.message)
        server, told = (
            Server(place.backend.settings, lambda: {**self.environ(), **place.environ}),
            {
                "kind": "jupyter",
                "name": place.backend.name,
                "definition": dict(place.backend.definition),
                "kernel": str(uuid.uuid4()) if place.backend.settings.env else "",
                "session": uuid.uuid4().hex,
            },
        )
        # before it is asked for: what the answer does not reach is found by its name
        self._keep(told)
        try:
            told["kernel"] = await self._asked(server, told)
        except NoAnswerError:
            raise
        except KernelError:
            private_files.remove(self.record)
            raise
        process = JupyterProcess(told, server, self.record)
        kernel = KernelClient(process, self.parts)
        try:
            self._keep(told)
            await kernel.connect(READY_SECONDS)
            self._keep({**told, "life": process.channels.life})
            # another token may have come with it
            server.environ = lambda: {**place.environ, **self.environ()}
        except BaseException:
            with contextlib.suppress(KernelError):  # it stays on record
                await kernel.shutdown()
            raise
        return kernel

    async def _asked(self, server: Server, told: Mapping[str, Any]) -> str:
        """Return the id of the kernel that a server has, or starts; raise KernelError.

        It is found again by the name of its session, or by an id of ours where an Enterprise Gateway is to take that.
        """
        where = server.where
        if where.kernel_id:
            answer = await server.request(f"/api/kernels/{where.kernel_id}")
            if answer.code in GONE:
                raise KernelError(f"{server.name} has no kernel {where.kernel_id}")
        elif where.env:  # sessions take none
            asked = {
                "name": where.kernel,
                "env": {**where.env, "KERNEL_ID": told["kernel"]},
            }
            answer = await server.request("/api/kernels", "POST", asked, START_SECONDS)
        else:
            name = _name(told["session"])
            asked = {
                "path": name,
                "name": name,
                "type": "notebook",
                "kernel": {"name": where.kernel},
            }
            answer = await server.request("/api/sessions", "POST", asked, START_SECONDS)
        body = (
            answer.body if isinstance(answer.body, dict) and answer.code < 300 else {}
        )
        found = (body.get("kernel") or body).get("id")
        if not KERNELSPEC_NAME.fullmatch(str(found)) or found is None:
            known = await specs(server)
            if known and where.kernel not in known:
                why = f"{server.name} has no kernelspec {where.kernel!r} ({', '.join(known)})"
                raise KernelError(why, "`kernel:` of the place names one of them")
            raise KernelError(
                f"{server.name} starts no kernel {where.kernel!r} ({answer.code}): {answer.why}"
            )
        return str(found)

    async def _named(self, server: Server, session: str) -> str:
        """Return the id of the kernel whose start got no answer, '' where there is none; raise KernelError."""
        try:
            for _ in range(TRIES):  # a gateway fails once for each whose kernel is gone
                if (answer := await server.request("/api/sessions")).code < 500:
                    break
            found = answer.body
        except NoAnswerError:
            raise
        except StoppedError:
            return ""
        except KernelError:
            # it lists none: by its name it returns one that is there, else starts it
            return await self._asked(server, {"session": session})
        for each in found if isinstance(found, list) else []:
            # gateways nest it
            if _name(session) in (
                each.get("path"),
                each.get("notebook", {}).get("path"),
            ):
                return str(each["kernel"]["id"])
        return ""

    def _keep(self, told: Mapping[str, Any]) -> None:
        try:
            kernel_records.write(self.record, told)
        except OSError as error:
            raise KernelError(
                f"the kernel's record can't be written: {error.strerror}",
                "df -h .stepper",
            ) from error

    async def cancel_request(self) -> None:
        """End the kernel on record, whose server could not be reached when it was to end; raise KernelError."""
        process = self._recorded()
        if process is not None:
            if not process.id:
                process.id = await self._named(process.server, process.channels.session)
            if process.id:
                await process.kill()
            process.forget()

    def _recorded(self) -> JupyterProcess | None:
        try:
            told = json.loads(private_files.read(self.record))
            names = (told["kernel"] or "-", told["session"])
            if told.get("kind") != "jupyter" or not all(
                map(KERNELSPEC_NAME.fullmatch, names)
            ):
                return None
            place = kernel_config.parse_backends({told["name"]: told["definition"]})[
                told["name"]
            ]
            assert isinstance(
                place.settings, JupyterSettings
            )  # its definition names that kind
            return JupyterProcess(
                told, Server(place.settings, self.environ), self.record
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    async def attach(self) -> KernelClient | Death | None:
        """Return the kernel that a former daemon left, or how it ended; None where there was none. Asks it nothing."""
        process = self._recorded()
        if process is None or not process.id:
            return None
        process.looked_at = -LOOK_SECONDS
        kernel = KernelClient(process, self.parts)
        death = await kernel.check_death()
        if death is not None:
            with contextlib.suppress(KernelError):
                await kernel.shutdown()
        return death or kernel


def _name(session: str) -> str:
    """Return the name of a kernel among the server's sessions."""
    return f"stepper-{session[:12]}"


async def specs(server: Server) -> list[str]:
    """Return the names of a server's kernelspecs; raise KernelError."""
    answer = await server.request("/api/kernelspecs")
    found = answer.body.get("kernelspecs") if isinstance(answer.body, dict) else None
    return (
        [one_line(str(name), 100) for name in found] if isinstance(found, dict) else []
    )


async def metadata(place: BackendConfig, environ: Mapping[str, str]) -> KernelMetadata:
    """Return what a notebook says of a kernel there, as its server does; raise KernelError."""
    assert isinstance(place.settings, JupyterSettings)
    server, name = Server(place.settings, lambda: environ), place.settings.kernel
    if place.attaches:
        told = (await server.request(f"/api/kernels/{place.settings.kernel_id}")).body
        name = str(told.get("name")) if isinstance(told, dict) else ""
    answer = await server.request("/api/kernelspecs")
    try:
        spec = answer.body["kernelspecs"][name]["spec"]
        texts = (name, str(spec["display_name"]), str(spec["language"]))
    except (KeyError, TypeError):
        what = (
            f"kernel {place.settings.kernel_id}"
            if place.attaches
            else f"kernelspec {name!r}"
        )
        raise KernelError(
            f"{server.name} has no {what}", "stepper kernels  # shows what it has"
        ) from None
    return KernelMetadata(*(one_line(text, 100) for text in texts))


async def look(place: BackendConfig, environ: Mapping[str, str]) -> list[str]:
    """Return the kernelspecs of a server; raise KernelError where it can't be reached."""
    assert isinstance(place.settings, JupyterSettings)
    server = Server(place.settings, lambda: environ)
    found = await specs(server)
    name = place.settings.kernel
    if place.attaches:
        kernel_id = place.settings.kernel_id
        answer = await server.request(f"/api/kernels/{kernel_id}")
        if answer.code in GONE:
            raise KernelError(f"{server.name} has no kernel {kernel_id}")
    elif found and name not in found:
        raise KernelError(
            f"{server.name} has no kernelspec {name!r}. Its kernelspecs: {', '.join(found)}"
        )
    return [f"kernelspecs: {', '.join(found)}"] if found else []
