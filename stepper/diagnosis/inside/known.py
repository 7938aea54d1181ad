"""What objects of the standard library and of well-known packages say about their own failure, as it is stored."""

from __future__ import annotations

import ast
import enum
import re
import sqlite3

from stepper.diagnosis.inside.fault import message
from stepper.diagnosis.inside.onspot import held, written
from stepper.diagnosis.inside.reach import bound
from stepper.kernel.inside.base import (
    class_name,
    guarded,
    is_a,
    is_pandas,
    name_of,
    names_in,
    one_of,
    peek,
    shell,
    short,
    top_module,
)

NAMES = 20


def answer(error, places):
    """An HTTP answer that has been read: status, type, how its text begins."""
    values = [peek(error, "response"), *[value for _, value, _, _ in held(places)]]
    for one in values:
        if one is None or top_module(type(one)) not in ("requests", "httpx") or name_of(type(one)) != "Response":
            continue
        content = peek(one, "_content")
        kind = peek(peek(one, "headers"), "_store", {}).get("content-type", ("", ""))[1]
        text = content[:300].decode("utf-8", "replace").strip() if type(content) is bytes else ""
        return {"status": peek(one, "status_code"), "type": short(kind, 60) if type(kind) is str else "",
                "size": len(content) if type(content) is bytes else None,
                "text": short(text, 140)}  # fmt: skip
    return None


def is_fitted(value):
    own = guarded(object.__getattribute__, value, "__dict__")
    return type(own) is dict and any(name.endswith("_") and not name.startswith("_") for name in own)


def fitted(error, places):
    """For what is not fitted: where it was made, and which variables hold a fitted one of its class."""
    kind = re.search(r"This (\w+) instance is not fitted", message(error))
    if not kind:
        return None
    live = [one for one in list(shell.user_ns.items())[:2000] if type(one[0]) is str and not one[0].startswith("_")]
    same = [(name, value) for name, value in live if name_of(type(value)) == kind[1]]
    names = [short(name, 60) for name, value in same if is_fitted(value)]
    fact = {"type": kind[1], "names": names[:6]}
    for text, value, node, spot in held(places):
        if name_of(type(value)) == kind[1]:
            return {**fact, "expression": text, "bound": guarded(bound, node, spot, None)}
    return fact


def features(error, places):
    """What an estimator was fitted with, against the columns of the frame given to it."""
    names = frame = model = None
    for text, value, _, _ in held(places):
        stored = peek(value, "feature_names_in_") if not is_a(value, type) else None
        if names is None and stored is not None and type(stored).__module__ == "numpy":
            names, model = [str(one) for one in stored.tolist()], text
        elif frame is None and is_pandas(value, "DataFrame"):
            frame = (text, [str(one) for one in value.columns])
    if names is None:
        return None
    fact = {"model": model, "names": [short(one, 40) for one in names[:NAMES]], "count": len(names)}
    if frame is not None:
        fact["frame"] = frame[0]
        fact["missing"] = [short(one, 40) for one in names if one not in frame[1]][:NAMES]
        fact["more"] = [short(one, 40) for one in frame[1] if one not in names][:NAMES]
    return fact


def frames_columns(error, places):
    """The columns of each frame on the line."""
    found = [(text, [short(str(one), 40) for one in list(value.columns)[:NAMES]])
             for text, value, _, _ in held(places) if is_pandas(value, "DataFrame")]  # fmt: skip
    return {"frames": found[:2]} if len(found) > 1 else None


