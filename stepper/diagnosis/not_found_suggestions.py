"""Suggestions for undefined names, missing modules and missing files.

They say where a name is defined or was deleted, what is similar to it, and which
distribution to install.
"""

from __future__ import annotations

import builtins
import difflib
import os
import re
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from stepper.common.project_walk import ENTRIES, scan_folder
from stepper.common.text import one_line
from stepper.diagnosis import distribution_names
from stepper.diagnosis.environment_facts import ProjectEnvironment
from stepper.diagnosis.in_kernel.close_matches import (
    find_close_names,
    find_quoted,
    join_items,
    normalize_name,
)
from stepper.diagnosis.kernel_facts import ErrorFacts
from stepper.diagnosis.name_definitions import BOUND, NotebookNames
from stepper.diagnosis.name_similarity import MAX_PATH
from stepper.messages import command_messages
from stepper.policy.kernel_namespace import Namespace
from stepper.policy.model import Fault

# Constants of JSON and JavaScript, and how Python writes them.
FOREIGN_CONSTANTS = {
    "null": "None",
    "true": "True",
    "false": "False",
    "undefined": "None",
    "NaN": "float('nan')",
}
# Names that IPython defines and no cell means.
IPYTHON_NAMES = ("In", "Out", "exit", "quit", "get_ipython")
MIN_BUILTIN_RATIO = 0.75  # similarity from which a builtin is suggested
IMPORT = (
    r"\bfrom\s+({module})\s+import\s+(?:\(([^)]*)|([^\n#;]*))"
    r"|\bimport\s+(?:[^\n#;]*,\s*)?({module})"
)


class ImportedNames(NamedTuple):
    """A module that a source imports, and the names that it imports from it."""

    module: str
    names: list[str]


def explain_name_error(
    fault: Fault,
    error: ErrorFacts,
    notebook: NotebookNames,
    environment: ProjectEnvironment,
) -> list[str]:
    """Return where a name is defined or was deleted, and the most similar names."""
    name = str(fault.attributes.get("name") or find_quoted(fault.evalue))
    if name in FOREIGN_CONSTANTS:
        constant = FOREIGN_CONSTANTS[name]
        return [f"`{name}` is JSON or JavaScript; in Python, write `{constant}`"]
    statement = distribution_names.find_import_statement(name)
    usual_import = [f"`{statement}` defines it"] if statement else []
    if fault.frames and fault.frames[-1].file:
        file = fault.frames[-1].file
        return _explain_name_in_file(name, file, error, notebook) or usual_import

    sentences = _describe_definitions(name, fault.line, notebook)
    if sentences:
        return sentences
    sentences = _describe_unreachable(name, fault.line, notebook, environment)
    similar, descriptions = find_similar_live_names(name, error, notebook)
    defined = find_similar_defined_name(name, similar, notebook)
    if defined:
        sentences.append(f"the closest name that a cell defines: {defined}")
    elif similar:
        names = (f"`{other}`{descriptions.get(other, '')}" for other in similar)
        sentences.append(f"closest names in the kernel: {', '.join(names)}")
    is_misspelled = similar and normalize_name(similar[0]) == normalize_name(name)
    if not is_misspelled:
        sentences += usual_import
    if sentences or not descriptions:
        return sentences
    return [_describe_unknown_name(name, notebook)]


def _describe_definitions(
    name: str, failed_at: int | None, notebook: NotebookNames
) -> list[str]:
    """Return the lines of cells that define a name and did not run, or deleted it."""
    definitions = notebook.list_definitions(name)
    pending = [definition for definition in definitions if not definition.succeeded]
    deletion = notebook.find_deletion(name, failed_at)
    shown = pending[:2]
    if not pending and not deletion:
        shown = definitions[-1:]
    sentences = [f"`{name}` is defined by {definition.text}" for definition in shown]
    if deletion:
        sentences.append(f"`{name}` was {deletion}")
    return sentences


def _describe_unreachable(
    name: str,
    failed_at: int | None,
    notebook: NotebookNames,
    environment: ProjectEnvironment,
) -> list[str]:
    """Return a definition below the failing line, in another scope, alias or file."""
    sentences = [
        _describe_later_definition(name, failed_at, notebook),
        notebook.describe_scope(name),
    ]
    sentences = [sentence for sentence in sentences if sentence]
    if sentences:
        return sentences
    alias = notebook.find_alias(name)
    if alias:
        return [alias]
    definitions = environment.find_definitions([name])[:2]
    return [f"line {line} of {path} defines `{name}`" for path, line, _ in definitions]


