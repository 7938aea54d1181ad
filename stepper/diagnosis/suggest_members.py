"""Suggestions for what a value does not have: attributes, places in a sequence; and what it does hold."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stepper.diagnosis.around import Around, Facts, closest, listed, public, version, where
from stepper.diagnosis.suggest_names import stale
from stepper.diagnosis.suggest_values import described
from stepper.policy.model import Fault

FEW, GIVENS = 30, 2
PLAIN = re.compile(r"[\w.<>]+")


def attribute_error(fault: Fault, look: Facts, around: Around) -> str:
    """The closest attributes, what the value holds; for None the expression, what it was made of and its last line."""
    handed_on = passed(look.get("passed"))
    if handed_on:
        return handed_on
    found = look.get("attributes")
    if not found:
        return ""
    if found["type"] == "None":
        return of_none(found, around)
    wanted, expression = found["wanted"], found.get("expression", "")
    said = [*told_first(found, wanted, expression), *near(found, wanted)]
    bound = where(found.get("bound"), around)
    if expression and bound:
        said.append(f"`{expression}` {bound.removeprefix('; ').removeprefix('it ')}")
    return "; ".join([titled(found), *said]) if said or found.get("holds") else ""


def titled(found: Facts) -> str:
    """Return the name of a module or class with its version, and what a value of it holds."""
    kind = str(found.get("module") or found.get("class") or found["type"])
    if not PLAIN.fullmatch(kind):  # anybody may name a class or a module
        kind = repr(kind[:60]).replace(".", "·")
    name = f"{kind if found.get('module') else kind.rsplit('.', 1)[-1]}{version(found)}"
    fact = {**(found.get("holds") or {}), "type": name}
    if fact.get("shape"):
        fact["type"] = f"{name} of shape {tuple(fact.pop('shape'))}"
    holds = described(fact)
    return f"{holds}, first value {found['first']}" if found.get("first") else holds


def told_first(found: Facts, wanted: str, expression: str) -> list[str]:
    """Return where the attribute is instead, for certain: in a newer file, a module, an item, a part, a key."""
    said = []
    if found.get("newer"):
        said.append(stale(found["newer"], wanted))
    if found.get("elsewhere"):
        said.append(f"`{wanted}` is in {' and '.join(found['elsewhere'])}")
    if found.get("item"):
        said.append(f"its items ({found['item']}) have `{wanted}`")
    if found.get("holder"):
        path, kind, label = found["holder"]
        of = f", {label!r}" if label else ""
        said.append(f"`{expression}{path}` ({kind}{of}) has `{wanted}`")
    if wanted in found.get("keys", ()):
        said.append(f"it is a key: `{expression}[{wanted!r}]`")
    elif closest(wanted, found.get("keys", ())):
        said.append(f"closest keys: {', '.join(map(repr, closest(wanted, found['keys'])))}")
    return said


def near(found: Facts, wanted: str) -> list[str]:
    """Return the attributes nearest to the one wanted, else all of its kind where they are few."""
    names = found["names"] if wanted.startswith("_") else public(found["names"])
    if wanted in names:
        return []  # it has that one: what it holds is the reason
    sure = found.get("documented") or found.get("holder") or found.get("item")
    close = [] if sure else closest(wanted, names)
    said = [f"closest attributes: {', '.join(close)}"] if close else []
    if found.get("documented"):
        name, line = found["documented"]
        said.insert(0, f'`{name}`: "{line}"')
    data = found.get("data") or []
    if not close and not sure and not found.get("keys"):
        if not found.get("called", True) and 0 < len(data) <= FEW:
            return [f"what it has beside methods: {listed(data)}"]
        if 0 < len(names) <= FEW:
            return [f"it has {listed(names)}"]
    return said


def of_none(found: Facts, around: Around) -> str:
    """Return which expression is None, where it was bound and what it was made of."""
    expression = found.get("expression", "")
    if not expression:
        return ""
    return f"`{expression}` is None{where(found.get('bound'), around)}{made_of(found.get('givens'))}"


def made_of(givens: Sequence[Facts] | None) -> str:
    """Return `; with NAME: VALUE` for the values that an expression was made of."""
    told = [f"`{one['text']}`: {described(one)}" for one in (givens or ())[:GIVENS]]
    return f"; with {', '.join(told)}" if told else ""


def passed(found: Facts | None) -> str:
    """Return the parameters nearest to a keyword, of the functions that handed it on."""
    if not found:
        return ""
    close = closest(found["wanted"], found["parameters"])
    told = [f"`{one}` (of {found['parameters'][one]})" for one in close]
    return f"closest parameters to `{found['wanted']}`: {', '.join(told)}" if told else ""


def index_error(fault: Fault, look: Facts, around: Around) -> str:
    """The length and the index asked for, and what it was made of."""
    found = look.get("index")
    if not found:
        return ""
    asked = f"; asked for {found['asked']}" if "asked" in found else ""
    if "groups" in found:
        return f"`{found['expression']}` has {found['groups']} groups{asked}"
    size = f"length {found['len']}" if "len" in found else f"shape {' × '.join(map(str, found['shape']))}"
    value = f": {found['value']}" if found.get("value") and found["value"] != "[]" else ""
    told = f"`{found['expression']}` ({found['type']}) has {size}{value}{asked}{where(found.get('bound'), around)}"
    return told + (unmet(found.get("unmet")) or made_of(found.get("givens")))


def unmet(found: Facts | None) -> str:
    """Return why a filter left no row: what the column holds instead of the value that it was compared with."""
    if not found:
        return ""
    values = {one[1:-1] if one[0] in "'\"" else one: one for one in found["values"] if one}
    wanted = found["wanted"].strip("'\"")
    close = [values[one] for one in closest(wanted, values)]
    if wanted in values:
        close = [values[wanted]]
    told = f"closest: {', '.join(close)}" if close else f"it holds {listed(list(values.values()), 90)}"
    return f"; no value of `{found['column']}` ({found['dtype']}) equals {found['wanted']}, {told}"
