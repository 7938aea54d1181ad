"""Suggestions for undefined names, missing modules and missing files.

A suggestion shows where a name is defined or was deleted, which names are similar, or
which distribution to install.
"""

from __future__ import annotations

import builtins
import difflib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from stepper.common.project_walk import ENTRIES, scan_folder
from stepper.common.text import one_line
from stepper.diagnosis import distribution_names
from stepper.diagnosis.error_fact_types import ErrorFacts
from stepper.diagnosis.in_kernel.close_matches import (
    find_close_names,
    find_quoted,
    join_items,
    normalize_name,
)
from stepper.diagnosis.name_definitions import BOUND, NotebookNames
from stepper.diagnosis.path_similarity import MAX_PATH
from stepper.diagnosis.project_facts import ProjectEnvironment
from stepper.messages import command_messages
from stepper.policy.model import Fault
from stepper.policy.namespace_model import Namespace

# Constants of JSON and JavaScript → the same constants in Python.
FOREIGN_CONSTANTS = {
    "null": "None",
    "true": "True",
    "false": "False",
    "undefined": "None",
    "NaN": "float('nan')",
}
# Names that IPython defines. They are never suggested.
IPYTHON_NAMES = ("In", "Out", "exit", "quit", "get_ipython")
MAX_DEFINITIONS = 2  # in a suggestion
MAX_FILE_NAME = 200  # characters
MIN_BUILTIN_RATIO = 0.75  # similarity from which a builtin is suggested
# The name of a file or folder from which a module can be imported.
MODULE_NAME = re.compile(r"([A-Za-z_]\w*)(?:\.py|(?:\.[\w-]+)?\.(?:so|pyd))?")
# An import of a module that matches `{module}`. Groups 1 to 3 are the module of
# `from … import`, and the names in parentheses or without them. Group 4 is the module
# of `import`.
IMPORT = (
    r"\bfrom\s+({module})\s+import\s+(?:\(([^)]*)|([^\n#;]*))"
    r"|\bimport\s+(?:[^\n#;]*,\s*)?({module})"
)


class ImportedNames(NamedTuple):
    """A module that a source imports, and the names imported from the module."""

    module: str
    names: list[str]


class ModuleLocation(NamedTuple):
    """The location of a project's module that has the name of a missing module."""

    file: str
    folder: str  # relative to the kernel's working directory
    on_path: bool  # whether the folder is on sys.path

    @property
    def text(self) -> str:
        """A sentence on the module, for a report."""
        verb = "is" if self.on_path else "is not"
        return (
            f"{self.file} is a module with this name; its folder ({self.folder!r}, "
            f"relative to the kernel's working directory) {verb} on sys.path"
        )


def explain_name_error(
    fault: Fault,
    error: ErrorFacts,
    notebook: NotebookNames,
    environment: ProjectEnvironment,
) -> list[str]:
    """Return sentences that explain why a name is undefined.

    The sentences name the lines that define or delete the name, similar names, or the
    usual import of the name. Return an empty list if nothing explains the error.
    """
    name = str(fault.attributes.get("name") or find_quoted(fault.evalue))
    if name in FOREIGN_CONSTANTS:
        constant = FOREIGN_CONSTANTS[name]
        return [f"`{name}` is JSON or JavaScript; in Python, write `{constant}`"]
    usual_import = _describe_usual_import(name)
    file = fault.frames[-1].file if fault.frames else ""
    if file:
        sentences = _explain_name_in_file(name, file, error, notebook)
        return sentences or usual_import
    sentences = _describe_definitions(name, fault.line, notebook)
    if sentences:
        return sentences
    sentences = _describe_unreachable_definition(
        name, fault.line, notebook, environment
    )
    namespace = notebook.namespace
    descriptions = describe_live_names(namespace)
    live_names = [
        *error.locals,
        *descriptions,
        *namespace.functions,
        *namespace.classes,
    ]
    similar = find_similar_names(name, live_names)
    sentences += _describe_similar_names(name, similar, descriptions, notebook)
    is_misspelled = False
    if similar:
        is_misspelled = normalize_name(similar[0]) == normalize_name(name)
    if not is_misspelled:
        sentences += usual_import
    if sentences:
        return sentences
    if not descriptions:
        return []  # the kernel's names are unknown
    return [_describe_unknown_name(name, notebook)]


