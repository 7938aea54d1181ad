"""Which item is unlike the others: in kind, in length, in sign; missing ones; those that stand twice."""

from __future__ import annotations

import ast
import collections
import re
import types

from stepper.diagnosis.inside.fault import message
from stepper.diagnosis.inside.onspot import held, size, written
from stepper.diagnosis.inside.reach import bound
from stepper.kernel.inside.base import guarded, is_a, is_pandas, name_of, of_library, one_of, short
from stepper.kernel.inside.signatures import of_callable

ITEMS, DEPTH, ROWS = 20_000, 4, 500_000
TEXTS = ("object", "str", "string")


def leaves(value, merged=False):
    """(path, path without its places, item) of nested lists and dicts; `merged`: a dict's values as one group."""
    todo, count = collections.deque([("", "", value, 0)]), 0
    while todo and count < ITEMS:
        path, group, one, depth = todo.popleft()
        count += 1
        yield path, group, one
        kind, below = type(one), ()
        if depth < DEPTH and kind is dict:
            below = [(f"[{written(key, 30, 0) or '…'}]", one[key]) for key in list(one)[:ITEMS]]
        elif depth < DEPTH and one_of(kind, (list, tuple)):
            below = [(f"[{number}]", item) for number, item in enumerate(one[:ITEMS])]
        same = merged or kind is not dict
        todo.extend((path + step, group + ("[]" if same else step), item, depth + 1) for step, item in below)


def groups(value, merged):
    """The items that stand in like places, each with its path."""
    if is_pandas(value, "Series"):
        if len(value) > ROWS or str(value.dtype) not in TEXTS:
            return []
        return [[(f" at {short(str(label), 40)}", one) for label, one in zip(value.index, value.to_numpy())]]
    found = {}
    for path, group, one in leaves(value, merged):
        found.setdefault(group, []).append((path, one))
    return list(found.values())


def odd_kind(error, places):
    """For a TypeError that names types: the first item of such a type among items of another."""
    named = {word.rsplit(".", 1)[-1] for word in re.findall(r"[A-Za-z_][\w.]*", message(error))}
    for merged in (False, True):
        for text, value, _, _ in held(places):
            for group in guarded(groups, value, merged) or ():
                found = rare(group, named)
                if found:
                    return {"expression": text, **found}
    return None


def rare(group, named):
    kinds = collections.Counter(name_of(type(one)) for _, one in group).most_common()
    fits = [(kind, count) for kind, count in kinds[1:] if kind in named]
    if not fits:
        return None
    kind, count = fits[-1]
    path, one = next((path, one) for path, one in group if name_of(type(one)) == kind)
    return {"path": short(path, 60), "type": short(kind, 40), "value": written(one), "count": count,
            "others": short(kinds[0][0], 40), "of": len(group)}  # fmt: skip


def not_json(error, places):
    """Where in what was to be written as JSON the value stands that can't be."""
    kind = re.search(r"type (\w+) is not JSON", message(error))
    for text, value, _, _ in held(places) if kind else ():
        for path, _, one in leaves(value):
            if name_of(type(one)) == kind[1]:
                return {"expression": text, "path": short(path, 80), "type": kind[1], "value": written(one)}
    return None


def no_numbers(error, places):
    """Of a column of text in a sum: the values that are no numbers."""
    for text, value, _, _ in held(places):
        if not is_pandas(value, "Series") or str(value.dtype) not in TEXTS or not 0 < len(value) <= ROWS:
            continue
        import pandas

        known = value.dropna()
        if not all(type(one) is str for one in known.head(1000)):
            continue
        bad = known[pandas.to_numeric(known, errors="coerce").isna()]
        if len(known):
            one, label = (bad if len(bad) else known).iloc[0], (bad if len(bad) else known).index[0]
            return {"expression": text, "value": written(one), "row": short(str(label), 40), "count": len(bad),
                    "of": len(known)}  # fmt: skip
    return None


def odd_length(error, places):
    """Among lists side by side: those whose length is not the usual one."""
    for text, value, _, _ in held(places):
        if not one_of(type(value), (dict, list, tuple)) or len(value) < 2:
            continue
        pairs = value.items() if type(value) is dict else enumerate(value)
        sizes = [(key, size(one)) for key, one in list(pairs)[:ITEMS] if not is_a(one, str)]
        sizes = [(key, count) for key, count in sizes if count is not None]
        usual = collections.Counter(count for _, count in sizes).most_common()
        odd = [[written(key, 40, 0) or "…", count] for key, count in sizes if count != usual[0][0]]
        if odd and len(odd) * 2 <= len(sizes):
            return {"expression": text, "odd": odd[:3], "count": len(odd), "usual": usual[0][0], "of": len(sizes)}
    return None


