"""The helper that lives in the kernel: after each run it publishes one private message with what a report needs.

SOURCE runs on the project's own Python (3.9 and newer) with the standard library and IPython only. It is executed
once, silently, in a module of its own: nothing of it is in the user's namespace, `dir()`, `%who` or the history.
It speaks within the execution (IPython's `post_run_cell`), because `user_expressions` come back empty when a cell
raised and every further round trip costs 3 to 4 ms. It takes at most a second, keeps no user object alive and
never fails a cell.
"""

from __future__ import annotations

MESSAGE = "stepper_facts"
MODULE = "_stepper_helper"

SOURCE = r"""
import collections, linecache, sys, time, types
from IPython import get_ipython

SECONDS, NAMES, TEXT, FRAMES, AROUND = 1.0, 300, 200, 12, 2
SIZED = {"builtins", "collections", "numpy", "pandas", "polars", "pyarrow", "scipy", "torch", "xarray", "geopandas"}
PLAIN = (str, int, float, bool, type(None))
recent = collections.deque(maxlen=64)
shell = get_ipython()
hidden = set(shell.user_ns_hidden) | {"In", "Out", "exit", "quit", "get_ipython", "open"}


def short(value, limit=TEXT):
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def class_name(kind):
    return kind.__qualname__ if kind.__module__ == "builtins" else kind.__module__ + "." + kind.__qualname__


def mro(error):
    return [class_name(kind) for kind in type(error).__mro__]


def attributes(error):
    found = {}
    for name in ("errno", "name", "filename", "path", "lineno", "offset", "text", "start", "end", "encoding", "code"):
        value = getattr(error, name, None)
        if isinstance(value, PLAIN) and value is not None:
            found[name] = short(value) if isinstance(value, str) else value
    if isinstance(error, KeyError) and error.args:
        found["key"] = short(error.args[0])
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is None:
        status = getattr(error, "status", None)
    if status is None and "HTTPError" in type(error).__name__:
        status = found.get("code")
    if isinstance(status, int):
        found["status"] = int(status)
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        found["reason_mro"] = mro(reason)
        if isinstance(getattr(reason, "errno", None), int):
            found["reason_errno"] = reason.errno
    return found


def frames(trace):
    cells = getattr(shell.compile, "_filename_map", {})
    found = []
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename in cells:
            lines = linecache.getlines(code.co_filename)
            first = max(1, trace.tb_lineno - AROUND)
            last = min(len(lines), trace.tb_lineno + AROUND)
            context = [[n, short(lines[n - 1].rstrip("\n"))] for n in range(first, last + 1)]
            place = {"cell": cells[code.co_filename], "line": trace.tb_lineno, "function": code.co_name}
            found.append({**place, "context": context})
        trace = trace.tb_next
    return found if len(found) <= FRAMES else found[: FRAMES // 2] + found[-FRAMES // 2 :]


def fault(error):
    said = error.msg if isinstance(error, SyntaxError) and error.msg else str(error)
    return {"ename": type(error).__name__, "evalue": short(said, 10000), "mro": mro(error),
            "attributes": attributes(error), "frames": frames(error.__traceback__)}


def namespace(deadline):
    modules, functions, classes, variables, left = {}, {}, [], {}, 0
    for name, value in list(shell.user_ns.items()):
        if name.startswith("_") or name in hidden:
            continue
        if len(modules) + len(functions) + len(classes) + len(variables) >= NAMES or time.monotonic() > deadline:
            left += 1
            continue
        kind = type(value)
        if isinstance(value, types.ModuleType):
            modules[name] = value.__name__
        elif isinstance(value, type):
            classes.append(name)
        elif isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
            functions[name] = signature(value)
        else:
            fact = {"type": class_name(kind)}
            if kind.__module__.split(".")[0] in SIZED:
                shape = getattr(value, "shape", None)
                if isinstance(shape, tuple):
                    fact["shape"] = [n if isinstance(n, int) else str(n) for n in shape]
                elif isinstance(value, (str, bytes, list, tuple, dict, set, frozenset)):
                    fact["len"] = len(value)
                fact["bytes"] = size(value)
            variables[name] = fact
    return {"modules": modules, "functions": functions, "classes": classes, "variables": variables, "left_out": left}


def size(value):
    usage = getattr(value, "memory_usage", None)
    if callable(usage):  # pandas: without looking into objects
        used = usage(deep=False)
        return int(getattr(used, "sum", lambda: used)())
    found = getattr(value, "nbytes", None)
    return found if isinstance(found, int) else sys.getsizeof(value)


def signature(function):
    code = getattr(function, "__code__", None)
    if code is None:
        return "(…)"
    import inspect
    try:
        return short(str(inspect.signature(function)))
    except Exception:
        return "(…)"


def after_run(result):
    error = result.error_before_exec or result.error_in_exec
    recent.append({"id": parent()["header"]["msg_id"], "outcome": "error" if error is not None else "ok"})
    tell(error)


def parent():
    kernel = shell.kernel
    return kernel.get_parent("shell") if hasattr(kernel, "get_parent") else kernel._parent_header


def tell(error=None):
    try:
        began = time.monotonic()
        facts = {"fault": fault(error)} if error is not None else {}
        facts["namespace"] = namespace(began + SECONDS)
        facts["seconds"] = round(time.monotonic() - began, 4)
        shell.kernel.session.send(shell.kernel.iopub_socket, "stepper_facts", facts, parent=parent())
    except Exception as problem:
        try:
            shell.kernel.log.warning("stepper's helper: %r", problem)
        except Exception:
            pass


def hide(name="_stepper_helper"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].recent = recent
    sys.modules[name].tell = tell


hide()
shell.events.register("post_run_cell", after_run)
"""

# An expression statement: it binds no name in the user's namespace.
INSTALL = f"__import__('builtins').exec(compile({SOURCE!r}, '<stepper helper>', 'exec'), {{'__name__': {MODULE!r}}})"
ASK = f"__import__('sys').modules[{MODULE!r}].tell()"
