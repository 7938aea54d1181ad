"""The parsed settings of the backend `jupyter`.

The module is imported with the configuration, so it must not do I/O or import large
modules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from stepper.policy.configuration import kernel_config
from stepper.policy.configuration.kernel_config import (
    KERNELSPEC,
    KERNELSPEC_NAME,
    PATH,
    TEXT,
    BackendConfigError,
    BackendDescription,
    KeyPath,
    Rule,
)

KIND = "jupyter"
VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
HEADER = re.compile(r"[\w!#$%&'*+.^`|~-]{1,100}", re.ASCII)  # a token of RFC 9110
TOKEN_KEYS = ("token_env", "token_file", "token_command")
# Errors do not quote the values of these keys: they may contain a token by mistake.
CONFIDENTIAL_KEYS = (*TOKEN_KEYS, "env", "headers")
TOKEN_HINT = f"To say where the token is, use one of: {', '.join(TOKEN_KEYS)}"
SECRET_HEADERS = ("authorization", "proxy-authorization", "cookie")


@dataclass(frozen=True)
class JupyterSettings:
    """Settings for kernels on a Jupyter server, a JupyterHub or a gateway."""

    url: str
    kernel: str = "python3"  # name of a kernelspec of the server
    # The id of a running kernel, to which stepper attaches without owning the kernel.
    kernel_id: str = ""
    # At most one of these three is set. It names the source of the token.
    token_env: str = ""
    token_file: str = ""
    token_command: str = ""
    env: Mapping[str, str] = field(default_factory=dict)  # such as KERNEL_USERNAME
    headers: Mapping[str, str] = field(default_factory=dict)
    ca_file: str = ""


def _is_url(value: Any) -> bool:
    """Return whether a value is an HTTP URL with a host."""
    if not kernel_config.is_text(value) or " " in value:
        return False
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:  # the port is not a number
        return False
    if port == 0 or not parts.hostname:
        return False
    return parts.scheme in ("http", "https")


_is_header_mapping = kernel_config.make_mapping_check(HEADER)


def _is_ascii_header_mapping(value: Any) -> bool:
    """Return whether a value maps header names to ASCII strings."""
    return _is_header_mapping(value) and all(text.isascii() for text in value.values())


RULES = {
    "url": Rule("a URL that starts with http:// or https://", _is_url),
    "kernel": KERNELSPEC,
    "kernel_id": Rule(
        "the id of a kernel", kernel_config.make_pattern_check(KERNELSPEC_NAME)
    ),
    "token_env": Rule(
        "the name of an environment variable",
        kernel_config.make_pattern_check(VARIABLE),
    ),
    "token_file": PATH,
    "token_command": TEXT,
    "env": Rule(
        "a mapping from names of environment variables to strings",
        kernel_config.make_mapping_check(VARIABLE),
    ),
    "headers": Rule(
        "a mapping from header names to ASCII strings", _is_ascii_header_mapping
    ),
    "ca_file": PATH,
}


def parse_settings(values: Any, path: KeyPath) -> JupyterSettings:
    """Return the validated settings of a backend.

    `path` is the sequence of keys that leads to `values`, for error messages. Raise
    BackendConfigError if the settings are not valid.
    """
    if isinstance(values, dict) and "token" in values:
        raise _build_secret_error((*path, "token"), "a token")
    arguments = kernel_config.check_keys(
        values, RULES, path, required=("url",), confidential=CONFIDENTIAL_KEYS
    )
    _check_secrets(values, path)
    return JupyterSettings(**arguments)


def _check_secrets(values: Mapping[str, Any], path: KeyPath) -> None:
    """Raise BackendConfigError if the configuration contains a secret.

    The error is also raised if the URL has a query or fragment, or if several keys name
    a token.
    """
    token_keys = [key for key in TOKEN_KEYS if key in values]
    if len(token_keys) > 1:
        raise BackendConfigError(
            (*path, token_keys[1]), f"cannot be combined with `{token_keys[0]}`"
        )
    parts = urlsplit(values["url"])
    if parts.username or parts.password or "token=" in parts.query:
        raise _build_secret_error((*path, "url"), "a token or password")
    if parts.query or parts.fragment:
        raise BackendConfigError(
            (*path, "url"), "must be the base URL of the server, without `?` or `#`"
        )
    for header in values.get("headers", ()):
        if header.lower() in SECRET_HEADERS:
            raise _build_secret_error((*path, "headers", header), "credentials")


def _build_secret_error(path: KeyPath, secret: str) -> BackendConfigError:
    """Return the error for a key whose value contains a secret."""
    reason = f"must not contain {secret}: others can read this file"
    return BackendConfigError(path, reason, TOKEN_HINT)


def describe_settings(settings: JupyterSettings) -> BackendDescription:
    """Return the description of a backend with these settings."""
    text = f"the kernelspec {settings.kernel} of {settings.url}"
    if settings.kernel_id:
        text = f"the kernel {settings.kernel_id} of {settings.url}"
    has_default_kernel = settings.kernel == JupyterSettings.kernel
    secret_variables = (settings.token_env,) if settings.token_env else ()
    return BackendDescription(
        text,
        is_python=has_default_kernel and not settings.kernel_id,
        attaches=settings.kernel_id != "",
        has_own_folder=True,
        secret_variables=secret_variables,
    )
