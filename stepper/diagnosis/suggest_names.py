"""Suggestions for what has no such name: names, modules, what they define, keys."""

from __future__ import annotations

import builtins
import difflib
import re
from collections.abc import Sequence

from stepper.diagnosis import distributions
from stepper.diagnosis.around import Around, Facts, bare, closest, listed, public, quoted, version
from stepper.policy.model import Fault

# What JSON and JavaScript write, and what Python writes for it.
WRITTEN = {"null": "None", "true": "True", "false": "False", "undefined": "None", "NaN": "float('nan')",
           "Infinity": "float('inf')"}  # fmt: skip
PRIMITIVE = ("int", "float", "str", "bool", "NoneType")

FEW = 4  # live variables, all of which are worth a line


def name_error(fault: Fault, look: Facts, around: Around) -> str:
    """Where it is defined, was deleted or can't be seen; what fits by use; the closest live names."""
    name = str(fault.attributes.get("name") or quoted(fault.evalue))
    hidden = out_of_sight(name, look)
    if hidden:
        return hidden
    local = [one for one in look.get("locals") or () if one != name]
    near = [one for one in closest(name, [*local, *around.names]) if meant(one, name)]
    defined = distributions.definition(name)
    said = [f"`{name}` is JSON's; Python writes `{WRITTEN[name]}`"] if name in WRITTEN else []
    said += [f"`{name}` is defined by {where_unrun}, which has not run" for where_unrun in around.unrun[:2]]
    said += [f"`{name}` was {one}" for one in around.gone[:1]]
    said += [f"line {line} of {path} defines `{what}`" for path, line, what in around.defined[:2] if what == name]
    fits = look.get("fits") or ()
    if fits and not near:
        said.append(f"live and with the attributes used: {', '.join(f'`{own}` ({kind})' for own, kind in fits)}")
    if near and name not in WRITTEN:
        told = [f"`{one}`" + (f" ({around.names[one]})" if around.names.get(one) else "") for one in near]
        said.append(f"closest live names: {', '.join(told)}")
    if defined and not (near and bare(near[0]) == bare(name)):
        said.append(f"`{defined}` defines it")
    if not said or (around.gone and not near):
        said.append(others(name, around))
    nowhere = "no live name is like it, and no cell of the notebook defines it" if around.names else ""
    return "; ".join(filter(None, said)) or nowhere


def meant(one: str, name: str) -> bool:
    """Whether a close name may be the one meant: a builtin only where it differs by a letter or two."""
    return not hasattr(builtins, one) or difflib.SequenceMatcher(None, one, name).ratio() >= 0.75


def out_of_sight(name: str, look: Facts) -> str:
    """Return why a name that is bound can't be seen where it was used."""
    made, body = look.get("made_local"), look.get("class_body")
    if made:
        outside = " (a global of that name exists)" if made["global"] else ""
        return f"line {made['line']} of the function assigns `{name}` and so makes it local{outside}"
    if body:
        inside = "methods" if body["function"] else "comprehensions and functions"
        reach = f"; there it is `{body['class']}.{name}`" if body["function"] else ""
        return (
            f"line {body['line']} binds `{name}` in the class body of {body['class']}, which {inside} inside it"
            f" can't see{reach}"
        )
    return ""


def others(name: str, around: Around) -> str:
    """Return the live variables that could be meant: those that the cell does not name itself.

    A name that is only passed on may be anything: of many variables none is likelier than the others.
    """
    used = set(re.findall(r"\w+", around.source))
    apart = ("", "a function", "a class")
    live = [one for one, what in around.names.items() if one not in used and what not in apart]
    live = [one for one in live if not around.names[one].startswith("the module ")]
    of_use = [one for one in live if around.names[one].split()[0].rstrip(",") not in PRIMITIVE]
    if re.search(rf"\b{re.escape(name)}\s*[.\[]", around.source):
        live = of_use  # a number has no attributes worth a line
    elif len(live) > FEW or name.isupper():
        return ""
    told = [f"`{one}` ({around.names[one]})" for one in reversed(live)]
    return f"other live variables: {listed(told)}" if told else ""


def module_not_found(fault: Fault, look: Facts, around: Around) -> str:
    """A local module; the module's siblings; where else its names are; the distribution and what installs it here."""
    name = str(fault.attributes.get("name") or quoted(fault.evalue))
    parent = look.get("parent")
    if parent and parent.get("file"):
        hides = f"`{parent['module']}` is here the file {parent['file']}, no package"
        return "; ".join(filter(None, [hides, beside(around)]))
    if around.local and (not parent or not around.on_path):
        return beside(around)
    if parent:
        return in_parent(parent)
    asked = around.asked or name
    said = []
    if around.install:
        said.append(f"the distribution {distributions.distribution(asked)} provides it: {around.install}")
    said += [f"line {line} of {path} defines `{what}`" for path, line, what in around.defined[:2]]
    if around.modules and not said:
        said.append(f"closest modules that are there: {', '.join(around.modules)}")
    return (
        "; ".join(said)
        or "no installed module has a name like it, and no distribution is known to stepper that provides it"
    )


