"""Suggestions for what is of the wrong kind: calls, operands, values, bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stepper.diagnosis.around import Around, Facts, closest, listed, where
from stepper.diagnosis.suggest_names import key_error
from stepper.policy.model import Fault


def type_error(fault: Fault, look: Facts, around: Around) -> str:
    """The signature of the function called; what an expression that is not what it was thought to be holds."""
    call = look.get("call")
    if call:
        wrong = re.search(r"unexpected keyword argument '([^']+)'", fault.evalue)
        near = closest(wrong[1], call["parameters"]) if wrong else []
        close = f"; closest to `{wrong[1]}`: {', '.join(near)}" if wrong and near else ""
        if wrong and not near and call.get("kin"):
            close = f"; {call['kin']['module']} also has {listed(call['kin']['names'], 120)}"
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
    size = shaped(fact["shape"], kind) if fact.get("shape") else ""
    parts = [" ".join(filter(None, (kind, size)))]
    if "dtype" in fact:
        parts.append(fact["dtype"])
    if "value" in fact:
        parts[0] = f"{fact['value']} ({kind})" if kind not in ("int", "str", "float", "bool") else fact["value"]
    if "len" in fact and not ("value" in fact and kind == "str"):
        of = f" of {'/'.join(fact['of'])}" if "of" in fact else ""
        parts.append(f"length {fact['len']}{of}")
    if fact.get("zone"):
        parts.append(fact["zone"])
    if fact.get("labels"):
        parts.append("labels " + listed(fact["labels"], 120))
    if "lengths" in fact:
        parts.append(f"its items' lengths: {', '.join(map(str, fact['lengths']))}")
    if fact.get("first"):
        parts.append(f"first {fact['first']}")
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


def shaped(shape: Sequence[int], kind: str) -> str:
    """Return a table's size in words, an array's shape as Python and the error messages write it."""
    if kind == "DataFrame":
        return " × ".join(map(str, shape))
    return str(tuple(shape)) if len(shape) > 1 else str(shape[0])


def unicode_error(fault: Fault, look: Facts, around: Around) -> str:
    """Byte, position, the likely encoding."""
    found = look.get("bytes")
    if not found:
        return ""
    if "cut" in found:
        return (
            f"the {found['cut']:,} bytes end in the middle of a character, whose first byte {found['byte']} is at"
            f" position {found['position']:,}, after {found['around']!r}; what stands before is utf-8"
        )
    if found.get("byte") and "character" in found:
        return (
            f"in {found['around']!r} stands a lone surrogate: what reading with errors='surrogateescape' (or a file's"
            f" name) makes of the byte {found['byte']}; writing with it gives the byte back"
        )
    if "character" in found:
        where_it_is = f"the character {found['character']!r} in {found['around']!r}"
        return f"{where_it_is} has no place in {found['name']}; utf-8 holds it"
    if not found["likely"]:
        return f"byte {found['byte']} at position {found['position']}"
    return (
        f"byte {found['byte']} at position {found['position']}; the bytes look like {found['likely']}:"
        f" there they read {found['around']!r}"
    )