def _describe_usual_import(name: str) -> list[str]:
    """Return a list with the sentence on the usual import of a name.

    Return an empty list if the name is not usually imported.
    """
    statement = distribution_names.find_import_statement(name)
    if statement is None:
        return []
    return [f"`{name}` is usually defined by `{statement}`"]


def _describe_similar_names(
    name: str,
    similar: Sequence[str],
    descriptions: dict[str, str],
    notebook: NotebookNames,
) -> list[str]:
    """Return a list with the sentence on the names that are most similar to a name.

    `similar` are the similar names in the kernel, and `descriptions` describe the
    kernel's names.
    """
    defined = find_similar_defined_name(name, similar, notebook)
    if defined:
        return [f"the closest name that a cell defines: {defined}"]
    if not similar:
        return []
    names = []
    for other in similar:
        description = descriptions.get(other, "")
        names.append(f"`{other}`{description}")
    joined_names = ", ".join(names)
    return [f"closest names in the kernel: {joined_names}"]


def _describe_definitions(
    name: str,
    failed_at: int | None,
    notebook: NotebookNames,
) -> list[str]:
    """Return sentences on the lines of cells that define or delete a name.

    Definitions in cells that ran successfully are left out. If there are no others and
    the name was not deleted, the last definition is described.
    """
    definitions = notebook.list_definitions(name)
    pending = [definition for definition in definitions if not definition.succeeded]
    deletion = notebook.find_deletion(name, failed_at)
    shown = pending[:MAX_DEFINITIONS]
    if not pending and not deletion:
        shown = definitions[-1:]
    sentences = [f"`{name}` is defined by {definition.text}" for definition in shown]
    if deletion:
        sentences.append(f"`{name}` was {deletion}")
    return sentences


def _describe_unreachable_definition(
    name: str,
    failed_at: int | None,
    notebook: NotebookNames,
    environment: ProjectEnvironment,
) -> list[str]:
    """Return sentences on a definition that the failing line cannot use.

    The definition is below the line, in another scope, under an alias or in a file.
    """
    sentences = []
    later_definition = _describe_later_definition(name, failed_at, notebook)
    if later_definition:
        sentences.append(later_definition)
    scope = notebook.describe_scope(name)
    if scope:
        sentences.append(scope)
    if sentences:
        return sentences
    alias = notebook.find_alias(name)
    if alias:
        return [alias]
    return _list_file_definitions([name], environment)


def _list_file_definitions(
    names: Sequence[str],
    environment: ProjectEnvironment,
) -> list[str]:
    """Return sentences on the project's lines that define one of the names."""
    sentences = []
    definitions = environment.find_definitions(names)
    for path, line, name in definitions[:MAX_DEFINITIONS]:
        sentences.append(f"line {line} of {path} defines `{name}`")
    return sentences


def _explain_name_in_file(
    name: str,
    file: str,
    error: ErrorFacts,
    notebook: NotebookNames,
) -> list[str]:
    """Return a list with the sentence on an undefined name in a file.

    Return an empty list if the function has no similar name and the name is usually
    imported, or if the notebook does not define the name.
    """
    similar = find_close_names(name, error.locals)
    if similar:
        names = ", ".join(f"`{other}`" for other in similar)
        return [f"closest names in the function: {names}"]
    if distribution_names.find_import_statement(name) is not None:
        return []
    is_live = name in notebook.namespace.names
    if not is_live and not notebook.list_definitions(name):
        return []
    short_file = one_line(file, MAX_FILE_NAME)
    return [
        f"{short_file} does not define `{name}`: code in a file cannot use the "
        "notebook's names"
    ]