def beside(around: Around) -> str:
    """Return the project's module of that name, and the folder that makes it importable."""
    if not around.local:
        return ""
    path, folder = around.local[0]
    known = "is" if around.on_path else "is not"
    return f"{path} is a module of that name; its folder, {folder!r} from the kernel's, {known} on sys.path"


def in_parent(parent: Facts) -> str:
    """Return what a package holds beside a module that it lacks, and where in it the names sought are."""
    said = [f"there is no `{parent['wanted']}` in {parent['module']}{version(parent)}"]
    said += [f"`{what}` is in {place}" for what, place in parent.get("moved") or ()]
    near = closest(parent["wanted"], parent["names"])
    if near:
        said.append(f"closest in it: {', '.join(near)}")
    elif public(parent["names"]):
        said.append(f"it holds {listed(public(parent['names']))}")
    return "; ".join(said)


def import_error(fault: Fault, look: Facts, around: Around) -> str:
    """Why the module lacks the name; where else it is; the closest names in the module and in its package."""
    if "relative import" in fault.evalue and around.asked:
        place = beside(around)
        told = place or "; ".join(f"line {line} of {path} defines `{what}`" for path, line, what in around.defined[:2])
        return f"a notebook's cell is in no package: `.` means nothing in it{'; ' + told if told else ''}"
    found = look.get("import")
    if not found or not found["wanted"]:
        return ""
    wanted = found["wanted"]
    if found.get("newer"):
        return stale(found["newer"], wanted)
    said = [f"{found['module']}{version(found)}"]
    ring = circle(fault)
    if ring:
        said.append(ring)
    if found["elsewhere"]:
        said.append(f"`{wanted}` is in {' and '.join(found['elsewhere'])}")
    elif found.get("defined"):
        said.append(f"`{wanted}` is defined in {' and '.join(found['defined'])}")
    return "; ".join([*said, *likely(found, bool(ring or len(said) > 1))])


def likely(found: Facts, sure: bool) -> list[str]:
    """Return the closest names in a module and in its package; all of the module's where none is close."""
    known = set(found.get("beside") or ())  # what the same line imports is not what the other name means
    names = [one for one in public(found["names"]) if one not in known]
    said = []
    near = closest(found["wanted"], names, 5)
    if near:
        said.append(f"closest names in it: {', '.join(near)}")
    apart = [f"{place}.{one}" for one, place in found.get("alike") or () if one not in names and one not in known]
    if apart and not sure and not (near and bare(near[0]) == bare(found["wanted"])):
        said.append(f"closest in its package: {', '.join(apart[:4])}")
    if not said and not sure:
        said.append(f"it has {listed(names, 240)}")
    return said


def circle(fault: Fault) -> str:
    """Return the files of a circular import, in the order in which they import one another."""
    if "partially initialized" not in fault.evalue and "circular" not in fault.evalue:
        return ""
    files = [f"{one.file} line {one.line}" for one in fault.frames if one.file]
    return f"a circular import: {' → '.join(files)}" if files else ""


def stale(newer: Facts, wanted: str) -> str:
    """Return that a module's file was changed after the kernel imported it."""
    return (
        f"line {newer['line']} of {newer['path']} defines `{wanted}`: the file changed after the kernel imported it,"
        " and the kernel holds the older module (importlib.reload or a restart loads it anew)"
    )


def key_error(fault: Fault, look: Facts, around: Around) -> str:
    """The closest keys or columns; whether white space or letter case differs; else the keys that there are."""
    found = look.get("keys")
    if not found:
        return ""
    kind = typed(found)
    of = f"`{found['expression']}` ({kind})" if found["expression"] else f"the {kind}"
    asked = [str(fault.attributes["key"])] if "key" in fault.attributes else re.findall(r"'([^']*)'", fault.evalue)
    keys = list(found["keys"])
    count = f"{found['count']:,}{' or more' if found['some'] else ''}"
    if found.get("levels") and "evel" in fault.evalue:
        return f"{of} has the levels {listed(found['levels'])} of its index"
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


def typed(found: Facts) -> str:
    """Return the type of what lacks a key: of a series with its name and index, of an index with its dtype."""
    if "index" in found:
        named = f" {found['named']}" if found.get("named") else ""
        return f"{found['type']}{named} with a {found['index']} of {found['dtype']}"
    return f"{found['type']} of {found['dtype']}" if found.get("dtype") else str(found["type"])


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
