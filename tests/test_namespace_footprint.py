"""What user code can see of the helper, compared with a plain ipykernel.

Each difference is a row of the table in the architecture page.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

from tests.conftest import ROOT, Project, text_of

PROBE = r"""
import asyncio, builtins, concurrent.futures.thread, faulthandler, gc, json, os, resource, signal, sys, threading, warnings, importlib
shell = get_ipython()
kernel = shell.kernel

def named(value):
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"

def own(value):
    return sorted(name for name in vars(value) if not name.startswith("_trait"))

seen = {
    "Thread.start": named(threading.Thread.start), "Thread.run": named(threading.Thread.run),
    "submit": named(concurrent.futures.thread.ThreadPoolExecutor.submit), "Thread": sorted(vars(threading.Thread)),
    "stdout": [named(type(sys.stdout)), own(sys.stdout)], "stderr": [named(type(sys.stderr)), own(sys.stderr)],
    "displayhook": [named(type(sys.displayhook)), own(sys.displayhook)],
    "display_pub": [named(type(shell.display_pub)), own(shell.display_pub)],
    "session": [named(type(kernel.session)), own(kernel.session), named(kernel.session.pack)],
    "kernel": [named(type(kernel)), own(kernel)], "iopub thread": own(kernel.iopub_thread),
    "formatter": own(shell.display_formatter), "shell": own(shell),
    "handlers": {str(number): named(signal.getsignal(number)) for number in signal.valid_signals()},
    "modules": sorted(name for name in sys.modules if not name.startswith(("encodings", "IPython", "jedi", "parso"))),
    "environment": sorted(os.environ), "threads": sorted(type(one).__name__ + one.name.rstrip("-0123456789 (watch_pipe_fd)") for one in threading.enumerate() if not type(one).__name__.startswith("ParentPoller")),
    "descriptors": [os.readlink(f"/proc/self/fd/{number}").split(":")[0].split("/")[1 if number > 2 else -1] for number in (1, 2)],
    "events": {name: [named(one).split(".")[-1] for one in held if "_stepper" in named(one)] for name, held in shell.events.callbacks.items()},
    "transformers": [named(one) for one in shell.ast_transformers], "exception": [named(sys.excepthook), named(threading.excepthook)],
    "faulthandler": faulthandler.is_enabled(), "builtins": sorted(vars(builtins)), "finders": list(map(named, sys.meta_path)),
    "hooks": len(sys.path_hooks), "warnings": [named(warnings.showwarning), len(warnings.filters)], "gc": len(gc.callbacks),
    "loop": named(type(asyncio.get_running_loop())) if False else "", "path": len(sys.path), "names": sorted(globals()),
    "oom": open("/proc/self/oom_score_adj").read().strip() if os.path.exists("/proc/self/oom_score_adj") else "",
    "limits": [resource.getrlimit(number) for number in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_CORE)],
    "trace": [sys.gettrace() is None, sys.getprofile() is None], "recursion": sys.getrecursionlimit(),
    "history": [len(shell.user_ns["In"]), len(shell.user_ns["Out"])], "count": shell.execution_count,
    "audit hooks": sum(one.__code__.co_filename == "<stepper audit hook>" for one in gc.get_objects() if type(one) is type(lambda: None)),
    "settings": {name: str(getattr(shell, name)) for name in ("ast_node_interactivity", "autocall", "colors", "xmode")},
}
print(json.dumps(seen))
"""
# The helper's visible traces → the reason in the architecture page.
EXPECTED = {
    "audit hooks": "sys.addaudithook",
    "environment": "STEPPER_KERNEL",
    "events": "pre_run_cell",
    "faulthandler": "faulthandler",
    "handlers": "SIGURG",
    "iopub thread": "send_multipart",
    "modules": "_stepper_helper",
    "oom": "oom_score_adj",
    "warnings": "showwarning",
}


def inspect_plain_kernel(folder: Path) -> dict[str, Any]:
    """The names of an unmodified kernel."""
    environ = {
        name: value
        for name, value in os.environ.items()
        if name != "PYTEST_CURRENT_TEST"
    }
    manager = KernelManager(transport="ipc", ip=str(folder / "k"))
    manager.start_kernel(
        env=environ,
        cwd=str(folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        extra_arguments=["--HistoryManager.hist_file=:memory:"],
    )
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(120)
    messages: list[str] = []
    # because a request also installs the helper
    client.execute_interactive("None", timeout=60, silent=True)
    client.execute_interactive(
        PROBE,
        timeout=60,
        output_hook=lambda item: messages.append(item["content"].get("text", "")),
    )
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    return json.loads("".join(messages))


@pytest.fixture
def both_footprints(
    spawned_kernels: None, project: Project, tmp_path: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    notebook = project.new()
    cell, response = notebook.insert(PROBE)
    assert "ran ok" in response.text, response.text
    return inspect_plain_kernel(tmp_path), json.loads(text_of(notebook.cell(cell)))


@pytest.mark.nightly
def test_helper_footprint_matches_the_architecture_page(
    both_footprints: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    plain_footprint, helper_footprint = both_footprints
    differ = {
        name
        for name in plain_footprint
        if helper_footprint[name] != plain_footprint[name]
    }
    assert differ <= set(EXPECTED), {
        name: (plain_footprint[name], helper_footprint[name])
        for name in differ - set(EXPECTED)
    }
    # and the interpreter's
    callers = {
        "COLUMNS",
        "LINES",
        "VIRTUAL_ENV",
        "JPY_PARENT_PID",
        "OLDPWD",
        "PWD",
        "SHLVL",
        "_",
    }
    assert set(helper_footprint["environment"]) ^ set(
        plain_footprint["environment"]
    ) <= callers | {"STEPPER_KERNEL"}
    assert {name for name in helper_footprint["modules"] if "step" in name} == {
        "_stepper_helper"
    }
    new_modules = (
        set(helper_footprint["modules"])
        - set(plain_footprint["modules"])
        - {"_stepper_helper"}
    )
    assert not [
        name
        for name in new_modules
        if name.partition(".")[0] not in sys.stdlib_module_names | {"_distutils_hack"}
    ], new_modules
    assert {
        name: callbacks
        for name, callbacks in helper_footprint["events"].items()
        if callbacks
    } == {
        "pre_run_cell": ["on_pre_run"],
        "post_run_cell": ["on_post_run"],
    }
    changed = {
        number
        for number, handler in helper_footprint["handlers"].items()
        if plain_footprint["handlers"][number] != handler
    }
    assert changed <= {str(int(__import__("signal").SIGURG))}
    assert set(helper_footprint["iopub thread"]) - set(
        plain_footprint["iopub thread"]
    ) == {"send_multipart"}
    assert (plain_footprint["audit hooks"], helper_footprint["audit hooks"]) == (0, 1)
    assert (plain_footprint["faulthandler"], helper_footprint["faulthandler"]) == (
        False,
        True,
    )


def test_architecture_page_lists_each_row() -> None:
    text = (ROOT / "docs" / "development" / "decisions.md").read_text()
    _, _, table = text.partition("## What the helper changes in the user's kernel\n")
    assert table, "there is no table"
    rows = [
        line for line in table.split("\n## ")[0].splitlines() if line.startswith("| ")
    ]
    for reason in EXPECTED.values():
        assert any(re.search(re.escape(reason), row) for row in rows), reason
