"""Explains imports that failed.

The explanation names where else in its package a name is defined, the closest names,
and a module file that changed after the import. Loaded modules are inspected, and
source files are read up to limits of number, size and time. Nothing is imported.
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
from stepper.diagnosis.in_kernel.decode_errors import read_start
from stepper.diagnosis.in_kernel.expression_values import UserFrame
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

MAX_NAMES = 800
MAX_FILES = 1500
MAX_FOLDERS = 3
MAX_FILE_SIZE = 600_000  # bytes that are read of a file
SECONDS = 0.25  # for the search in source files
# Folders and modules of a package that are not searched.
IGNORED_NAMES = {
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
# The definition of a name at the top level of a module.
DEFINITION = r"^(?:async +def|def|class) +({0})\b|^({0})\s*(?::[^=\n]+)?=[^=]"
ANY_DEFINITION = re.compile(r"^(?:async +def|def|class) +([A-Za-z]\w*)", re.M)
started_at = time.time()


def explain_import_error(
    error: BaseException, frames: list[UserFrame]
) -> Finding | None:
    """Return where a missing name or module is, or the closest names."""
    is_module = is_a(error, ModuleNotFoundError)
    module_name = str(peek(error, "name") or "")
    missing_name = peek(error, "name_from") or find_quoted(get_message(error))
    if is_module:
        module_name, missing_name = split_missing_module(module_name, missing_name)
    module = sys.modules.get(module_name)
    if not missing_name or module is None:
        return None
    changed_file = explain_changed_file(module_name, missing_name)
    if changed_file:
        return make_finding(changed_file)
    path = peek(module, "__file__")
    if is_module and type(path) is str and peek(module, "__path__") is None:
        path = os.path.relpath(path) if is_user_file(path) else path
        return make_finding(
            f"`{module_name}` is the file {shorten(path, 200)} here, not a package"
        )
    statement = frames[0].statement if frames else None
    imported_names: list[str] = []
    if isinstance(statement, ast.ImportFrom):
        imported_names = [alias.name for alias in statement.names]
    searched_names = imported_names[:3] if is_module else [missing_name]
    sentences = describe_alternatives(
        module, module_name, missing_name, searched_names, imported_names
    )
    intro = format_name(module_name)
    if is_module:
        intro = f"there is no `{missing_name}` in {intro}"
    return make_finding("; ".join([intro, *sentences]))


def split_missing_module(module_name: str, missing_name: str) -> tuple[str, str]:
    """Return the loaded package of a missing module, and the missing part."""
    full_name = module_name
    while "." in module_name:
        if module_name in sys.modules and module_name != full_name:
            break
        module_name, _, missing_name = module_name.rpartition(".")
    return module_name, missing_name


def describe_alternatives(
    module: Any,
    module_name: str,
    missing_name: str,
    searched_names: list[str],
    imported_names: list[str],
) -> list[str]:
    """Return sentences on where the names are, or on the names that the module has."""
    names = list_module_names(module, imported_names)
    close_names = find_close_names(missing_name, names, 5)
    has_same_letters = bool(close_names) and (
        normalize_name(close_names[0]) == normalize_name(missing_name)
    )
    sentences = []
    package = module_name.split(".", maxsplit=1)[0]
    for name in searched_names:
        modules = find_loaded_modules(module_name, name)
        similar: list[str] = []
        if not modules:
            modules, similar = search_sources(package, name, {*names, *imported_names})
        for dotted_name in modules[:2]:
            sentences.append(f"`{shorten(name, 80)}` is in {dotted_name}")
        if similar and not has_same_letters:
            sentences.append(f"closest in its package: {', '.join(similar)}")
    if close_names:
        sentences.append(f"closest in it: {', '.join(close_names)}")
    return sentences or [f"it has {join_items(names, 240)}"]


def list_module_names(module: Any, imported_names: list[str]) -> list[str]:
    """Return the public names of a module, with its submodules.

    The names that the failed statement imports are left out.
    """
    names = set(map(str, own_names(module)))
    for folder in list_package_folders(module):
        for filename in os.listdir(folder):
            submodule = filename.removesuffix(".py")
            if submodule.isidentifier():
                names.add(submodule)
    names.difference_update(imported_names)
    return select_public(sorted(names))[:MAX_NAMES]


def list_package_folders(module: Any) -> list[str]:
    """Return the existing folders of a package."""
    paths = list(peek(module, "__path__") or [])[:MAX_FOLDERS]
    return [path for path in paths if type(path) is str and os.path.isdir(path)]


def find_loaded_modules(module_name: str, name: str) -> list[str]:
    """Return up to two loaded modules of the same package that define a name.

    The shortest names come first; submodules of a found module are left out.
    """
    package = module_name.split(".", maxsplit=1)[0]
    defining = []
    for dotted_name in list(sys.modules):
        if type(dotted_name) is not str or "._" in dotted_name:
            continue
        if not (dotted_name + ".").startswith(package + "."):
            continue
        if name in own_names(sys.modules.get(dotted_name)):
            defining.append(dotted_name)
    defining.sort(key=lambda dotted_name: (dotted_name.count("."), len(dotted_name)))
    outermost = [
        dotted_name
        for dotted_name in defining
        if not any(dotted_name.startswith(parent + ".") for parent in defining)
    ]
    return outermost[:2]


def explain_changed_file(module_name: str, name: str) -> str:
    """Return that a module's file defines a name that the loaded module lacks.

    The file changed after the import. Return '' otherwise.
    """
    module = sys.modules.get(module_name)
    if module is None or peek(module, name, missing) is not missing:
        return ""
    if peek(peek(module, "__spec__"), "_initializing") is True:
        return ""
    path = peek(module, "__file__")
    if type(path) is not str or not path.endswith(".py") or not os.path.isfile(path):
        return ""
    if os.stat(path).st_mtime <= started_at:
        return ""
    text = read_start(path, MAX_FILE_SIZE).decode("utf-8", "replace")
    definition = re.search(DEFINITION.format(re.escape(name)), text, re.M)
    if definition is None:
        return ""
    number = text.count("\n", 0, definition.start()) + 1
    file = shorten(os.path.relpath(path), 200)
    return (
        f"line {number} of {file} defines `{name}`: the file changed after the kernel"
        " imported it, and the kernel has the older module (importlib.reload or a"
        " restart loads the new one)"
    )


# --- source files


def search_sources(
    package: str, name: str, known_names: set[str]
) -> tuple[list[str], list[str]]:
    """Return the modules whose files define a name, else similar names.

    Similar names are dotted names of the package that are not in `known_names`.
    """
    deadline = clock() + SECONDS
    pattern = re.compile(DEFINITION.format(re.escape(name)), re.M)
    defining: dict[str, None] = {}
    others: dict[str, str] = {}  # name → its module
    for dotted_name, path in iterate_sources(package):
        if clock() > deadline:
            break
        text = read_start(path, MAX_FILE_SIZE).decode("utf-8", "replace")
        if name in text and pattern.search(text):
            defining[dotted_name] = None
        for other in ANY_DEFINITION.findall(text):
            if other not in known_names:
                others.setdefault(other, dotted_name)
    if defining:
        return list(defining)[:3], []
    close_names = find_close_names(name, others, 4)
    return [], [f"{others[other]}.{other}" for other in close_names]


def iterate_sources(package: str) -> Iterator[tuple[str, str]]:
    """Yield (public dotted name, path) of a package's source files.

    The files near the top of the package come first.
    """
    pending = [(package, folder) for folder in find_package_folders(package)]
    file_count = 0
    while pending and file_count < MAX_FILES:
        dotted_name, folder = pending.pop(0)
        if not os.path.isdir(folder):
            continue
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            stem, suffix = os.path.splitext(entry.name)
            if stem in IGNORED_NAMES:
                continue
            inner_name = dotted_name
            if not stem.startswith("_"):
                inner_name = f"{dotted_name}.{stem}"
            if suffix == ".py":
                file_count += 1
                yield inner_name, entry.path
            elif stem.isidentifier() and entry.is_dir(follow_symlinks=False):
                pending.append((inner_name, entry.path))


def find_package_folders(package: str) -> list[str]:
    """Return the folders of a package, which may not be loaded."""
    module = sys.modules.get(package)
    if module is not None:
        return list_package_folders(module)
    if not package.isidentifier():
        return []
    spec = importlib.util.find_spec(package)
    folders = getattr(spec, "submodule_search_locations", None) or ()
    return list(folders)[:MAX_FOLDERS]
