"""Fault + facts → one suggestion for the agent, in one line: from what the kernel and the project hold, or nothing.

`ROWS` is read from the top: the first row whose class the fault has, and which finds something to say, decides. What
has no row gets what the failing line's operands hold, else the first line of its class's docstring.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepper.core import distributions
from stepper.core.brackets import unclosed
from stepper.core.model import Fault

LONGEST = 420
Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Around:
    """What is around a fault: in the kernel, in the notebook, below the project.

    `names`: live name → what it holds, in short. `unrun`: where cells that have not run define the name. `paths`:
    existing ones like the one asked for, as written from `folder`, the kernel's. `local`: modules of that name, path
    and folder. `modules`: modules close to it. `install`: the command that adds a distribution to this project.
    """

    source: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    unrun: Sequence[str] = ()
    paths: Sequence[str] = ()
    folder: str = ""
    local: Sequence[tuple[str, str]] = ()
    modules: Sequence[str] = ()
    install: str = ""
    largest: Sequence[str] = ()
    place: Callable[[Facts], str] = lambda bound: f"cell [{bound.get('cell')}]"


def hint(fault: Fault, look: Facts, around: Around) -> str:
    """Return one line of facts that the fix needs, '' where there are none."""
    classes = set(fault.mro or (fault.ename,))
    for name, row in ROWS:
        if name in classes:
            said = row(fault, look, around)
            if said:
                return shortened(said)
    return shortened(operands(fault, look, around) or fault.doc)


def shortened(text: str) -> str:
    """Return the text in one line of at most `LONGEST` characters."""
    text = " ".join(text.split("\n"))
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def closest(name: str, names: Iterable[str], count: int = 3) -> list[str]:
    """Return the names nearest to one: those that differ in case, white space or underscores alone come first."""
    known = [one for one in dict.fromkeys(names) if one != name]
    plain = bare(name)
    same = [one for one in known if bare(one) == plain]
    alike = difflib.get_close_matches(name.lower(), {one.lower(): one for one in known}, n=count, cutoff=0.6)
    lower = {one.lower(): one for one in reversed(known)}
    part = [
        one for one in known if len(plain) >= 3 and len(bare(one)) >= 3 and (plain in bare(one) or bare(one) in plain)
    ]
    return list(dict.fromkeys([*same, *(lower[one] for one in alike), *part]))[:count]


def bare(name: str) -> str:
    """Return a name without case, white space, quotes and underscores."""
    return re.sub(r"[\s_'\"-]", "", name).lower()


def listed(items: Sequence[str], limit: int = 160) -> str:
    """Return items joined by commas within `limit` characters, with the number left out."""
    told: list[str] = []
    for item in items:
        if sum(map(len, told)) + len(item) + 2 * len(told) > limit and told:
            return f"{', '.join(told)} and {len(items) - len(told)} more"
        told.append(item)
    return ", ".join(told)


def where(bound: Facts | None, around: Around) -> str:
    """Return where something was bound last, with the text of that line; '' where it is not known."""
    if not bound:
        return ""
    line = f"line {bound['line']} of {around.place(bound)}: `{bound['text']}`"
    return f"; it is an argument, given by {line}" if bound.get("argument") else f"; last bound by {line}"


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


def type_error(fault: Fault, look: Facts, around: Around) -> str:
    """The signature of the function called; what an expression that is not what it was thought to be holds."""
    call = look.get("call")
    if call:
        wrong = re.search(r"unexpected keyword argument '([^']+)'", fault.evalue)
        near = closest(wrong[1], call["parameters"]) if wrong else []
        close = f"; closest to `{wrong[1]}`: {', '.join(near)}" if wrong and near else ""
        return f"{call['function']}{call['signature']}{close}"
    holds = look.get("holds")
    if holds:
        hides = ", which hides the builtin of that name" if holds["hides"] else ""
        told = f"`{holds['expression']}` is {article(holds['type'])}{where(holds.get('bound'), around)}{hides}"
        more = operands(fault, look, around)
        return f"{told}. {more}" if more and holds["type"] != "None" else told
    return ""


def article(kind: str) -> str:
    """Return a type's name as one speaks of a value of it."""
    return kind if kind == "None" else f"a {kind}"


def value_error(fault: Fault, look: Facts, around: Around) -> str:
    """Where the value stands that the message names; shapes and dtypes of the operands on the failing line."""
    found = look.get("value_at")
    said = []
    if found:
        column = f"column {found['column']!r} of " if "column" in found else ""
        times = f", {found['count']} times" if found["count"] > 1 else ""
        said.append(f"'{found['text']}' stands in {column}`{found['expression']}`, first at {found['row']}{times}")
    if look.get("keys") and not found and "not" in fault.evalue:
        said.append(key_error(fault, look, around))
    said.append(operands(fault, look, around))
    return "; ".join(filter(None, said))