def _describe_later_definition(
    name: str,
    failed_at: int | None,
    notebook: NotebookNames,
) -> str:
    """Return a sentence on a line below the failing line that defines a name.

    Return an empty string if there is no such line.
    """
    if failed_at is None:
        return ""
    for line, verb in notebook.list_changes(notebook.cell, name):
        if verb == BOUND and line > failed_at:
            return f"`{name}` is defined only below, by line {line} of this cell"
    return ""


def describe_live_names(namespace: Namespace) -> dict[str, str]:
    """Return descriptions of the kernel's names, such as " (the module numpy)".

    The description is an empty string if only the name is known.
    """
    descriptions = {}
    for name in namespace.names:
        if not name.startswith("_") and name not in IPYTHON_NAMES:
            descriptions[name] = ""
    for name, variable in namespace.variables.items():
        description = command_messages.describe_variable(variable)
        descriptions[name] = f" ({description})"
    for name, module in namespace.modules.items():
        descriptions[name] = f" (the module {module})"
    return descriptions


def find_similar_names(name: str, names: Iterable[str]) -> list[str]:
    """Return the names in `names` that are most similar to a name.

    A builtin is included only if its similarity is at least MIN_BUILTIN_RATIO.
    """
    similar = []
    for other in find_close_names(name, names):
        is_builtin = hasattr(builtins, other)
        if not is_builtin or compute_similarity(other, name) >= MIN_BUILTIN_RATIO:
            similar.append(other)
    return similar


def find_similar_defined_name(
    name: str,
    similar: Sequence[str],
    notebook: NotebookNames,
) -> str:
    """Return a phrase on the most similar name that a cell defines.

    Names that exist in the kernel are not searched. `similar` are the similar names in
    the kernel. Return an empty string if the first of them is at least as similar, or
    if no cell defines a similar name.
    """
    live_names = notebook.namespace.names
    undefined_names = [
        other for other in notebook.list_bound_names() if other not in live_names
    ]
    closest_names = find_close_names(name, undefined_names, 1)
    if not closest_names:
        return ""
    closest_name = closest_names[0]
    if similar:
        similarity = compute_similarity(closest_name, name)
        if similarity <= compute_similarity(similar[0], name):
            return ""
    definitions = notebook.list_definitions(closest_name)
    if not definitions:
        return ""
    return f"`{closest_name}`, by {definitions[0].text}"


def compute_similarity(first: str, second: str) -> float:
    """Return the similarity of two names, from 0 to 1 for equal names."""
    return difflib.SequenceMatcher(None, first, second).ratio()


def _describe_unknown_name(name: str, notebook: NotebookNames) -> str:
    """Return the sentence on a name that is not similar to any name in the kernel."""
    text = "the kernel has no similar name"
    if notebook.mentions_name(name):
        return text
    changes = notebook.list_changes(notebook.cell, name)
    cells = "no other cell" if changes else "no cell of the notebook"
    text += f", and {cells} defines `{name}`"
    earlier_version = notebook.find_earlier_version(name)
    if earlier_version:
        text += f"; {earlier_version}"
    return text


def explain_module_error(
    fault: Fault,
    error: ErrorFacts,
    source: str,
    namespace: Namespace,
    environment: ProjectEnvironment,
    python: str,
) -> list[str]:
    """Return sentences on a module or name that could not be imported.

    The sentences describe a local module, definitions of the imported names, the
    distribution to install, or similar modules. `source` is the source of the cell, and
    `python` the path of the kernel's interpreter.
    """
    name = str(fault.attributes.get("name") or find_quoted(fault.evalue))
    findings = [finding.text for finding in error.findings]
    is_relative = "relative import" in fault.evalue
    classes = fault.mro or (fault.ename,)
    if "ModuleNotFoundError" not in classes and not is_relative:
        return [*_describe_circular_import(fault), *findings]
    imported = _parse_failed_import(fault, name, source, is_relative)
    module = imported.module.lstrip(".") or name
    local_module = _find_local_module(module, name, namespace, environment)
    # Where the project defines the module, or else the imported names.
    locations = []
    definitions = []
    if local_module is not None:
        locations.append(local_module.text)
    else:
        definitions = _list_file_definitions(imported.names, environment)
    if is_relative:
        return [
            "notebook cells are not part of a package: "
            "relative imports (`.`) do not work in them",
            *locations,
            *definitions,
        ]
    if any("not a package" in text for text in findings):
        return [*findings, *locations]
    # The findings describe the module that was imported. A module of the project that
    # is not on sys.path may be the intended one.
    if findings and (local_module is None or local_module.on_path):
        return findings
    if locations:
        return locations
    sentences = []
    distribution = _find_distribution(module, name, imported)
    if distribution:
        sentence = describe_distribution(distribution, environment, python)
        sentences.append(sentence)
    sentences += definitions
    return sentences or [_describe_unknown_module(name, namespace)]