def tables(error, places):
    """Tables and columns of the SQLite database on the line, by a cursor without the user's factories."""
    for _, value, _, _ in held(places):
        connection = value.connection if type(value) is sqlite3.Cursor else value
        if type(connection) is not sqlite3.Connection or connection.text_factory is not str:
            continue
        cursor = sqlite3.Cursor(connection)
        wait = cursor.execute("PRAGMA busy_timeout").fetchone()[0]
        try:
            cursor.execute("PRAGMA busy_timeout = 50")  # another process may hold the file
            kinds = (
                "select name from sqlite_master where type in ('table', 'view') and name not like 'sqlite_%' limit 40"
            )
            names = [row[0] for row in cursor.execute(kinds).fetchall()]
            columns = "select name from pragma_table_info(?)"
            found = [[short(name, 60), [short(row[0], 40) for row in
                      cursor.execute(columns, (name,)).fetchmany(NAMES)]]
                     for name in names]  # fmt: skip
        finally:
            cursor.execute(f"PRAGMA busy_timeout = {int(wait)}")
            cursor.close()
        return {"tables": found}
    return None


def options(error, places):
    """The sections of a configuration, or the options of the section that was asked."""
    for text, value, _, _ in held(places):
        if not class_name(type(value)).startswith("configparser."):
            continue
        value = peek(value, "_parser", value)
        stored, section = peek(value, "_sections"), peek(error, "section")
        if type(stored) is not dict:
            continue
        inside = stored.get(section)
        listed = list(inside or ()) + list(peek(value, "_defaults") or ()) if inside is not None else list(stored)
        return {"expression": text, "section": short(section, 40) if inside is not None else "",
                "names": [short(one, 40) for one in listed if type(one) is str][:NAMES],
                "asked": short(str(peek(error, "option") or section), 40)}  # fmt: skip
    return None


def said_by_process(error, places):
    """The last line that the process wrote to its error output."""
    for name in ("stderr", "output"):
        text = peek(error, name)
        text = text[-4000:].decode("utf-8", "replace") if type(text) is bytes else text
        lines = [line.strip() for line in text[-4000:].splitlines() if line.strip()] if type(text) is str else []
        if lines:
            return {"name": "error output" if name == "stderr" else "output", "text": short(lines[-1], 250)}
    return {"name": "", "text": ""} if peek(error, "stderr") is None and peek(error, "output") is None else None


def members(error, places):
    """The values of the enumeration that has not the one asked for."""
    found = re.search(r"^(.+) is not a valid ([\w.<>]+)", message(error))
    for text, value, _, _ in held(places) if found else ():
        if is_a(value, enum.EnumMeta) and found[2] in (name_of(value), name_of(value).rsplit(".", 1)[-1]):
            stored = names_in(value).get("_value2member_map_")
            names = [written(one, 40, 0) for one in list(stored)[:NAMES]] if type(stored) is dict else []
            return {"expression": text, "names": [one for one in names if one], "asked": short(found[1], 60)}
    return None


def searched(error, places):
    """For a `next` that found nothing: what stands at the key that was compared."""
    for spot in places:
        for node in [one for one in spot.nodes if is_a(one, ast.GeneratorExp)]:
            part = node.generators[0]
            value = guarded(spot.value, part.iter)
            if type(value) is dict:
                value = list(value)
            if not one_of(type(value), (list, tuple)) or not is_a(part.target, ast.Name):
                continue
            fact = {"expression": short(ast.unparse(part.iter), 60), "len": len(value)}
            for test in [one for one in ast.walk(part) if is_a(one, ast.Compare)][:1]:
                key = next((one for one in (test.left, *test.comparators) if holder(one) == part.target.id), None)
                at = [part_of(one, key) for one in value[:200]] if key is not None else []
                fact["key"] = short(ast.unparse(key), 60) if key is not None else ""
                fact["values"] = list(dict.fromkeys(filter(None, (written(one, 40, 0) for one in at))))[:NAMES]
            return fact
    return None


def holder(node):
    """The name of which a node is an item or an attribute, or which it is."""
    while is_a(node, (ast.Subscript, ast.Attribute)):
        node = node.value
    return node.id if is_a(node, ast.Name) else ""


def part_of(value, node):
    if is_a(node, ast.Name):
        return value
    if is_a(node, ast.Subscript) and is_a(node.value, ast.Name) and type(value) is dict:
        return value.get(getattr(node.slice, "value", None))
    if is_a(node, ast.Attribute) and is_a(node.value, ast.Name):
        return peek(value, node.attr)
    return None
