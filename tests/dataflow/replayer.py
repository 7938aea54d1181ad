"""Run sources in IPython and record what each of them did.

`python replayer.py FOLDER` reads a JSON list of sources from standard input and prints
JSON: for each source, whether it succeeded, its output with the figures that it drew,
the names that it bound or changed with a hash of each value, and the fingerprints that
stepper's helper in the kernel would report. The replayer runs in its own environment,
not in stepper's.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

os.environ["MPLBACKEND"] = "Agg"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from stepper.kernels.in_kernel.value_fingerprints import (
    fingerprint_value,
)
from tests.dataflow.tracer import fingerprint

CELL_SECONDS = 20  # of processor time


def hash_figures() -> list[str]:
    """Return hashes of the figures that are open, and close them."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return []
    hashes = []
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        stream = io.BytesIO()
        with contextlib.suppress(Exception):
            figure.savefig(stream, format="raw", dpi=40)
        hashes.append(hashlib.md5(stream.getvalue()).hexdigest())
    pyplot.close("all")
    return hashes


def list_values(names: dict[str, Any]) -> dict[str, tuple[int, str, str]]:
    """Return the id, the hash and the reported fingerprint of each value."""
    values = {}
    for name, value in list(names.items()):
        if name.startswith("_") or name in ("In", "Out", "get_ipython", "exit", "quit"):
            continue
        reported = fingerprint_value(value, time.perf_counter() + 1) or ""
        values[name] = (id(value), fingerprint(value) or "", reported)
    return values


def run_cell(shell: Any, source: str) -> tuple[bool, str]:
    """Run a source; return whether it succeeded, and its output."""
    output = io.StringIO()
    errors: list[Any] = []
    shell._showtraceback = lambda *message: errors.append(message)
    signal.setitimer(signal.ITIMER_PROF, CELL_SECONDS)
    try:
        with (
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            result = shell.run_cell(source, store_history=False)
        succeeded = result.success and not errors
    except BaseException:  # noqa: BLE001  # cells can raise anything
        succeeded = False
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return bool(succeeded), output.getvalue()


def replay(folder: str, sources: list[str]) -> list[dict[str, Any]]:
    """Run the sources in a folder; return a record for each of them."""
    from IPython.core.interactiveshell import InteractiveShell

    names: dict[str, Any] = {}
    shell = InteractiveShell.instance(user_ns=names)
    os.chdir(folder)
    sys.path.insert(0, folder)  # notebooks import modules beside them

    def stop(*_: Any) -> None:
        raise TimeoutError("too long")

    signal.signal(signal.SIGPROF, stop)
    before: dict[str, tuple[int, str, str]] = {}
    records = []
    for source in sources:
        # the inline backend would close the figures
        plain_source = re.sub(r"(?m)^(\s*)%matplotlib.*$", r"\1pass", source)
        succeeded, output = run_cell(shell, plain_source)
        figures = hash_figures()
        after = list_values(shell.user_ns)
        changed = {
            name: value for name, value in after.items() if before.get(name) != value
        }
        records.append(
            {
                "ok": succeeded,
                "output": [output, *figures],
                "values": {name: value[1] for name, value in changed.items()},
                "bound": {name: value[2] for name, value in changed.items()},
            }
        )
        before = after
    return records


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    out = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    result = replay(os.path.abspath(sys.argv[1]), json.load(sys.stdin))
    json.dump(result, out)
    out.flush()
    os._exit(0)