def bound_at(error, places):
    """Where the names were bound last whose lengths differ."""
    sizes = {}
    for text, value, node, spot in held(places[:1]):
        count = size(value) if is_a(node, ast.Name) and not one_of(type(value), (str, dict)) else None
        if count is not None:
            sizes[text] = (count, guarded(bound, node, spot, None))
    counts, told = {count for count, _ in sizes.values()}, set(map(int, re.findall(r"\d+", message(error))))
    if len(counts) < 2 or (told and not counts & told):
        return None
    lines = [{"expression": text, "len": count, "bound": where} for text, (count, where) in sizes.items() if where]
    return {"names": lines[:2]} if lines else None


def standing(value, bad):
    """(where, value) of the first number that is bad, in arrays, columns and lists of these."""
    if is_pandas(value, "DataFrame") and value.size <= ROWS:
        for name in value.columns:
            found = standing(value[name], bad)
            if found:
                return f"column {short(str(name), 40)!r}, " + found[0], *found[1:]
    elif is_pandas(value, "Series") and len(value) <= ROWS and value.dtype.kind in "if":
        fits = bad(value.to_numpy()).nonzero()[0]
        if len(fits):
            return f"at {short(str(value.index[fits[0]]), 40)}", float(value.iloc[fits[0]]), len(fits)
    elif name_of(type(value)) == "ndarray" and of_library(value) and value.size <= ROWS and value.dtype.kind in "if":
        fits = bad(value).nonzero()
        if len(fits) and len(fits[0]):
            first = tuple(int(one[0]) for one in fits)
            return f"at {list(first)}".replace(" ", ""), float(value[first]), len(fits[0])
    elif one_of(type(value), (list, tuple)) and value:
        if all(one_of(type(one), (int, float)) for one in value[:ITEMS]):
            fits = [n for n, one in enumerate(value[:ITEMS]) if bad(one)]
            return (f"at [{fits[0]}]", float(value[fits[0]]), len(fits)) if fits else None
        for number, one in enumerate(value[:6]):
            found = standing(one, bad) if of_library(one) or one_of(type(one), (list, tuple)) else None
            if found:
                return f"[{number}] " + found[0], *found[1:]
    return None


def below_zero(error, places):
    return first_bad(places, lambda one: one < 0)


def missing_at(error, places):
    return first_bad(places, lambda one: one != one)  # noqa: PLR0124  # NaN alone


def first_bad(places, bad):
    for text, value, _, _ in held(places):
        found = guarded(standing, value, bad)
        if found:
            return {"expression": text, "where": found[0], "value": f"{found[1]:.6g}", "count": found[2]}
    return None


def twice(error, places):
    """The first label, or group of values, that stands more than once."""
    for text, value, _, spot in held(places):
        if is_pandas(value, "DataFrame") and len(value) <= ROWS:
            keys = asked_columns(value, spot)
            if keys:
                again = value[value.duplicated(keys, keep=False)]
                if len(again):
                    label = [written(one) or short(str(one), 40) for one in again[keys].iloc[0].tolist()]
                    same = (again[keys] == again[keys].iloc[0]).all(axis=1).sum()
                    return {"expression": text, "keys": keys[:4], "value": ", ".join(label[:4]), "count": int(same)}
        axes = [("index", getattr(value, "index", None)), ("columns", getattr(value, "columns", None))]
        for name, axis in axes if is_pandas(value, "DataFrame") or is_pandas(value, "Series") else ():
            if axis is not None and not axis.is_unique and len(axis) <= ROWS:
                again = axis[axis.duplicated()]
                return {"expression": f"{text}.{name}", "value": written(again[0]) or short(str(again[0]), 60),
                        "count": int((axis == again[0]).sum())}  # fmt: skip
    return None


def asked_columns(value, spot):
    """The columns that the call names by `index=`, `columns=`, `on=` and the like."""
    names = []
    for call in [one for one in spot.nodes if is_a(one, ast.Call)][:1]:
        for given in [
            one.value for one in call.keywords if one.arg in ("index", "columns", "on", "left_on", "right_on")
        ]:
            names += [one.value for one in ast.walk(given) if is_a(one, ast.Constant) and type(one.value) is str]
    return [name for name in dict.fromkeys(names) if name in value.columns]


def not_called(error, places):
    """A function where its result was meant."""
    for text, value, node, spot in held(places):
        called = any(is_a(one, ast.Call) and one.func is node for one in spot.nodes)
        given = any(is_a(one, ast.Call) and node in one.args for one in spot.nodes)
        if one_of(type(value), (types.FunctionType, types.MethodType)) and not called and not given:
            found = of_callable(value)
            return {"expression": text, "signature": short(found[0], 120) if found else "(…)"}
    return None


def low_rank(error, places):
    """For a singular matrix: those on the line whose columns depend on each other."""
    import numpy

    for text, value, _, _ in held(places):
        if type(value) is numpy.ndarray and value.ndim == 2 and value.dtype.kind == "f" and value.size <= 100_000:
            rank = int(numpy.linalg.matrix_rank(value)) if min(value.shape) <= 200 else min(value.shape)
            if rank < min(value.shape):
                return {"expression": text, "rank": rank, "shape": [int(one) for one in value.shape]}
    return None