def _parse_failed_import(
    fault: Fault,
    name: str,
    source: str,
    is_relative: bool,
) -> ImportedNames:
    """Return the import that failed, from the innermost frame or the cell's source."""
    code = source
    if fault.frames:
        context = fault.frames[-1].context
        code = "\n".join(text for _, text in context)
    pattern = r"\.+[\w.]*"
    if not is_relative:
        pattern = rf"{re.escape(name)}\b[\w.]*"
    return parse_import(code, pattern)


def _describe_unknown_module(name: str, namespace: Namespace) -> str:
    """Return the sentence on a missing module without a known distribution."""
    similar = _find_similar_modules(name, namespace)
    if similar:
        joined_modules = ", ".join(similar)
        return f"closest modules that can be imported: {joined_modules}"
    return (
        "stepper found no module with a similar name and knows no distribution that "
        f"provides `{name}`"
    )


def _find_distribution(module: str, name: str, imported: ImportedNames) -> str | None:
    """Return the distribution of an imported name or of the missing module, or None."""
    dotted_name = module
    if imported.names:
        dotted_name += f".{imported.names[0]}"
    distribution = distribution_names.find_distribution(dotted_name)
    return distribution or distribution_names.find_distribution(name)


def _describe_circular_import(fault: Fault) -> list[str]:
    """Return a list with the sentence on a circular import, or an empty list."""
    message = fault.evalue
    if "partially initialized" not in message and "circular" not in message:
        return []
    lines = []
    for frame in fault.frames:
        if frame.file:
            lines.append(f"{frame.file} line {frame.line}")
    if not lines:
        return []
    path = " → ".join(lines)
    return [f"the import is circular: {path}"]


def _find_local_module(
    module: str,
    name: str,
    namespace: Namespace,
    environment: ProjectEnvironment,
) -> ModuleLocation | None:
    """Return the project's module with one of these names, or None."""
    cwd = namespace.cwd
    modules = environment.find_local_modules(module, cwd)
    if not modules:
        modules = environment.find_local_modules(name, cwd)
    if not modules:
        return None
    file, folder = modules[0]
    entries = set()
    if namespace.lasting:
        for entry in namespace.lasting.path:
            path = os.path.join(cwd, entry)
            entries.add(os.path.realpath(path))
    full_path = os.path.join(cwd, folder)
    on_path = os.path.realpath(full_path) in entries
    return ModuleLocation(file, folder, on_path)


def _find_similar_modules(name: str, namespace: Namespace) -> list[str]:
    """Return the top-level modules that can be imported and have a similar name."""
    modules = set(sys.stdlib_module_names)
    if namespace.lasting:
        modules.update(namespace.lasting.imported)
        for folder in namespace.lasting.path:
            full_path = os.path.join(namespace.cwd, folder)
            entries = scan_folder(full_path)
            for entry in islice(entries, ENTRIES):
                match = MODULE_NAME.fullmatch(entry.name)
                if match is None:
                    continue
                is_module = match[1] != entry.name
                # A name without an extension must be the name of a folder.
                with suppress(OSError):  # for example, a loop of links
                    is_module = is_module or entry.is_dir()
                if is_module:
                    modules.add(match[1])
    top_name, _, _ = name.partition(".")
    return difflib.get_close_matches(top_name, sorted(modules), cutoff=0.7)


