"""Suggestions for a module that is not there: a local one, what its package holds, what provides it."""

from __future__ import annotations

import os
import re

from stepper.diagnosis import distributions
from stepper.diagnosis.facts import Look
from stepper.diagnosis.inside.near import quoted
from stepper.policy.model import Fault
from stepper.policy.namespace import Namespace
from stepper.session.ports import Surroundings


def module_error(
    fault: Fault, look: Look, source: str, namespace: Namespace, surroundings: Surroundings, python: str
) -> list[str]:
    """A local module; what its package holds; where else its names are; the distribution and what installs it here."""
    name = str(fault.attributes.get("name") or quoted(fault.evalue))
    line = "\n".join(text for _, text in fault.frames[-1].context) if fault.frames else source
    in_no_package = "relative import" in fault.evalue
    module, names = imported(line, r"\.+[\w.]*" if in_no_package else rf"{re.escape(name)}\b[\w.]*")
    module = module.lstrip(".") or name
    inside = [finding.text for finding in look.findings]
    if "ModuleNotFoundError" not in (fault.mro or (fault.ename,)) and not in_no_package:
        return [*circle(fault), *inside]
    cwd, path = namespace.cwd, namespace.lasting.path if namespace.lasting else ()
    local = surroundings.modules_like(module, cwd) or surroundings.modules_like(name, cwd)
    known = {os.path.realpath(os.path.join(cwd, folder)) for folder in path}
    on_path = bool(local) and os.path.realpath(os.path.join(cwd, local[0][1])) in known
    place = [
        f"{local[0][0]} is a module of that name; its folder, {local[0][1]!r} from the kernel's,"
        f" {'is' if on_path else 'is not'} on sys.path"
    ] if local else []  # fmt: skip
    places = [] if local else surroundings.defining(names)
    defined = [f"line {number} of {file} defines `{what}`" for file, number, what in places[:2]]
    if in_no_package:
        return ["a notebook's cell is in no package: `.` means nothing in it", *(place or defined)]
    hides = [text for text in inside if "no package" in text]
    if hides or (inside and on_path) or (inside and not local):
        return [*inside, *place] if hides else inside
    if place:
        return place
    distribution = distributions.distribution(".".join([module, *names[:1]])) or distributions.distribution(name)
    install = f": {surroundings.install_command(python, distribution)}" if distribution else ""
    said = [f"the distribution {distribution} provides it{install}"] if distribution else []
    said += defined
    close = [] if said else surroundings.modules_close(name, path, cwd)
    said += [f"closest modules that are there: {', '.join(close)}"] if close else []
    return said or ["no installed module has a name like it, and no distribution is known to stepper that provides it"]


def circle(fault: Fault) -> list[str]:
    """Return the files of a circular import, in the order in which they import one another."""
    if "partially initialized" not in fault.evalue and "circular" not in fault.evalue:
        return []
    files = [f"{frame.file} line {frame.line}" for frame in fault.frames if frame.file]
    return [f"a circular import: {' → '.join(files)}"] if files else []


def imported(source: str, module: str) -> tuple[str, list[str]]:
    """Return the first module that a source imports and the pattern `module` fits, with the names taken from it."""
    found = re.search(
        rf"\bfrom\s+({module})\s+import\s+(?:\(([^)]*)|([^\n#;]*))|\bimport\s+(?:[^\n#;]*,\s*)?({module})", source
    )
    if found is None:
        return "", []
    names = re.sub(r"#[^\n]*", "", found[2] or found[3] or "").strip("()\\ ")
    return found[1] or found[4], [one.split()[0] for one in names.split(",") if one.strip()]
