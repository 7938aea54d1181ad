"""The helper that lives in the kernel: after each run it publishes one private message with what a report needs.

SOURCE runs on the project's own Python (3.9 and newer) with the standard library and IPython only. It is executed
once, silently, in a module of its own, with builtins of its own: nothing of it is in the user's namespace, `dir()`,
`%who` or the history, and nothing that a cell redefines is in its way.
It speaks within the execution (IPython's `post_run_cell`), because `user_expressions` come back empty when a cell
raised and every further round trip costs 3 to 4 ms. It takes at most a second, keeps no user object alive and
never fails a cell: of the user's own code it calls an exception's `__str__` and nothing else, because no property,
`__repr__` or `__getattr__` can be stopped once it sleeps. Classes are asked by `type(x)`, never by `x.__class__`.
"""

from __future__ import annotations

MESSAGE = "stepper_facts"
MODULE = "_stepper_helper"

SOURCE = r"""
import collections, functools, linecache, sys, time, types
from IPython import get_ipython

SECONDS, NAMES, TEXT, MESSAGE, FRAMES, AROUND, CLASSES, CAUSES, CELLS = 1.0, 300, 200, 10000, 12, 2, 40, 8, 500
clock, getsizeof = time.monotonic, sys.getsizeof  # a cell may replace them
shell = get_ipython()
recent = collections.deque(maxlen=64)
sources, now = {}, {"number": 0, "shown": 0}  # execution count → cell as written; IPython's history can be off
missing = object()
named = {"In", "Out", "exit", "quit", "get_ipython", "open"}
libraries = {"numpy", "pandas", "polars", "pyarrow", "scipy", "torch", "xarray", "geopandas"}
callables = (types.FunctionType, types.BuiltinFunctionType, functools._lru_cache_wrapper)
lengths = (str, bytes, bytearray, list, tuple, dict, set, frozenset, range, collections.deque)
name_of, module_of, classes_of, names_in = (
    type.__dict__[name].__get__ for name in ("__qualname__", "__module__", "__mro__", "__dict__")
)


def guarded(make, *given):
    try:
        return make(*given)
    except BaseException:  # SystemExit too: whatever the user's objects do
        return None


def short(text, limit=TEXT):
    text = text if len(text) <= limit else text[: limit - 1] + "…"
    return text.encode("utf-8", "replace").decode()


def one_of(kind, kinds):  # not `in`: it would ask the metaclass
    return any(kind is one for one in kinds)


def plain(value):
    if type(value) is str:
        return short(value)
    return value if type(value) is bool or type(value) is int and abs(value) < 2**63 else None


def class_name(kind):
    module = module_of(kind)
    return short(name_of(kind) if type(module) is not str or module == "builtins" else module + "." + name_of(kind))


def mro(error):
    names = [class_name(kind) for kind in classes_of(type(error))]
    return names if len(names) <= CLASSES else names[: CLASSES // 2] + names[-CLASSES // 2 :]


def peek(thing, name):
    own = guarded(object.__getattribute__, thing, "__dict__")
    if type(own) is dict and name in own:
        return own[name]
    for kind in classes_of(type(thing)):
        found = names_in(kind).get(name, missing)
        if one_of(type(found), (types.MemberDescriptorType, types.GetSetDescriptorType)):
            return guarded(found.__get__, thing)
        if found is not missing:
            return found
    return None


def is_error(value):
    return issubclass(type(value), BaseException)


def below(error):
    arguments = peek(error, "args")
    found = [peek(error, "reason"), peek(error, "__cause__"), *(arguments if type(arguments) is tuple else ())]
    return next(filter(is_error, found), None)


def attributes(error):
    found = {}
    for name in ("errno", "name", "filename", "path", "lineno", "offset", "text", "start", "end", "encoding", "code"):
        value = plain(peek(error, name))
        if value is not None:
            found[name] = value
    if issubclass(type(error), KeyError) and error.args and plain(error.args[0]) is not None:
        found["key"] = plain(error.args[0])
    if issubclass(type(error), SyntaxError) and found.get("filename") in files() and "lineno" in found:
        found["lineno"] = place(found["filename"], found["lineno"])[1]
    status = [peek(peek(error, "response"), "status_code"), peek(error, "status")]
    if "urllib.error.HTTPError" in mro(error):
        status.append(found.get("code"))
    status = [number for number in status if issubclass(type(number), int) and 100 <= number <= 599]
    if status:
        found["status"] = int(status[0])
    reason = below(error)
    for _ in range(CAUSES):
        if reason is None:
            break
        known = found.setdefault("reason_mro", [])
        known.extend(name for name in mro(reason) if name not in known)
        number = plain(peek(reason, "errno"))
        if isinstance(number, int):
            found["reason_errno"] = number
        reason = below(reason)
    return found


def files():
    return getattr(shell.compile, "_filename_map", {})


def raw_lines(number):
    return sources.get(number, "").split("\n") if number in sources else []


def cell_magic(number):
    lines = raw_lines(number)
    head = next((index for index, text in enumerate(lines) if text.strip()), 0)
    return (number, head + 1) if lines and lines[head].startswith("%%") else None


def place(filename, line):
    # IPython cuts blank lines at a cell's head and joins continued magics: lines only ever move up
    number = files()[filename]
    number = number if number in sources else now["number"]  # one that a magic runs has the next cell's
    raw, run = raw_lines(number), linecache.getlines(filename)
    text = run[line - 1].strip() if line <= len(run) else ""
    for index in range(line - 1, len(raw)):
        if text and raw[index].strip() == text:
            return number, index + 1
    head = next((index for index, text in enumerate(raw) if text.strip()), 0)
    return number, min(line + head, max(1, len(raw)))


def frames(trace):
    spots = []
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename in files() or code.co_filename in ("<timed exec>", "<timed eval>"):
            spots.append((code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    if len(spots) > FRAMES:
        spots = spots[: FRAMES // 2] + spots[-FRAMES // 2 :]
    found = []
    for filename, line, function in spots:
        if function.startswith("<cell line"):  # IPython 8.0 to 8.6
            function = "<module>"
        if filename in files():
            number, line = place(filename, line)
        else:
            magic = cell_magic(now["number"])
            if magic is None:
                continue  # of a line magic: its own frame tells more
            if function == "<module>":
                found = [one for one in found if (one["cell"], one["line"]) != magic]
            number, line = magic[0], magic[1] + line  # the body of a cell magic counts from below it
        raw = raw_lines(number)
        around = range(max(1, line - AROUND), min(len(raw), line + AROUND) + 1)
        context = [[n, short(raw[n - 1].rstrip())] for n in around]
        found.append({"cell": number, "line": line, "function": short(function), "context": context})
    return found


def message(error):
    said = peek(error, "msg") if issubclass(type(error), SyntaxError) else None
    said = said if type(said) is str and said else guarded(str, error)
    said = guarded(short, said, MESSAGE)
    return said if said is not None else "<exception str() failed>"


def fault(error):
    return {"ename": short(type.__dict__["__name__"].__get__(type(error))), "evalue": message(error),
            "mro": mro(error), "attributes": guarded(attributes, error) or {},
            "frames": guarded(frames, error.__traceback__) or []}


def namespace(deadline):
    modules, functions, classes, variables, left = {}, {}, [], {}, 0
    initial = shell.user_ns_hidden
    for name, value in list(shell.user_ns.items()):
        if type(name) is not str or name.startswith("_") or value is initial.get(name, missing) or name in named:
            continue
        if len(modules) + len(functions) + len(classes) + len(variables) >= NAMES or clock() > deadline:
            left += 1
            continue
        name, kind = short(name), type(value)
        if issubclass(kind, types.ModuleType):  # its dict, because a lazy module is loaded by any attribute
            modules[name] = plain(object.__getattribute__(value, "__dict__").get("__name__")) or name
        elif issubclass(kind, type):
            classes.append(name)
        elif one_of(kind, callables):
            functions[name] = guarded(signature, value) or "(…)"
        else:
            variables[name] = {"type": class_name(kind)}
            guarded(measure, value, kind, variables[name])
    return {"modules": modules, "functions": functions, "classes": classes, "variables": variables, "left_out": left}


def measure(value, kind, fact):
    base = next((base for base in classes_of(kind) if one_of(base, lengths)), None)
    if base is not None:
        fact["len"] = base.__len__(value)
        fact["bytes"] = base.__sizeof__(value)
    elif one_of(kind, (int, float, complex, bool)):
        fact["bytes"] = getsizeof(value)
    elif str(module_of(kind)).split(".")[0] in libraries:
        shape = getattr(value, "shape", None)
        if isinstance(shape, tuple):
            fact["shape"] = [n if type(n) is int else short(str(n)) for n in shape[:CLASSES]]
        used = size(value, fact.get("shape", ()))
        if used is not None:
            fact["bytes"] = used


def size(value, shape):
    usage = getattr(value, "memory_usage", None)
    if callable(usage):  # pandas: it goes over the columns, without looking into objects
        used = usage(deep=False) if len(shape) < 2 or shape[1] <= 1000 else None
        return None if used is None else int(getattr(used, "sum", lambda: used)())
    found = getattr(value, "nbytes", None)
    return found if type(found) is int else getsizeof(value)


def signature(function):
    # not inspect's: it shows defaults by their repr
    for _ in range(CAUSES):
        inner = getattr(function, "__dict__", {}).get("__wrapped__")
        function = inner if type(inner) is types.FunctionType else function
    code = function.__code__
    count, only = code.co_argcount, code.co_kwonlyargcount
    names, notes = list(code.co_varnames), guarded(getattr, function, "__annotations__") or {}
    defaults = dict(zip(names[:count][::-1], (function.__defaults__ or ())[::-1]), **(function.__kwdefaults__ or {}))
    told = [argument(name, notes, defaults) for name in names[:count]]
    if code.co_posonlyargcount:
        told.insert(code.co_posonlyargcount, "/")
    rest = names[count + only :]
    if code.co_flags & 4:
        told.append("*" + argument(rest.pop(0), notes, {}))
    elif only:
        told.append("*")
    told += [argument(name, notes, defaults) for name in names[count : count + only]]
    if code.co_flags & 8:
        told.append("**" + argument(rest.pop(0), notes, {}))
    back = annotation(notes.get("return", missing))
    return short("(" + ", ".join(told) + ")" + (" -> " + back if back else ""))


def argument(name, notes, defaults):
    note = annotation(notes.get(name, missing))
    text = name + ": " + note if note else name
    if name not in defaults:
        return text
    value = defaults[name]
    kind = type(value)
    known = value is None or kind is bool or kind is float or kind is int and abs(value) < 2**63 or kind is str
    shown = (repr(value) if kind is not str else repr(short(value, 40))) if known else "…"
    return text + (" = " if note else "=") + shown


def annotation(note):
    if note is None or type(note) is str:
        return short(str(note), 80)
    return name_of(note) if issubclass(type(note), type) else ""


def before_run(info):
    now["shown"] = id(getattr(sys, "last_value", None))


def after_run(result):
    if result.info.store_history:  # else a cell runs it
        now["number"] = result.execution_count
        sources[result.execution_count] = result.info.raw_cell
        if len(sources) > CELLS:
            del sources[next(iter(sources))]
    error = result.error_before_exec or result.error_in_exec
    if error is None:  # a magic may show an error and end well: %time of IPython 8, %%capture
        last = getattr(sys, "last_value", None)
        error = last if is_error(last) and id(last) != now["shown"] else None
    tell(error, True)


def tell(error=None, ran=False):
    began = clock()
    kernel = shell.kernel
    parent = kernel.get_parent("shell") if hasattr(kernel, "get_parent") else kernel._parent_header
    if ran:
        recent.append({"id": parent["header"]["msg_id"], "outcome": "error" if error is not None else "ok"})
    facts = {} if error is None else {"fault": guarded(fault, error)}
    facts["namespace"] = guarded(namespace, began + SECONDS) or {}
    facts["seconds"] = round(clock() - began, 4)
    kernel.session.send(kernel.iopub_socket, "stepper_facts", facts, parent=parent)


def hide(name="_stepper_helper"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].recent = recent
    sys.modules[name].tell = tell


hide()
shell.events.register("pre_run_cell", lambda info: guarded(before_run, info))
shell.events.register("post_run_cell", lambda result: guarded(after_run, result))
"""

# An expression statement: it binds no name in the user's namespace.
INSTALL = (
    f"__import__('builtins').exec(compile({SOURCE!r}, '<stepper helper>', 'exec'),"
    f" {{'__name__': {MODULE!r}, '__builtins__': dict(vars(__import__('builtins')))}})"
)
ASK = f"__import__('sys').modules[{MODULE!r}].tell()"
