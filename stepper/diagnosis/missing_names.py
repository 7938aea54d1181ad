"""Suggestions for a name, a module, a path that is not there: where it comes from, where it went, what is like it."""

from __future__ import annotations

import builtins
import difflib
import os
import re
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from stepper.common.project_files import ENTRIES, scan_folder
from stepper.common.text import one_line
from stepper.diagnosis import distribution_names
from stepper.diagnosis.in_kernel.close_matches import bare, closest, listed, quoted
from stepper.diagnosis.kernel_facts import Look
from stepper.diagnosis.name_definitions import BOUND, Notebook
from stepper.diagnosis.name_similarity import LONGEST
from stepper.diagnosis.project_environment import Surroundings
from stepper.messages import command_messages
from stepper.policy.kernel_namespace import Namespace
from stepper.policy.model import Fault

# What JSON and JavaScript write, and what Python writes for it.
WRITTEN = {
    "null": "None",
    "true": "True",
    "false": "False",
    "undefined": "None",
    "NaN": "float('nan')",
}
OF_IPYTHON = ("In", "Out", "exit", "quit", "get_ipython")  # names that no cell means


def name_error(
    fault: Fault, look: Look, notebook: Notebook, surroundings: Surroundings
) -> list[str]:
    """Where a name is defined, was deleted or can't be seen; the closest live names."""
    name = str(fault.attributes.get("name") or quoted(fault.evalue))
    if name in WRITTEN:
        return [f"`{name}` is JSON's; Python writes `{WRITTEN[name]}`"]
    usual = distribution_names.definition(name)
    usually = [f"`{usual}` defines it"] if usual else []
    if fault.frames and fault.frames[-1].file:
        return in_file(name, fault.frames[-1].file, look, notebook) or usually

    definitions = notebook.definitions(name)
    pending = [each for each in definitions if not each.ran]
    deletion = notebook.deletion(name, fault.line)
    facts = [f"`{name}` is defined by {each.text}" for each in pending[:2]]
    facts += [f"`{name}` was {deletion}"] if deletion else []
    facts = facts or [
        f"`{name}` is defined by {each.text}" for each in definitions[-1:]
    ]
    if facts:
        return facts
    facts = [below(name, fault.line, notebook), notebook.out_of_sight(name)]
    facts = [each for each in facts if each]
    if not facts and (alias := notebook.imported_as(name)):
        facts = [alias]
    facts = facts or [
        f"line {line} of {path} defines `{name}`"
        for path, line, _ in surroundings.defining([name])[:2]
    ]
    near, live = live_names_like(name, look, notebook)
    planned = defined_names_like(name, near, notebook)
    if planned:
        facts.append(f"the closest name that a cell defines: {planned}")
    elif near:
        described = (f"`{other}`{live.get(other, '')}" for other in near)
        facts.append(f"closest names in the kernel: {', '.join(described)}")
    if not (near and bare(near[0]) == bare(name)):
        facts += usually
    if facts or not live:
        return facts
    return [nowhere(name, notebook)]


def in_file(name: str, file: str, look: Look, notebook: Notebook) -> list[str]:
    """Return what is said of a name that code in a file looked for: it sees no names of the notebook's."""
    near = closest(name, look.locals)
    if near:
        return [f"closest names in the function: {', '.join(map(in_code, near))}"]
    is_usual = distribution_names.definition(name) is not None
    is_notebooks = name in notebook.known.names or notebook.definitions(name)
    if is_usual or not is_notebooks:
        return []
    return [
        f"{one_line(file, 200)} does not define `{name}`: code in a file sees the names of that file, not the notebook's"
    ]


def in_code(name: str) -> str:
    """Return a name as a report quotes it."""
    return f"`{name}`"


def below(name: str, failed_at: int | None, notebook: Notebook) -> str:
    """Return the line below the failing one by which the same cell defines a name; '' for none."""
    for line, how in notebook.changes(notebook.cell, name):
        if how == BOUND and failed_at is not None and line > failed_at:
            return f"`{name}` is defined only below, by line {line} of this cell"
    return ""


