"""Explanations of failed imports.

An explanation names other modules of the package that define the missing name, the
closest names, and a module file that changed after the import. Loaded modules are
inspected, and source files are read within limits of number, size and time. Nothing is
imported.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
import time
from typing import Any, Iterator, NamedTuple

from stepper.diagnosis.in_kernel.close_matches import (
    find_close_names,
    find_quoted,
    join_items,
    normalize_name,
    select_public,
)
from stepper.diagnosis.in_kernel.expression_values import UserFrame
from stepper.diagnosis.in_kernel.failing_values import Finding, make_finding
from stepper.diagnosis.in_kernel.file_read_errors import read_start
from stepper.diagnosis.in_kernel.value_summary import format_name
from stepper.kernels.in_kernel.cell_sources import is_user_file
from stepper.kernels.in_kernel.exception_facts import get_message
from stepper.kernels.in_kernel.safe_inspect import (
    clock,
    get_own_attributes,
    is_a,
    missing,
    peek,
    shorten,
)

MAX_NAMES = 800
MAX_FILES = 1500
# Characters of a name, of a path, and of a list of names.
NAME_LIMIT = 80
PATH_LIMIT = 200
LIST_LIMIT = 240
MAX_FOLDERS = 3
MAX_FILE_SIZE = 600_000  # bytes that are read of a file
MAX_SEARCHED_NAMES = 3  # of a statement that imports several names
MAX_MODULES = 2  # that are reported for a name
MAX_CLOSE_NAMES = 5
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
ANY_DEFINITION = re.compile(r"^(?:async +def|def|class) +([A-Za-z]\w*)", re.MULTILINE)
# The kernel loads this module soon after its first cell.
loaded_at = time.time()


def explain_import_error(
    error: BaseException,
    frames: list[UserFrame],
) -> Finding | None:
    """Return a finding on the name or module that could not be imported.

    Return None if the package or module that lacks the name is not loaded.
    """
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
    if is_module:
        plain_module = describe_plain_module(module, module_name)
        if plain_module:
            return make_finding(plain_module)
    imported_names: list[str] = []
    statement = None
    if frames:
        statement = frames[0].statement
    if isinstance(statement, ast.ImportFrom):
        imported_names = [alias.name for alias in statement.names]
    searched_names = (
        imported_names[:MAX_SEARCHED_NAMES] if is_module else [missing_name]
    )
    sentences = describe_alternatives(
        module,
        module_name,
        missing_name,
        searched_names,
        imported_names,
    )
    module_text = format_name(module_name)
    kind = "module " if is_module else ""
    short_name = shorten(str(missing_name), NAME_LIMIT)
    intro = f"`{module_text}` has no {kind}`{short_name}`"
    text = "; ".join([intro, *sentences])
    return make_finding(text)


def describe_plain_module(module: Any, module_name: str) -> str:
    """Return a sentence on a module that has no submodules, because it is a file.

    Return an empty string for a package and for a module without a file.
    """
    path = peek(module, "__file__")
    is_package = peek(module, "__path__") is not None
    if is_package or type(path) is not str:
        return ""
    if is_user_file(path):
        path = os.path.relpath(path)
    short_path = shorten(path, PATH_LIMIT)
    return f"`{module_name}` is the file {short_path}, not a package"


def split_missing_module(module_name: str, missing_name: str) -> tuple[str, str]:
    """Return the innermost loaded package of a missing module, and the missing name.

    The missing name is the part of the module's name that follows the package. If no
    package is loaded, return the first two parts of the module's name. If the module's
    name contains no dot, return both arguments unchanged.
    """
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
    """Return sentences on the modules that define the names, and on similar names.

    If there are none, return a sentence that lists the names of the module.
    """
    names = list_module_names(module, imported_names)
    close_names = find_close_names(missing_name, names, MAX_CLOSE_NAMES)
    has_same_letters = False
    if close_names:
        letters = normalize_name(missing_name)
        has_same_letters = normalize_name(close_names[0]) == letters
    sentences = []
    package, _, _ = module_name.partition(".")
    known_names = {*names, *imported_names}
    for name in searched_names:
        modules = find_loaded_modules(module_name, name)
        similar: list[str] = []
        if not modules:
            modules, similar = search_sources(package, name, known_names)
        short_name = shorten(name, NAME_LIMIT)
        for dotted_name in modules[:MAX_MODULES]:
            sentences.append(f"`{short_name}` is in {dotted_name}")
        if similar and not has_same_letters:
            joined_names = ", ".join(similar)
            sentences.append(f"closest names in the package: {joined_names}")
    if close_names:
        joined_names = ", ".join(close_names)
        sentences.append(f"closest names: {joined_names}")
    if sentences or not names:
        return sentences
    all_names = join_items(names, LIST_LIMIT)
    return [f"all names: {all_names}"]


def list_module_names(module: Any, imported_names: list[str]) -> list[str]:
    """Return the public names and the submodules of a module.

    The names that the failed statement imports are left out.
    """
    names = set(map(str, get_own_attributes(module)))
    for folder in list_package_folders(module):
        for filename in os.listdir(folder):
            submodule = filename.removesuffix(".py")
            if submodule.isidentifier():
                names.add(submodule)
    names.difference_update(imported_names)
    public_names = select_public(sorted(names))
    return public_names[:MAX_NAMES]


def list_package_folders(module: Any) -> list[str]:
    """Return the existing folders of a package."""
    paths = list(peek(module, "__path__") or [])
    folders = []
    for path in paths[:MAX_FOLDERS]:
        if type(path) is str and os.path.isdir(path):
            folders.append(path)
    return folders


def find_loaded_modules(module_name: str, name: str) -> list[str]:
    """Return up to MAX_MODULES loaded modules that define a name, the topmost first.

    Only modules of the same top-level package as `module_name` are searched. Submodules
    of a returned module are left out.
    """
    package, _, _ = module_name.partition(".")
    defining_modules = []
    for dotted_name in list(sys.modules):
        if type(dotted_name) is not str or "._" in dotted_name:
            continue
        if not f"{dotted_name}.".startswith(f"{package}."):
            continue
        module = sys.modules.get(dotted_name)
        if name in get_own_attributes(module):
            defining_modules.append(dotted_name)

    def sort_key(dotted_name: str) -> tuple[int, int]:
        depth = dotted_name.count(".")
        return depth, len(dotted_name)

    defining_modules.sort(key=sort_key)
    prefixes = tuple(f"{dotted_name}." for dotted_name in defining_modules)
    outermost_modules = []
    for dotted_name in defining_modules:
        if not dotted_name.startswith(prefixes):
            outermost_modules.append(dotted_name)
    return outermost_modules[:MAX_MODULES]


def explain_changed_file(module_name: str, name: str) -> str:
    """Explain that a module lacks a name because its file changed after the import.

    Return an empty string if the module has the name, or if the file does not define
    it or has not changed since `loaded_at`.
    """
    module = sys.modules.get(module_name)
    if module is None or peek(module, name, missing) is not missing:
        return ""
    spec = peek(module, "__spec__")
    if peek(spec, "_initializing") is True:
        return ""
    path = peek(module, "__file__")
    if type(path) is not str or not path.endswith(".py"):
        return ""
    if not os.path.isfile(path):
        return ""
    if os.stat(path).st_mtime <= loaded_at:
        return ""
    text = read_source(path)
    definition = compile_definition(name).search(text)
    if definition is None:
        return ""
    number = text.count("\n", 0, definition.start()) + 1
    file = shorten(os.path.relpath(path), PATH_LIMIT)
    return (
        f"line {number} of {file} defines `{name}`, but the imported module does not,"
        " and the file changed after the kernel started: to load the new version, use"
        " importlib.reload or restart the kernel"
    )


def compile_definition(name: str) -> re.Pattern[str]:
    """Return a pattern for the definition of a name at the top level of a module."""
    pattern = DEFINITION.format(re.escape(name))
    return re.compile(pattern, re.MULTILINE)


def read_source(path: str) -> str:
    """Return the beginning of a source file as text."""
    content = read_start(path, MAX_FILE_SIZE) or b""
    return content.decode("utf-8", "replace")


# --- source files


class SourceNames(NamedTuple):
    """The modules whose files define a name, or else similar names of the package."""

    modules: list[str]
    similar: list[str]  # dotted names


def search_sources(package: str, name: str, known_names: set[str]) -> SourceNames:
    """Search the source files of a package for the definition of a name.

    Return the modules that define the name, or else similar names that are not in
    `known_names`. The search stops after SECONDS.
    """
    deadline = clock() + SECONDS
    pattern = compile_definition(name)
    defining_modules: dict[str, None] = {}
    modules_by_name: dict[str, str] = {}  # name → its module
    for dotted_name, path in iterate_sources(package):
        if clock() > deadline:
            break
        text = read_source(path)
        if name in text and pattern.search(text):
            defining_modules[dotted_name] = None
        for other in ANY_DEFINITION.findall(text):
            if other not in known_names:
                modules_by_name.setdefault(other, dotted_name)
    if defining_modules:
        modules = list(defining_modules)
        return SourceNames(modules[:MAX_MODULES], [])
    close_names = find_close_names(name, modules_by_name, MAX_CLOSE_NAMES)
    similar = [f"{modules_by_name[other]}.{other}" for other in close_names]
    return SourceNames([], similar)


def iterate_sources(package: str) -> Iterator[tuple[str, str]]:
    """Yield the public dotted name and the path of each source file of a package.

    The files near the top of the package come first.
    """
    pending = [(package, folder) for folder in find_package_folders(package)]
    file_count = 0
    while pending and file_count < MAX_FILES:
        dotted_name, folder = pending.pop(0)
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:  # missing, or not readable
            continue
        for entry in entries:
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
    """Return the folders of a package, even if the package is not loaded."""
    module = sys.modules.get(package)
    if module is not None:
        return list_package_folders(module)
    if not package.isidentifier():
        return []
    spec = importlib.util.find_spec(package)
    folders = getattr(spec, "submodule_search_locations", None) or ()
    return list(folders)[:MAX_FOLDERS]
