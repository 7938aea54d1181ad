"""Suggestions for what has no such name: names, modules, keys, attributes, places in a sequence, files."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stepper.core import distributions
from stepper.core.around import Around, Facts, bare, closest, listed, public, quoted, version, where
from stepper.core.model import Fault


def name_error(fault: Fault, look: Facts, around: Around) -> str:
    """The closest live names; the import that defines it; the cell that would."""
    name = str(fault.attributes.get("name") or quoted(fault.evalue))
    made = look.get("made_local")
    if made:
        outside = " (a global of that name exists)" if made["global"] else ""
        return f"line {made['line']} of the function assigns `{name}` and so makes it local{outside}"
    local = [one for one in look.get("locals") or () if one != name]
    near = closest(name, [*local, *around.names])
    defined = distributions.definition(name)
    said = [f"`{name}` is defined by {where_unrun}, which has not run" for where_unrun in around.unrun[:2]]
    if near:
        told = [f"`{one}`" + (f" ({around.names[one]})" if around.names.get(one) else "") for one in near]
        said.append(f"closest live names: {', '.join(told)}")
    if defined and not (near and bare(near[0]) == bare(name)):
        said.append(f"`{defined}` defines it")
    return "; ".join(said)


def module_not_found(fault: Fault, look: Facts, around: Around) -> str:
    """A local module; the module's siblings; the distribution and the command that installs it here."""
    name = str(fault.attributes.get("name") or quoted(fault.evalue))
    if around.local:
        path, folder = around.local[0]
        return f"{path} is a module of that name; its folder, {folder!r} from the kernel's, is not on sys.path"
    parent = look.get("parent")
    if parent:
        near = closest(parent["wanted"], parent["names"])
        told = f"closest in it: {', '.join(near)}" if near else f"it holds {listed(public(parent['names']))}"
        return f"there is no `{parent['wanted']}` in {parent['module']}{version(parent)}; {told}"
    said = []
    if around.install:
        said.append(f"the distribution {distributions.distribution(name)} provides it: {around.install}")
    if around.modules:
        said.append(f"closest modules that are there: {', '.join(around.modules)}")
    return (
        "; ".join(said)
        or "no installed module has a name like it, and no distribution is known to stepper that provides it"
    )


def import_error(fault: Fault, look: Facts, around: Around) -> str:
    """The closest names in the module, where else in the package it is, the version."""
    found = look.get("import")
    if not found or not found["wanted"]:
        return ""
    said = [f"{found['module']}{version(found)}"]
    if found["elsewhere"]:
        said.append(f"`{found['wanted']}` is in {' and '.join(found['elsewhere'])}")
    near = closest(found["wanted"], public(found["names"]))
    if near:
        said.append(f"closest names in it: {', '.join(near)}")
    elif not found["elsewhere"]:
        said.append(f"it has {listed(public(found['names']), 240)}")
    return "; ".join(said)


def key_error(fault: Fault, look: Facts, around: Around) -> str:
    """The closest keys or columns; whether white space or letter case differs; else the keys that there are."""
    found = look.get("keys")
    if not found:
        return ""
    of = f"`{found['expression']}` ({found['type']})" if found["expression"] else f"the {found['type']}"
    asked = [str(fault.attributes["key"])] if "key" in fault.attributes else re.findall(r"'([^']*)'", fault.evalue)
    keys = list(found["keys"])
    count = f"{found['count']:,}{' or more' if found['some'] else ''}"
    if found.get("levels") and "evel" in fault.evalue:
        return f"{of} has the levels {listed(found['levels'])}"
    if not keys:
        return f"{of} is empty"
    said = []
    for one in asked[:3]:
        if one in map(unquoted, keys) and repr(one) in keys:
            continue  # that one is there
        said += [how_close(one, keys)]
    told = "; ".join(filter(None, said))
    if told:
        return f"{of} has {told}; {count} keys in all"
    return f"{of} has {count} keys: {listed(keys, 300)}"


def how_close(asked: str, keys: Sequence[str]) -> str:
    """Return the closest keys (as written in code) to what was asked for, and how the first differs."""
    same = [key for key in keys if unquoted(key) == asked]
    if same:
        return f"{same[0]} (of another type)"
    by_text = {unquoted(key): key for key in reversed(keys)}
    near = closest(asked, by_text)
    if not near:
        return ""
    first = near[0]
    differs = ""
    if first.strip() == asked.strip():
        differs = " (white space differs)"
    elif first.lower() == asked.lower():
        differs = " (letter case differs)"
    elif bare(first) == bare(asked):
        differs = " (case, white space or underscores differ)"
    others = f", {', '.join(by_text[one] for one in near[1:])}" if near[1:] and not differs else ""
    return f"{by_text[first]}{differs}{others}"


def unquoted(key: str) -> str:
    """Return the text of a key that is written as in code."""
    return key[1:-1] if len(key) > 1 and key[0] == key[-1] and key[0] in "'\"" else key


def attribute_error(fault: Fault, look: Facts, around: Around) -> str:
    """The closest attributes; for None the expression and the line that last bound it."""
    found = look.get("attributes")
    if not found:
        return ""
    wanted, expression = found["wanted"], found.get("expression", "")
    bound = where(found.get("bound"), around)
    if found["type"] == "None":
        return f"`{expression}` is None{bound}" if expression else ""
    kind = found.get("module") or found.get("class") or found["type"]
    said = [f"{kind.rsplit('.', 1)[-1] if not found.get('module') else kind}{version(found)}"]
    if found.get("elsewhere"):
        said.append(f"`{wanted}` is in {' and '.join(found['elsewhere'])}")
    names = found["names"] if wanted.startswith("_") else public(found["names"])
    near = closest(wanted, names)
    if near:
        said.append(f"closest attributes: {', '.join(near)}")
    elif len(names) <= 30 and names:
        said.append(f"it has {listed(names)}")
    if expression and bound:
        said.append(f"`{expression}`{bound.replace('; ', ' ', 1)}")
    return "; ".join(said) if len(said) > 1 else ""


def index_error(fault: Fault, look: Facts, around: Around) -> str:
    """The length and the index asked for."""
    found = look.get("index")
    if not found:
        return ""
    asked = f"; asked for {found['asked']}" if "asked" in found else ""
    if "groups" in found:
        return f"`{found['expression']}` has {found['groups']} groups{asked}"
    size = f"length {found['len']}" if "len" in found else f"shape {' × '.join(map(str, found['shape']))}"
    value = f": {found['value']}" if found.get("value") else ""
    return f"`{found['expression']}` ({found['type']}) has {size}{value}{asked}{where(found.get('bound'), around)}"


def file_not_found(fault: Fault, look: Facts, around: Around) -> str:
    """The closest existing paths, as written from the kernel's folder, and that folder."""
    name = fault.attributes.get("filename")
    if name is None and "filename" not in fault.attributes and not around.paths:
        return f"the kernel's folder is {around.folder}" if around.folder else ""
    near = (
        f"closest existing paths: {', '.join(map(repr, around.paths))}"
        if around.paths
        else "nothing below the project is like it"
    )
    return f"{near}; the kernel's folder is {around.folder}"