def _explain_name_in_file(
    name: str, file: str, error: ErrorFacts, notebook: NotebookNames
) -> list[str]:
    """Return the sentence on a name in a file, which cannot use the notebook's."""
    similar = find_close_names(name, error.locals)
    if similar:
        names = [f"`{other}`" for other in similar]
        return [f"closest names in the function: {', '.join(names)}"]
    is_usual = distribution_names.find_import_statement(name) is not None
    in_notebook = name in notebook.namespace.names or notebook.list_definitions(name)
    if is_usual or not in_notebook:
        return []
    return [
        f"{one_line(file, 200)} does not define `{name}`: code in a file sees the "
        "names of that file, not those of the notebook"
    ]


def _describe_later_definition(
    name: str, failed_at: int | None, notebook: NotebookNames
) -> str:
    """Return the line below the failing one that defines a name, '' without one."""
    for line, verb in notebook.list_changes(notebook.cell, name):
        if verb == BOUND and failed_at is not None and line > failed_at:
            return f"`{name}` is defined only below, by line {line} of this cell"
    return ""


def find_similar_live_names(
    name: str, error: ErrorFacts, notebook: NotebookNames
) -> tuple[list[str], dict[str, str]]:
    """Return the kernel's names similar to one, and descriptions of all its names."""
    namespace = notebook.namespace
    descriptions = {
        other: ""
        for other in namespace.names
        if not other.startswith("_") and other not in IPYTHON_NAMES
    }
    for other, variable in namespace.variables.items():
        descriptions[other] = f" ({command_messages.describe_variable(variable)})"
    for other, module in namespace.modules.items():
        descriptions[other] = f" (the module {module})"
    names = [*error.locals, *descriptions, *namespace.functions, *namespace.classes]
    similar = []
    for other in find_close_names(name, names):
        is_builtin = hasattr(builtins, other)
        if not is_builtin or similarity(other, name) >= MIN_BUILTIN_RATIO:
            similar.append(other)
    return similar, descriptions


def find_similar_defined_name(
    name: str, similar: Sequence[str], notebook: NotebookNames
) -> str:
    """Return a similar name that a cell would define, '' if a live one is closer."""
    live = notebook.namespace.names
    undefined = [other for other in notebook.list_bound_names() if other not in live]
    for other in find_close_names(name, undefined, 1):
        if similar and similarity(similar[0], name) >= similarity(other, name):
            continue
        definitions = notebook.list_definitions(other)
        if definitions:
            return f"`{other}`, by {definitions[0].text}"
    return ""


def similarity(first: str, second: str) -> float:
    """Return the similarity of two names, 1 if they are equal."""
    return difflib.SequenceMatcher(None, first, second).ratio()


def _describe_unknown_name(name: str, notebook: NotebookNames) -> str:
    """Return the sentence on a name that is similar to no other."""
    if notebook.mentions_name(name):
        return "the kernel has no similar name"
    is_bound_here = bool(notebook.list_changes(notebook.cell, name))
    cells = "no other cell" if is_bound_here else "no cell of the notebook"
    text = f"the kernel has no similar name, and {cells} defines it"
    earlier_version = notebook.find_earlier_version(name)
    return f"{text}; {earlier_version}" if earlier_version else text


def explain_module_error(
    fault: Fault,
    error: ErrorFacts,
    source: str,
    namespace: Namespace,
    environment: ProjectEnvironment,
    python: str,
) -> list[str]:
    """Return a local module, definitions of the names, or what to install."""
    name = str(fault.attributes.get("name") or find_quoted(fault.evalue))
    findings = [finding.text for finding in error.findings]
    is_relative = "relative import" in fault.evalue
    classes = fault.mro or (fault.ename,)
    if "ModuleNotFoundError" not in classes and not is_relative:
        return [*_describe_circular_import(fault), *findings]
    line = source
    if fault.frames:
        line = "\n".join(text for _, text in fault.frames[-1].context)
    pattern = r"\.+[\w.]*" if is_relative else rf"{re.escape(name)}\b[\w.]*"
    imported = parse_import(line, pattern)
    module = imported.module.lstrip(".") or name
    location, on_path = _describe_local_module(module, name, namespace, environment)
    definitions = []
    if not location:
        definitions = [
            f"line {number} of {file} defines `{defined_name}`"
            for file, number, defined_name in environment.find_definitions(
                imported.names
            )[:2]
        ]
    if is_relative:
        return [
            "notebook cells are not part of a package: "
            "relative imports (`.`) do not work in them",
            *(location or definitions),
        ]
    if any("not a package" in text for text in findings):
        return [*findings, *location]
    if findings and (on_path or not location):
        return findings
    if location:
        return location
    dotted_name = ".".join([module, *imported.names[:1]])
    distribution = distribution_names.find_distribution(dotted_name)
    if not distribution:
        distribution = distribution_names.find_distribution(name)
    sentences = []
    if distribution:
        sentences.append(describe_distribution(distribution, environment, python))
    sentences += definitions
    if sentences:
        return sentences
    similar = _find_similar_modules(name, namespace)
    if similar:
        return [f"closest modules that can be imported: {', '.join(similar)}"]
    return [
        "no installed module has a similar name, and stepper knows no distribution "
        "that provides this one"
    ]


