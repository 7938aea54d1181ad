"""Run a notebook's cells in IPython and trace which cell reads names of another cell.

`python tracer.py NOTEBOOK` prints JSON: the sources of the code cells, the cells that
succeeded, and the true edges [provider, reader, name]. The reader loaded the name,
possibly in a function that it called. The provider is the last other cell that bound
the name or changed its value; a fingerprint after each cell detects changes. The
tracer runs in its own environment, not in stepper's.
"""

from __future__ import annotations

import contextlib
import copyreg
import hashlib
import io
import json
import os
import signal
import sys
import types
import warnings

os.environ["MPLBACKEND"] = "Agg"
CELL_SECONDS, LARGEST = 40, 30_000_000


class Names(
    dict
):  # CPython calls `__getitem__` for each global if the globals are no plain dict
    def __init__(self, *values):
        super().__init__(*values)
        self.cell, self.own_names, self.provider, self.edges, self.bound_now = (
            None,
            set(),
            {},
            set(),
            set(),
        )

    def __getitem__(self, name):
        value = super().__getitem__(name)
        if (
            self.cell is not None
            and name not in self.own_names
            and name in self.provider
        ):
            self.edges.add((self.provider[name], self.cell, name))
        return value

    def __setitem__(self, name, value):
        super().__setitem__(name, value)
        if self.cell is not None:
            self.own_names.add(name)
            self.bound_now.add(name)

    def __delitem__(self, name):
        super().__delitem__(name)
        self.own_names.discard(name)
        self.provider.pop(name, None)


def fingerprint(value):
    """Return a hash of an object's content, or None if it cannot be computed.

    Private attributes of library objects are ignored: reading can fill their caches.
    """
    import cloudpickle

    class Pickler(cloudpickle.CloudPickler):
        def reducer_override(self, value):
            kind = type(value)
            own_names = kind.__module__.split(".")[0] in (
                "__main__",
                "builtins",
                "numpy",
                "pandas",
                "collections",
            )
            if (
                not own_names
                and kind.__reduce_ex__ is object.__reduce_ex__
                and kind.__reduce__ is object.__reduce__
            ):
                state = getattr(value, "__dict__", None)
                if type(state) is dict and not hasattr(
                    kind, "__getstate__" if sys.version_info < (3, 11) else "_"
                ):
                    public_state = {
                        name: item
                        for name, item in state.items()
                        if not name.startswith("_")
                    }
                    return copyreg.__newobj__, (kind,), public_state
            return super().reducer_override(value)

    if isinstance(
        value,
        (
            types.ModuleType,
            type,
            types.FunctionType,
            types.BuiltinFunctionType,
            types.MethodType,
        ),
    ):
        return None
    try:
        # also geopandas
        if any(
            base.__module__.split(".")[0] == "pandas" for base in type(value).__mro__
        ):
            import pandas

            parts = [
                type(value).__name__,
                repr(getattr(value, "columns", None)),
                repr(getattr(value, "index", None)),
            ]
            public_state = (
                value
                if type(value).__module__.startswith("pandas")
                else pandas.DataFrame(value).astype(str)
            )
            parts.append(
                pandas.util.hash_pandas_object(public_state).values.tobytes().hex()
            )
            return hashlib.md5("".join(parts).encode()).hexdigest()
        if isinstance(value, (int, float, str, bytes, bool, type(None))):
            return repr(value)
        stream = io.BytesIO()
        Pickler(stream).dump(value)
        data = stream.getvalue()
        return hashlib.md5(data).hexdigest() if len(data) < LARGEST else None
    except BaseException:  # noqa: BLE001  # objects can raise anything
        return None


def trace(path):
    from IPython.core.interactiveshell import InteractiveShell

    with open(path, encoding="utf-8") as stream:
        notebook = json.load(stream)
    sources = [
        "".join(cell["source"])
        for cell in notebook.get("cells", [])
        if cell["cell_type"] == "code"
    ]
    sources = [source for source in sources if source.strip()]
    names = Names()
    shell = InteractiveShell.instance(user_ns=names)
    assert shell.user_global_ns is names and shell.user_ns is names
    os.chdir(os.path.dirname(path))
    ok, before, outputs = [], {}, []
    # `%%time` and `%%capture` hide errors
    shell._showtraceback = lambda *message: outputs.append(message)

    def late(*_):
        raise TimeoutError("too long")

    signal.signal(signal.SIGALRM, late)
    for number, source in enumerate(sources):
        names.cell, names.own_names, names.bound_now = number, set(), set()
        signal.alarm(CELL_SECONDS)
        outputs.clear()
        try:
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                result = shell.run_cell(source, store_history=False)
            well = result.success and not outputs
        except BaseException:  # noqa: BLE001  # cells can raise anything
            well = False
        finally:
            signal.alarm(0)
        names.cell = None
        ok.append(bool(well))
        for name in names.bound_now & set(names):
            names.provider[name] = number
        after = {
            name: fingerprint(value)
            for name, value in list(names.items())
            if not name.startswith("_") and name in names.provider
        }
        for name, mark in after.items():
            if (
                name not in names.bound_now
                and mark is not None
                and before.get(name) not in (None, mark)
            ):
                names.provider[name] = number
        before = after
    edges = sorted([p, r, n] for p, r, n in names.edges if not n.startswith("_"))
    return {"path": path, "sources": sources, "ok": ok, "edges": edges}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    out = os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    traced_notebook = trace(os.path.abspath(sys.argv[1]))
    json.dump(traced_notebook, out)
    out.flush()
    os._exit(0)