def describe_distribution(
    distribution: str,
    environment: ProjectEnvironment,
    python: str,
) -> str:
    """Return the sentence on a missing distribution, with the command to install it."""
    text = f"the code needs the distribution {distribution}"
    command = environment.build_install_command(python, distribution)
    if command:
        text += f"; to install it, run: {command}"
    return text


def parse_import(source: str, module: str) -> ImportedNames:
    """Return a source's first import of a module whose name matches a pattern.

    `module` is the pattern. If there is no such import, the module is an empty string
    and the list of names is empty.
    """
    joined_lines = source.replace("\\\n", " ")
    match = re.search(IMPORT.format(module=module), joined_lines)
    if match is None:
        return ImportedNames("", [])
    imported = match[2] or match[3] or ""
    without_comments = re.sub(r"#[^\n]*", "", imported)
    parts = without_comments.strip("() ").split(",")
    names = []
    for part in parts:
        words = part.split()  # in `a as b`, the first word is the imported name
        if words:
            names.append(words[0])
    module_name = match[1] or match[4]
    return ImportedNames(module_name, names)


def explain_file_error(
    fault: Fault,
    error: ErrorFacts,
    environment: ProjectEnvironment,
    cwd: str,
) -> list[str]:
    """Return sentences on a file that does not exist or has the wrong type.

    For a missing file, the sentences contain similar paths, the missing folder and the
    kernel's working directory. Similar paths are relative to this directory, unless the
    cell used an absolute path in an existing folder. For a folder in place of a file,
    they contain the names in the folder. For a program that could not be started, they
    are the helper's findings.
    """
    kernel_folder = []
    if cwd:
        folder = environment.format_folder(cwd)
        kernel_folder.append(f"the kernel's working directory is {folder}")
    filename = fault.attributes.get("filename")
    path = str(filename or error.path or find_quoted(fault.evalue))
    if error.program:
        findings = [finding.text for finding in error.findings]
        if "/" in path:
            return findings + kernel_folder
        return findings
    if fault.ename == "IsADirectoryError":
        folder = _describe_folder(os.path.join(cwd, path))
        return [f"{path!r} is {folder}", *kernel_folder]
    paths = []
    if path:
        paths = environment.find_similar_paths(path, cwd)
    missing_folder = find_missing_folder(path, cwd)
    if path.startswith("/") and missing_folder:
        # The path is probably from another machine, so show relative paths.
        root = os.path.realpath(cwd)
        paths = [os.path.relpath(similar, root) for similar in paths]
    sentences = []
    is_home = path.startswith("~")
    if is_home:
        sentences.append("Python does not expand `~`: use os.path.expanduser()")
    if paths:
        quoted_paths = ", ".join(map(repr, paths))
        sentences.append(f"closest existing paths: {quoted_paths}")
    if missing_folder and not is_home:
        sentence = _describe_missing_folder(missing_folder)
        sentences.append(sentence)
    if not sentences and path:
        sentences.append("stepper found no similar path in the project")
    return sentences + kernel_folder


def _describe_folder(path: str) -> str:
    """Return a phrase on a folder and the names in it, if it can be read."""
    try:
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in islice(entries, ENTRIES))
    except (OSError, ValueError):
        return "a folder"
    if not names:
        return "an empty folder"
    joined_names = join_items(names)
    return f"a folder that contains {joined_names}"


def _describe_missing_folder(folder: Path) -> str:
    """Return a sentence on a missing folder, and its parent unless that is `.` or `/`.

    The parent exists: see `find_missing_folder`.
    """
    text = f"the folder {str(folder)!r} does not exist"
    parent = str(folder.parent)
    if parent.strip("./"):
        text += f" ({parent!r} exists)"
    return text


def find_missing_folder(path: str, cwd: str) -> Path | None:
    """Return the topmost missing folder of a path, or None if none is missing."""
    if len(path) > MAX_PATH:
        return None
    topmost = None
    for folder in Path(path).parents:
        full_path = os.path.join(cwd, folder)
        if folder.name and not os.path.lexists(full_path):
            topmost = folder
    return topmost