def _describe_circular_import(fault: Fault) -> list[str]:
    message = fault.evalue
    if "partially initialized" not in message and "circular" not in message:
        return []
    frames = [frame for frame in fault.frames if frame.file]
    files = [f"{frame.file} line {frame.line}" for frame in frames]
    return [f"a circular import: {' → '.join(files)}"] if files else []


def _describe_local_module(
    module: str, name: str, namespace: Namespace, environment: ProjectEnvironment
) -> tuple[list[str], bool]:
    """Return the sentence on a local module, and whether its folder is on sys.path."""
    cwd = namespace.cwd
    modules = environment.find_local_modules(module, cwd)
    if not modules:
        modules = environment.find_local_modules(name, cwd)
    if not modules:
        return [], False
    file, folder = modules[0]
    search_path = namespace.lasting.path if namespace.lasting else ()
    entries = {os.path.realpath(os.path.join(cwd, entry)) for entry in search_path}
    on_path = os.path.realpath(os.path.join(cwd, folder)) in entries
    verb = "is" if on_path else "is not"
    sentence = (
        f"{file} is a module of that name; its folder, {folder!r} from the kernel's "
        f"folder, {verb} on sys.path"
    )
    return [sentence], on_path


def _find_similar_modules(name: str, namespace: Namespace) -> list[str]:
    modules = {*sys.stdlib_module_names}
    if namespace.lasting:
        modules.update(namespace.lasting.imported)
        for folder in namespace.lasting.path:
            entries = scan_folder(os.path.join(namespace.cwd, folder))
            for entry in islice(entries, ENTRIES):
                modules.add(entry.name.removesuffix(".py"))
    top_name = name.partition(".")[0]
    return difflib.get_close_matches(top_name, sorted(modules), cutoff=0.7)


def describe_distribution(
    distribution: str, environment: ProjectEnvironment, python: str
) -> str:
    """Return which distribution to install, with the command if one works."""
    command = environment.install_command(python, distribution)
    install = f": {command}" if command else ""
    return f"the distribution {distribution} provides it{install}"


def parse_import(source: str, module: str) -> ImportedNames:
    """Return the first import of a source whose module matches the pattern `module`."""
    match = re.search(IMPORT.format(module=module), source)
    if match is None:
        return ImportedNames("", [])
    names = re.sub(r"#[^\n]*", "", match[2] or match[3] or "").strip("()\\ ")
    parts = [part.split()[0] for part in names.split(",") if part.strip()]
    return ImportedNames(match[1] or match[4], parts)


def explain_file_error(
    fault: Fault, error: ErrorFacts, environment: ProjectEnvironment, cwd: str
) -> list[str]:
    """Return the most similar paths, the missing folder and the kernel's folder.

    Paths are relative to the kernel's folder unless the cell used an absolute one.
    """
    kernel_folder = []
    if cwd:
        kernel_folder = [f"the kernel's folder is {environment.display_folder(cwd)}"]
    filename = fault.attributes.get("filename")
    path = str(filename or error.path or find_quoted(fault.evalue))
    if error.program:
        findings = [finding.text for finding in error.findings]
        return findings + kernel_folder if "/" in path else findings
    if fault.ename == "IsADirectoryError":
        entries = islice(scan_folder(os.path.join(cwd, path)), ENTRIES)
        names = sorted(entry.name for entry in entries)
        contents = join_items(names) or "nothing"
        return [f"{path!r} is a folder that contains {contents}", *kernel_folder]
    paths = environment.find_similar_paths(path, cwd) if path else []
    missing_folder, parent = find_missing_folder(path, cwd)
    if path.startswith("/") and missing_folder:
        # A path of another machine: show relative paths.
        root = os.path.realpath(cwd)
        paths = [os.path.relpath(similar, root) for similar in paths]
    sentences = []
    is_home = path.startswith("~")
    if is_home:
        sentences.append("Python does not expand `~`: use os.path.expanduser()")
    if paths:
        sentences.append(f"closest existing paths: {', '.join(map(repr, paths))}")
    if missing_folder and not is_home:
        exists = f" ({parent!r} does)" if parent.strip("./") else ""
        sentences.append(f"the folder {missing_folder!r} does not exist{exists}")
    if not sentences and path:
        sentences.append("the project has no similar path")
    return sentences + kernel_folder


def find_missing_folder(path: str, cwd: str) -> tuple[str, str]:
    """Return the topmost missing folder of a path and its parent, '' if none is."""
    parents = Path(path).parents if len(path) <= MAX_PATH else ()
    missing = []
    for folder in parents:
        if folder.name and not os.path.lexists(os.path.join(cwd, folder)):
            missing.append(folder)
    if not missing:
        return "", ""
    return str(missing[-1]), str(missing[-1].parent)
