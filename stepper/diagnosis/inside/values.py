"""What the expressions of a failing line hold, where a value stands, and which encoding bytes look like."""

from __future__ import annotations

import ast
import re

from stepper.diagnosis.inside.describe import describe, is_data
from stepper.diagnosis.inside.fault import message
from stepper.diagnosis.inside.reach import DATA
from stepper.kernel.inside.base import guarded, is_a, is_pandas, one_of, peek, short

OPERANDS = 6


def operands(error, places):
    """What the expressions of the failing line hold; of two places where the inner one tells nothing."""
    for spot in places:
        found = list(described(spot))
        if found:
            return found[:OPERANDS]
    return []


def described(spot):
    seen, todo = set(), [spot.exact] if spot.exact is not None else spot.nodes[:1]
    todo = todo or spot.nodes[:40]
    while todo and len(seen) < OPERANDS:
        node = todo.pop(0)
        text = guarded(ast.unparse, node) or ""
        value = guarded(lambda: (spot.value(node),)) if is_a(node, DATA) else None  # noqa: B023  # called at once
        if value is not None and not (is_a(node, ast.Name) and text in seen):
            if is_data(value[0]) and text not in seen:
                seen.add(text)
                yield {"text": short(text, 60), **(guarded(describe, value[0]) or {})}
            if is_a(node, ast.Subscript) and is_data(value[0]):
                todo.append(node.slice)
            if not is_a(node, ast.Attribute) or is_data(value[0]) or is_a(node.value, ast.Name):
                continue  # below a method that is called is what it is called on
        todo[:0] = [
            child for child in ast.iter_child_nodes(node) if is_a(child, (ast.expr, ast.keyword, ast.comprehension))
        ]


def value_at(error, places):
    """Where the value that an error's message quotes stands: which column or list, from which row on."""
    said = message(error)
    wanted = re.findall(r"'((?:[^'\\]|\\.)*)'", said)
    for text in [*wanted[::-1][:4], *re.findall(r'"([^"\n]*)"', said)[:1]]:
        for spot in places:
            for node in [one for one in spot.nodes if is_a(one, DATA)]:
                found = guarded(stands, spot.value, node, text)
                if found:
                    return {"text": short(text, 60), "expression": short(ast.unparse(node), 60), **found}
    return None


def stands(value_of, node, text):
    value = value_of(node)
    if is_pandas(value, "DataFrame") and value.size <= 500_000:
        for column in value.columns:
            found = stands(lambda _: value[column], node, text)  # noqa: B023  # called at once
            if found:
                return {"column": short(str(column), 60), **found}
    elif (
        is_pandas(value, "Series")
        and len(value) <= 500_000
        and str(value.dtype) in ("object", "str", "string", "category")
    ):
        fits = (value == text).to_numpy().nonzero()[0]
        if len(fits):
            return {"row": short(str(value.index[fits[0]]), 40), "count": len(fits)}
    elif one_of(type(value), (list, tuple)) and text in [one for one in value[:100_000] if type(one) is str]:
        fits = [place for place, one in enumerate(value) if type(one) is str and one == text]
        return {"row": str(fits[0]), "count": len(fits)}
    return None


MARKS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig"))


def bytes_of(error, places):
    """For a UnicodeDecodeError: the bytes around the position and the encoding that they look like."""
    data = peek(error, "object")
    start = peek(error, "start")
    if type(data) is str and type(start) is int:
        return {
            "character": short(data[start]),
            "byte": f"0x{ord(data[start]) - 0xDC00:02x}" if "\udc80" <= data[start] <= "\udcff" else "",
            "name": peek(error, "encoding"),
            "around": short(data[max(0, start - 12) : start + 12], 40),
        }
    if type(data) is not bytes or type(start) is not int:
        return None
    if peek(error, "reason") == "unexpected end of data" and len(data) - start < 4 and fine(data[:start]):
        return {"byte": f"0x{data[start]:02x}", "position": start, "cut": len(data),
                "around": short(data[max(0, start - 20) : start].decode("utf-8", "replace"), 40)}  # fmt: skip
    likely = guess(data[:1_000_000])
    fact = {"byte": f"0x{data[start]:02x}", "position": start, "likely": likely}
    if likely:
        near = data[max(0, start - 12) : start + 12] if likely not in ("utf-16", "utf-8-sig") else data[:40]
        fact["around"] = short(near.decode(likely, "replace").replace("\n", " "), 40)
    return fact


def fine(data):
    """Whether it is UTF-8 with letters of more than one byte: then its end is cut off, not of another encoding."""
    return not data.isascii() and guarded(data.decode, "utf-8") is not None


def guess(data):
    for mark, name in MARKS:
        if data.startswith(mark):
            return name
    if data.count(0) > len(data) // 4:
        return "utf-16-le" if data[1::2].count(0) > data[::2].count(0) else "utf-16-be"
    high = [n for n in data if n > 127]
    if guarded(data.decode, "utf-8") is not None:
        return "utf-8"
    # Western text has few high bytes, each between letters; Cyrillic, Chinese or Japanese is made of them.
    if len(high) * 4 < len(data):
        return "cp1252" if not any(n in (0x81, 0x8D, 0x8F, 0x90, 0x9D) for n in high) else "latin-1"
    for name in ("shift_jis", "gb18030"):
        text = guarded(data.decode, name)
        if (
            text is not None
            and sum("\u3040" <= one <= "\u30ff" or "\u4e00" <= one <= "\u9fff" for one in text) * 2 > len(text) / 2
        ):
            return name
    return "cp1251" if sum(n >= 0xC0 for n in high) * 10 > len(high) * 9 else "cp1252"
