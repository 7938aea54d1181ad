"""What a module lacks and has: its names, where else in its package a name is, whether its file is newer than it.

Loaded modules are looked at; source files are read, bounded in number, size and time; nothing is imported.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
import time
from typing import Any, Iterator

from stepper.diagnosis.in_kernel.close_matches import (
    find_close_names,
    find_quoted,
    join_items,
    normalize_name,
    select_public,
)
from stepper.diagnosis.in_kernel.decode_errors import start_of
from stepper.diagnosis.in_kernel.expression_values import Spot
from stepper.diagnosis.in_kernel.line_values import Finding, make_finding
from stepper.diagnosis.in_kernel.value_summary import format_name
from stepper.kernels.in_kernel.cell_sources import is_user_file
from stepper.kernels.in_kernel.exception_facts import get_message
from stepper.kernels.in_kernel.safe_inspect import (
    clock,
    is_a,
    missing,
    own_names,
    peek,
    shorten,
)

NAMES, FILES, BYTES, SECONDS = 800, 1500, 600_000, 0.25
LEFT = {
    "tests",
    "test",
    "testing",
    "_vendor",
    "vendored",
    "externals",
    "conftest",
    "__pycache__",
    "benchmarks",
}
DEFINED = r"^(?:async +def|def|class) +({0})\b|^({0})\s*(?::[^=\n]+)?=[^=]"
ANY = re.compile(r"^(?:async +def|def|class) +([A-Za-z]\w*)", re.M)
started = time.time()


def imported(error: BaseException, places: list[Spot]) -> Finding | None:
    """Of a name that a module lacks, or a module that its package lacks: where what is sought is, what is nearest."""
    lost, module = is_a(error, ModuleNotFoundError), str(peek(error, "name") or "")
    wanted = peek(error, "name_from") or find_quoted(get_message(error))
    while (
        lost
        and "." in module
        and (module not in sys.modules or module == peek(error, "name"))
    ):
        module, _, wanted = module.rpartition(".")
    loaded, node = sys.modules.get(module), places[0].statement if places else None
    if not wanted or loaded is None:
        return None
    path, stale = peek(loaded, "__file__"), newer(module, wanted)
    if stale:
        return make_finding(stale)
    if lost and type(path) is str and peek(loaded, "__path__") is None:
        path = os.path.relpath(path) if is_user_file(path) else path
        return make_finding(
            f"`{module}` is the file {shorten(path, 200)} here, not a package"
        )
    beside = (
        [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
    )
    files = (
        name.removesuffix(".py")
        for folder in folders_of(loaded)
        for name in os.listdir(folder)
    )
    held = {*map(str, own_names(loaded)), *filter(str.isidentifier, files)}
    names = select_public(sorted(held - {*beside}))[:NAMES]
    near, said = find_close_names(wanted, names, 5), list[str]()
    for name in beside[:3] if lost else [wanted]:
        where = elsewhere(module, name)
        exact, alike = (
            scan(module.split(".")[0], name, {*names, *beside})
            if not where
            else ([], [])
        )
        said += [
            f"`{shorten(name, 80)}` is in {dotted}" for dotted in [*where, *exact][:2]
        ]
        if alike and not (near and normalize_name(near[0]) == normalize_name(wanted)):
            said.append(f"closest in its package: {', '.join(alike)}")
    said += [f"closest in it: {', '.join(near)}"] if near else []
    said = said or [f"it has {join_items(names, 240)}"]
    lacks = f"there is no `{wanted}` in " if lost else ""
    return make_finding("; ".join([f"{lacks}{format_name(module)}", *said]))


def folders_of(loaded: Any) -> list[str]:
    paths = list(peek(loaded, "__path__") or [])[:3]
    return [path for path in paths if type(path) is str and os.path.isdir(path)]


def elsewhere(module: str, name: str) -> list[str]:
    """The loaded modules of the same package that do define the name, shortest first."""
    top = module.split(".", maxsplit=1)[0]
    known = [
        dotted
        for dotted in list(sys.modules)
        if type(dotted) is str and (dotted + ".").startswith(top + ".")
    ]
    has = [
        dotted
        for dotted in known
        if "._" not in dotted and name in own_names(sys.modules.get(dotted))
    ]
    nearest = sorted(has, key=lambda dotted: (dotted.count("."), len(dotted)))
    return [
        dotted
        for dotted in nearest
        if not any(dotted.startswith(up + ".") for up in nearest)
    ][:2]


def newer(module: str, name: str) -> str:
    """Where the file of a loaded module defines a name that the module lacks: it was changed after the import."""
    loaded = sys.modules.get(module)
    path = peek(loaded, "__file__") if loaded is not None else None
    if (
        type(path) is not str
        or not path.endswith(".py")
        or peek(peek(loaded, "__spec__"), "_initializing") is True
    ):
        return ""
    if (
        peek(loaded, name, missing) is not missing
        or not os.path.isfile(path)
        or os.stat(path).st_mtime <= started
    ):
        return ""
    text = start_of(path, BYTES).decode("utf-8", "replace")
    line = re.search(DEFINED.format(re.escape(name)), text, re.M)
    if line is None:
        return ""
    number, path = (
        text[: line.start()].count("\n") + 1,
        shorten(os.path.relpath(path), 200),
    )
    return (
        f"line {number} of {path} defines `{name}`: the file changed after the kernel imported it, and the kernel"
        " holds the older module (importlib.reload or a restart loads it anew)"
    )


# --- source files
# --------------------------------------------------------------------------------------------------


def scan(package: str, name: str, known: set[str]) -> tuple[list[str], list[str]]:
    """The modules whose files define the name; the package's other names that are alike, with their modules."""
    until, exact, others = clock() + SECONDS, list[str](), dict[str, str]()
    wanted = re.compile(DEFINED.format(re.escape(name)), re.M)
    for dotted, path in sources(package):
        if clock() > until:
            break
        text = start_of(path, BYTES).decode("utf-8", "replace")
        exact += [dotted] if name in text and wanted.search(text) else []
        others.update(
            {
                other: dotted
                for other in ANY.findall(text)
                if other not in known and other not in others
            }
        )
    alike = find_close_names(name, others, 4) if not exact else []
    return list(dict.fromkeys(exact))[:3], [
        f"{others[other]}.{other}" for other in alike
    ]


def sources(package: str) -> Iterator[tuple[str, str]]:
    """A package's source files, those near its top first: (dotted module as far as it is public, path)."""
    loaded = sys.modules.get(package)
    spec = (
        importlib.util.find_spec(package)
        if loaded is None and package.isidentifier()
        else None
    )
    found = (
        folders_of(loaded)
        if loaded is not None
        else getattr(spec, "submodule_search_locations", None) or ()
    )
    todo, count = [(package, folder) for folder in list(found)[:3]], 0
    while todo and count < FILES:
        dotted, folder = todo.pop(0)
        for entry in (
            sorted(os.scandir(folder), key=lambda entry: entry.name)
            if os.path.isdir(folder)
            else ()
        ):
            own, ending = os.path.splitext(entry.name)
            inner = dotted if own.startswith("_") else f"{dotted}.{own}"
            if ending == ".py" and own not in LEFT:
                count += 1
                yield inner, entry.path
            elif (
                own.isidentifier()
                and own not in LEFT
                and entry.is_dir(follow_symlinks=False)
            ):
                todo.append((inner, entry.path))