def operands(fault: Fault, look: Facts, around: Around) -> str:
    """Return what the expressions of the failing line hold."""
    return "; ".join(f"`{one['text']}`: {described(one)}" for one in look.get("operands") or ())


def described(fact: Facts) -> str:
    """Return what a value is, in a few words."""
    kind = fact.get("type", "")
    size = " × ".join(map(str, fact["shape"])) if fact.get("shape") else ""
    parts = [" ".join(filter(None, (kind, size)))]
    if "dtype" in fact:
        parts.append(fact["dtype"])
    if "value" in fact:
        parts[0] = f"{fact['value']} ({kind})" if kind not in ("int", "str", "float", "bool") else fact["value"]
    if "len" in fact and not ("value" in fact and kind == "str"):
        of = f" of {'/'.join(fact['of'])}" if "of" in fact else ""
        parts.append(f"length {fact['len']}{of}")
    if "lengths" in fact:
        parts.append(f"its items' lengths: {', '.join(map(str, fact['lengths']))}")
    if fact.get("nan"):
        parts.append(f"{fact['nan']:,} NaN or infinite")
    if fact.get("nan_columns"):
        parts.append("NaN in " + listed([f"{name} ({count:,})" for name, count in fact["nan_columns"]], 90))
    if fact.get("text_columns"):
        parts.append("not numbers: " + listed([f"{name} ({dtype})" for name, dtype in fact["text_columns"]], 90))
    if fact.get("fields"):
        parts.append("fields " + listed(fact["fields"], 90))
    if fact.get("columns") and not fact.get("nan_columns") and not fact.get("text_columns"):
        parts.append("columns " + listed(fact["columns"], 90))
    if fact.get("keys"):
        parts.append("keys " + listed(fact["keys"], 90))
    return ", ".join(parts)


def unicode_error(fault: Fault, look: Facts, around: Around) -> str:
    """Byte, position, the likely encoding."""
    found = look.get("bytes")
    if not found:
        return ""
    if "character" in found:
        where_it_is = f"the character {found['character']!r} in {found['around']!r}"
        return f"{where_it_is} has no place in {found['name']}; utf-8 holds it"
    if not found["likely"]:
        return f"byte {found['byte']} at position {found['position']}"
    return (
        f"byte {found['byte']} at position {found['position']}; the bytes look like {found['likely']}:"
        f" there they read {found['around']!r}"
    )


def syntax_error(fault: Fault, look: Facts, around: Around) -> str:
    """The line, the caret, what is unclosed and where it was opened."""
    found = unclosed(around.source)
    if found:
        mark, line, column = found
        return f"the {mark} opened in line {line}, column {column}, is not closed"
    at_line, at_column = fault.attributes.get("lineno") or fault.line, fault.attributes.get("offset")
    if not isinstance(at_line, int):
        return ""
    lines = around.source.split("\n")
    said = lines[at_line - 1] if 0 < at_line <= len(lines) else str(fault.attributes.get("text") or "")
    at = f", column {at_column}" if isinstance(at_column, int) and at_column > 0 else ""
    return f"line {at_line}{at}: `{said.strip()[:120]}`"


def timeout(fault: Fault, look: Facts, around: Around) -> str:
    """The line that was running; how a cell gets more time."""
    more = "a first line `# stepper: timeout=10m` gives a cell more time"
    if fault.frames:
        inner = fault.frames[-1]
        text = next((text for number, text in inner.context if number == inner.line), "").strip()
        of = around.place({"cell": inner.cell, "file": inner.file})
        return f"line {inner.line} of {of} was running: `{text}`; {more}"
    return f"which line was running is not known; {more}"


def memory_limit(fault: Fault, look: Facts, around: Around) -> str:
    """The largest variables."""
    return "; ".join(around.largest)


def public(names: Iterable[str]) -> list[str]:
    """Return the names that are not private."""
    return [name for name in names if not name.startswith("_")]


def version(found: Facts) -> str:
    """Return ` VERSION` of a fact that has one."""
    return f" {found['version']}" if found.get("version") else ""


def quoted(text: str) -> str:
    """Return the first quoted part of a text, '' where there is none."""
    found = re.search(r"'([^']+)'", text)
    return found[1] if found else ""


ROWS: tuple[tuple[str, Callable[[Fault, Facts, Around], str]], ...] = (
    ("Timeout", timeout),
    ("MemoryLimit", memory_limit),
    ("NameError", name_error),
    ("ModuleNotFoundError", module_not_found),
    ("ImportError", import_error),
    ("KeyError", key_error),
    ("AttributeError", attribute_error),
    ("IndexError", index_error),
    ("FileNotFoundError", file_not_found),
    ("NotADirectoryError", file_not_found),
    ("IsADirectoryError", file_not_found),
    ("TypeError", type_error),
    ("UnicodeError", unicode_error),
    ("SyntaxError", syntax_error),
    ("ValueError", value_error),
)
