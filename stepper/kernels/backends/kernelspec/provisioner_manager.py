"""Creation of jupyter_client's kernel manager for a kernel provisioner.

jupyter_client finds provisioners by their entry points in stepper's environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import zmq.asyncio
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import KernelProvisionerFactory

from stepper.common.errors import KernelError
from stepper.kernels import zmq_channels
from stepper.kernels.backends.kernelspec.kernelspecs import PYTHON_NAMES, Kernelspec


class SingleSpecManager(KernelSpecManager):
    """A kernelspec manager that returns one given kernelspec.

    jupyter_client's own manager would search in stepper's environment.
    """

    spec: KernelSpec | None = None

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """Return the given kernelspec for any name."""
        assert self.spec is not None
        return self.spec


def read_spec(kernelspec: Kernelspec, python: str) -> KernelSpec:
    """Return a kernelspec as jupyter_client represents it.

    `python` is the project's interpreter. It replaces the program `python` or
    `python3`.
    """
    spec = KernelSpec.from_resource_dir(kernelspec.folder)
    if python and spec.argv and spec.argv[0] in PYTHON_NAMES:
        spec.argv = [python, *spec.argv[1:]]
    return spec


def check_provisioner(kernelspec: Kernelspec) -> None:
    """Raise KernelError if the provisioner of a kernelspec is not installed."""
    spec = KernelSpec.from_resource_dir(kernelspec.folder)
    factory = KernelProvisionerFactory.instance()
    if not factory.is_provisioner_available(spec):
        raise KernelError(
            f"the kernelspec {kernelspec.name!r} needs the kernel provisioner"
            f" {kernelspec.provisioner!r}, which is not installed in stepper's"
            f" environment ({sys.prefix})",
            f"uv pip install --python {sys.executable} PACKAGE",
        )


def create_manager(
    spec: KernelSpec, kernel_id: str, connection_file: str
) -> AsyncKernelManager:
    """Return a kernel manager for a kernel that has not been started."""
    spec_manager = SingleSpecManager()
    spec_manager.spec = spec
    manager = AsyncKernelManager(
        kernel_spec_manager=spec_manager,
        connection_file=connection_file,
        # This context shares the threads of the context of all kernels.
        context=zmq.asyncio.Context(zmq_channels.context),
    )
    manager.kernel_id = kernel_id
    return manager


async def restore_manager(
    spec: KernelSpec, record: Mapping[str, Any], connection_file: str
) -> AsyncKernelManager:
    """Return a kernel manager for a kernel that an earlier daemon started.

    Raise ModuleNotFoundError if the provisioner is no longer installed. Exceptions of
    the provisioner are raised unchanged.
    """
    kernel_id = str(record["kernel"])
    manager = create_manager(spec, kernel_id, connection_file)
    connection = dict(record["connection"])
    connection["key"] = str(connection["key"]).encode()
    manager.load_connection_info(connection)  # type: ignore[arg-type]
    factory = KernelProvisionerFactory.instance()
    provisioner = factory.create_provisioner_instance(kernel_id, spec, parent=manager)
    info = dict(record["provisioner_info"])
    info["connection_info"] = connection
    await provisioner.load_provisioner_info(info)
    manager.provisioner = provisioner
    return manager


def get_connection(manager: AsyncKernelManager) -> dict[str, Any]:
    """Return the kernel's connection fields as values that JSON can represent."""
    connection = dict(manager.get_connection_info())
    return {name: convert_to_json_value(value) for name, value in connection.items()}


def convert_to_json_value(value: Any) -> Any:
    """Return a value that can be encoded as JSON.

    Bytes are decoded, and values of other types are converted with `str`.
    """
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, dict):
        return {str(name): convert_to_json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [convert_to_json_value(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)


def remove_connection_file(manager: AsyncKernelManager) -> None:
    """Remove the connection file of a kernel that has exited."""
    if manager.connection_file and os.path.exists(manager.connection_file):
        os.unlink(manager.connection_file)
