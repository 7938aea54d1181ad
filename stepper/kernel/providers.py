"""The places where kernels run: the only module that imports their providers. A place is one folder, and one row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from stepper.ground import private
from stepper.ground.errors import KernelError
from stepper.kernel.local.kernels import LocalKernels
from stepper.policy.model import Death
from stepper.session.ports import Kernel, KernelMetadata, KernelPlace, KernelProvider, Queued

if TYPE_CHECKING:
    from stepper.kernel.local.specs import Spec
    from stepper.policy.kernels import Place


def _ssh(*given: Any) -> KernelProvider:
    from stepper.kernel.ssh.kernels import SshKernels

    return SshKernels(*given)


def _slurm(*given: Any) -> KernelProvider:
    from stepper.kernel.slurm.kernels import SlurmKernels

    return SlurmKernels(*given)


def _jupyter(*given: Any) -> KernelProvider:
    from stepper.kernel.jupyter.kernels import JupyterKernels

    return JupyterKernels(*given)


# The kind of a place → what starts a notebook's kernel there, given the file for its record, the folder for sockets and
# what the kernel's helper may load besides its own. An installed kernelspec's kernel is a process of this machine, too.
PLACES: dict[str, Callable[[str, str, Mapping[str, str]], KernelProvider]] = {
    "local": LocalKernels,
    "kernelspec": LocalKernels,
    "ssh": _ssh,
    "slurm": _slurm,
    "jupyter": _jupyter,
}

PYTHON = KernelMetadata("python3", "Python 3", "python")


def metadata(place: Place | None, environ: Mapping[str, str], python: str) -> KernelMetadata:
    """Return what a notebook says of a kernel in a place (None for the project's); raise KernelError."""
    if place is None or not place.is_local:
        return PYTHON
    spec = _spec(place, environ, python)
    return KernelMetadata(spec.name, spec.display_name, spec.language)


async def look(place: Place, environ: Mapping[str, str], python: str) -> list[str]:
    """Return what a place offers, in short lines; raise KernelError where it can't be reached."""
    if place.is_local:
        spec = _spec(place, environ, python)
        return [f"{spec.display_name} ({spec.language}): {spec.folder}"]
    if place.kind == "ssh":
        from stepper.kernel.ssh import kernels

        return await kernels.look(place)
    if place.kind == "slurm":
        from stepper.kernel.slurm import kernels as jobs
        from stepper.policy.kernels import Slurm

        assert isinstance(place.where, Slurm)  # its kind says so
        return await jobs.look(place.where, environ)
    if place.kind == "jupyter":
        from stepper.kernel.jupyter import kernels as servers

        return await servers.look(place, environ)
    raise unknown(place.kind)


def _spec(place: Place, environ: Mapping[str, str], python: str) -> Spec:
    from stepper.kernel.local import specs
    from stepper.policy.kernels import Kernelspec

    assert isinstance(place.where, Kernelspec)  # what is local is one
    return specs.named(place.where.kernelspec, environ, python)


async def reconcile(places: Iterable[Place], runtime: str, records: str, environ: Mapping[str, str]) -> None:
    """End what former daemons started there for this project and no record tells of; raise KernelError."""
    if any(place.kind == "slurm" for place in places):
        from stepper.kernel.slurm import kernels as jobs

        await jobs.reconcile(runtime, records, environ)


def unknown(kind: str) -> KernelError:
    """Return the error on a kind of place whose provider there is not."""
    return KernelError(f"this version of stepper starts no kernels in places of the kind `{kind}`")


class AnyPlace:
    """One notebook's kernel, wherever it is to run; where the last one does, its record tells."""

    def __init__(
        self, record: str, runtime: str, parts: Mapping[str, str], accepts: Callable[[Any], bool] = bool
    ) -> None:
        self.record, self.given, self.accepts = record, (record, runtime, parts), accepts
        self.starts: KernelProvider | None = None  # what starts one now

    @property
    def queued(self) -> Queued | None:
        """What a start that is under way waits for in a queue."""
        return self.starts.queued if self.starts else None

    async def start(self, place: KernelPlace) -> Kernel:
        """Start a kernel and return it when it is ready; raise KernelError."""
        kind = place.at.kind if place.at else "local"
        if kind not in PLACES:
            raise unknown(kind)
        if self._recorded()[0] != kind:
            await self.withdraw()  # a job may wait for it elsewhere
        self.starts = PLACES[kind](*self.given)
        try:
            return await self.starts.start(place)
        finally:
            self.starts = None

    async def attach(self) -> Kernel | Death | None:
        """Return the kernel that a former daemon left, or how it ended; None where there was none. Asks it nothing."""
        kind, definition = self._recorded()
        if kind not in PLACES:
            return Death(f"the record {self.record} tells of a place of the kind {kind!r:.100}, unknown here")
        if definition is not None and not self.accepts(definition):
            return Death(f"the record {self.record} tells of a place that was not accepted by you")
        return await PLACES[kind](*self.given).attach()

    async def withdraw(self) -> None:
        """End what was asked for and is no kernel yet; raise KernelError."""
        kind, definition = self._recorded()
        if kind in PLACES and definition is not None and self.accepts(definition):
            await PLACES[kind](*self.given).withdraw()

    def _recorded(self) -> tuple[str, Any]:
        """Return the kind and the definition of the place that the record tells of; what can't be read is local."""
        try:
            told = json.loads(private.read(self.record))
            return told.get("kind", "local"), told.get("definition")
        except (OSError, ValueError, AttributeError, TypeError):
            return "local", None