def live_names_like(
    name: str, look: Look, notebook: Notebook
) -> tuple[list[str], dict[str, str]]:
    """Return the live names nearest to one, and of all live names what they are."""
    known = notebook.known
    live = {
        other: ""
        for other in known.names
        if not other.startswith("_") and other not in OF_IPYTHON
    }
    live |= {
        other: f" ({command_messages.describe_variable(variable)})"
        for other, variable in known.variables.items()
    }
    live |= {
        other: f" (the module {module})" for other, module in known.modules.items()
    }
    names = [*look.locals, *live, *known.functions, *known.classes]
    near = [
        other
        for other in closest(name, names)
        if not hasattr(builtins, other) or similarity(other, name) >= 0.75
    ]
    return near, live


def defined_names_like(name: str, near: Sequence[str], notebook: Notebook) -> str:
    """Return the name nearest to one that a cell would define, if no live one is nearer; '' for none."""
    absent = [
        other for other in notebook.bound_names() if other not in notebook.known.names
    ]
    for other in closest(name, absent, 1):
        definitions = notebook.definitions(other)
        if near and similarity(near[0], name) >= similarity(other, name):
            continue
        if definitions:
            return f"`{other}`, by {definitions[0].text}"
    return ""


def similarity(one: str, other: str) -> float:
    """Return how alike two names are, 1 for equal ones."""
    return difflib.SequenceMatcher(None, one, other).ratio()


def nowhere(name: str, notebook: Notebook) -> str:
    """Return what is said of a name to which nothing is like."""
    if notebook.mentioned(name):
        return "the kernel has no similar name"
    is_bound_here = bool(notebook.changes(notebook.cell, name))
    whose = "no other cell" if is_bound_here else "no cell of the notebook"
    earlier = notebook.earlier_version(name)
    text = f"the kernel has no similar name, and {whose} defines it"
    return f"{text}; {earlier}" if earlier else text


def module_error(
    fault: Fault,
    look: Look,
    source: str,
    namespace: Namespace,
    surroundings: Surroundings,
    python: str,
) -> list[str]:
    """A local module; what its package holds; where else its names are; the distribution and what installs it here."""
    name = str(fault.attributes.get("name") or quoted(fault.evalue))
    line = (
        "\n".join(text for _, text in fault.frames[-1].context)
        if fault.frames
        else source
    )
    in_no_package = "relative import" in fault.evalue
    module, names = imported(
        line, r"\.+[\w.]*" if in_no_package else rf"{re.escape(name)}\b[\w.]*"
    )
    module = module.lstrip(".") or name
    inside = [finding.text for finding in look.findings]
    if "ModuleNotFoundError" not in (fault.mro or (fault.ename,)) and not in_no_package:
        circle = "partially initialized" in fault.evalue or "circular" in fault.evalue
        files = [
            f"{frame.file} line {frame.line}"
            for frame in fault.frames
            if frame.file and circle
        ]
        return [
            *([f"a circular import: {' → '.join(files)}"] if files else []),
            *inside,
        ]
    cwd, path = namespace.cwd, namespace.lasting.path if namespace.lasting else ()
    place, on_path = [], False
    for file, folder in (
        surroundings.modules_like(module, cwd) or surroundings.modules_like(name, cwd)
    )[:1]:
        known = {os.path.realpath(os.path.join(cwd, entry)) for entry in path}
        on_path = os.path.realpath(os.path.join(cwd, folder)) in known
        its = f"its folder, {folder!r} from the kernel's, {'is' if on_path else 'is not'} on sys.path"
        place = [f"{file} is a module of that name; {its}"]
    defined = [
        f"line {number} of {file} defines `{what}`"
        for file, number, what in ([] if place else surroundings.defining(names)[:2])
    ]
    if in_no_package:
        return [
            "a notebook's cell is in no package: `.` means nothing in it",
            *(place or defined),
        ]
    if any("no package" in text for text in inside):
        return [*inside, *place]
    if place or inside:
        return inside if inside and (on_path or not place) else place
    distribution = distribution_names.distribution(
        ".".join([module, *names[:1]])
    ) or distribution_names.distribution(name)
    said = [provided(distribution, surroundings, python)] if distribution else []
    there = {
        *sys.stdlib_module_names,
        *(namespace.lasting.imported if namespace.lasting else ()),
    }
    for folder in path:
        there |= {
            one.name.removesuffix(".py")
            for one in islice(scan_folder(os.path.join(cwd, folder)), ENTRIES)
        }
    close = difflib.get_close_matches(name.partition(".")[0], sorted(there), cutoff=0.7)
    if close and not (said or defined):
        return [f"closest modules that are there: {', '.join(close)}"]
    unknown = "no installed module has a name like it, and no distribution is known to stepper that provides it"
    return said + defined or [unknown]


def provided(distribution: str, surroundings: Surroundings, python: str) -> str:
    """Return which distribution provides something, and the command that installs it where one is known to work."""
    install = surroundings.install_command(python, distribution)
    return f"the distribution {distribution} provides it{f': {install}' if install else ''}"


def imported(source: str, module: str) -> tuple[str, list[str]]:
    """Return the first module that a source imports and the pattern `module` fits, with the names taken from it."""
    found = re.search(
        rf"\bfrom\s+({module})\s+import\s+(?:\(([^)]*)|([^\n#;]*))|\bimport\s+(?:[^\n#;]*,\s*)?({module})",
        source,
    )
    if found is None:
        return "", []
    names = re.sub(r"#[^\n]*", "", found[2] or found[3] or "").strip("()\\ ")
    return found[1] or found[4], [
        one.split()[0] for one in names.split(",") if one.strip()
    ]


def file_error(
    fault: Fault, look: Look, surroundings: Surroundings, cwd: str
) -> list[str]:
    """The closest existing paths, as written from the kernel's folder, and that folder; what is missing above."""
    here = [f"the kernel's folder is {surroundings.named(cwd)}"] if cwd else []
    asked = str(fault.attributes.get("filename") or look.path or quoted(fault.evalue))
    if look.program:
        return [finding.text for finding in look.findings] + (
            here if "/" in asked else []
        )
    if fault.ename == "IsADirectoryError":
        held = sorted(
            entry.name
            for entry in islice(scan_folder(os.path.join(cwd, asked)), ENTRIES)
        )
        return [f"{asked!r} is a folder; it holds {listed(held) or 'nothing'}", *here]
    paths = surroundings.paths_like(asked, cwd) if asked else []
    lacks, above = missing_folder(asked, cwd)
    # a path of another machine: what is like it is written from here
    if asked.startswith("/") and lacks:
        paths = [os.path.relpath(path, os.path.realpath(cwd)) for path in paths]
    home = asked.startswith("~")
    said = (
        [
            "`~` is no folder here: Python leaves it as it is, os.path.expanduser replaces it"
        ]
        if home
        else []
    )
    said += [f"closest existing paths: {', '.join(map(repr, paths))}"] if paths else []
    if lacks and not home:
        there = f" ({above!r} does)" if above.strip("./") else ""
        said.append(f"the folder {lacks!r} does not exist{there}")
    if not said and asked:
        said.append("the project has no similar path")
    return said + here


def missing_folder(asked: str, cwd: str) -> tuple[str, str]:
    """Return the topmost folder of a path that does not exist, and the one above it; '' for none."""
    above = Path(asked).parents if len(asked) <= LONGEST else ()
    lacks = [
        folder
        for folder in above
        if folder.name and not os.path.lexists(os.path.join(cwd, folder))
    ]
    return (str(lacks[-1]), str(lacks[-1].parent)) if lacks else ("", "")
