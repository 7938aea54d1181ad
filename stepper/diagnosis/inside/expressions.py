"""What an expression of a cell says, read from its syntax tree: names, calls, merges, emptiness in so many words.

Nothing is evaluated.
"""

from __future__ import annotations

import ast

# Calls that leave out rows: what follows from them is no surprise.
CUTS = {"query", "head", "tail", "sample", "dropna", "drop", "nlargest", "nsmallest", "filter", "iloc", "loc"}
CUTS |= {"where", "mask", "get_group", "between_time", "truncate", "xs"}
SEEKS = {"isna", "isnull", "duplicated"}
LITERALS = {"nan", "NaN", "NAN", "NA", "NaT"}


def inside(node):
    return list(ast.walk(node)) if node is not None else []


def called(node):
    """The name that an expression is, or ''."""
    return node.id if isinstance(node, ast.Name) else ""


def names_of(node):
    return {one.id for one in inside(node) if isinstance(one, ast.Name)}


def calls(node):
    return [one for one in inside(node) if isinstance(one, ast.Call)]


def method(call):
    """The last name of the function or method that is called."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def calls_of(node):
    return set(map(method, calls(node)))


def constants(node):
    """The texts of a constant, or of a list or tuple of constants; () where it is anything else."""
    parts = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]
    return tuple(str(one.value) for one in parts if isinstance(one, ast.Constant)) if parts else ()


def index_of(node):
    inner = node.slice
    return inner.value if type(inner).__name__ == "Index" else inner  # Python 3.8's, which some tools still make


def columns_of(target):
    """df["a"] = …, df[["a", "b"]] = …, df.loc[rows, "a"] = …, df.a = …: ("df", the columns)."""
    if isinstance(target, ast.Attribute):
        return called(target.value), (target.attr,)
    if not isinstance(target, ast.Subscript):
        return "", ()
    frame, index = target.value, index_of(target)
    if isinstance(frame, ast.Attribute) and frame.attr in ("loc", "at"):
        whole = isinstance(index, ast.Tuple) and len(index.elts) == 2
        return called(frame.value), constants(index.elts[1]) if whole else ()
    return called(frame), constants(index)


def uses(node):
    """The columns of frames that an expression uses by name: {("df", "a")} of df["a"], df[["a"]], df.a."""
    found = set()
    for one in inside(node):
        if isinstance(one, ast.Attribute):
            found.add((called(one.value), one.attr))
        elif isinstance(one, ast.Subscript):
            found |= {(called(one.value), column) for column in constants(index_of(one))}
    return found


def whole_names(node, cut=False):
    """The names in an expression of which no rows are left out on the way: `a` in a["x"].map(f), not in a[a.x > 1]."""
    if isinstance(node, ast.Name):
        return set() if cut else {node.id}
    if isinstance(node, ast.Lambda) or node is None:
        return set()
    if isinstance(node, ast.Subscript):
        return whole_names(node.value, cut or not constants(index_of(node)))
    if isinstance(node, ast.Attribute):
        return whole_names(node.value, cut or node.attr in CUTS)
    parts = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "drop" and keywords(node) & {"columns", "axis"}:
        parts[0] = node.func.value
    return {name for part in parts for name in whole_names(part, cut)}


def keywords(call):
    return {one.arg for one in call.keywords}


def keyword(call, name, position=None):
    """The constant that an argument is; None where it is missing, "?" where it is no constant."""
    found = [one.value for one in call.keywords if one.arg == name]
    if not found and position is not None and len(call.args) > position:
        found = [call.args[position]]
    return getattr(found[0], "value", "?") if found else None


def sides(call):
    """The sides of a merge or join: (left, right, how); None for any other call."""
    name, given, arguments = method(call), {one.arg: one.value for one in call.keywords}, list(call.args)
    owner = getattr(call.func, "value", None)
    by_module = name == "merge" and (owner is None or called(owner) in ("pd", "pandas"))
    if by_module:
        left = given.get("left") or (arguments.pop(0) if arguments else None)
    else:
        left = owner if name in ("merge", "join") else None
    right = given.get("right") or given.get("other") or (arguments[0] if arguments else None)
    if left is None or right is None or isinstance(left, ast.Constant):
        return None
    how = keyword(call, "how", {"join": 2}.get(name, 1 + by_module))
    return left, right, how or {"join": "left"}.get(name, "inner")


def merges_of(node):
    """[(call, left, right, how)] of all merges and joins in an expression."""
    return [(call, *found) for call, found in ((call, sides(call)) for call in calls(node)) if found is not None]


def seeks(value, denied=False):
    """Whether an expression chooses what is missing or twice; what is not so (`~`) is another matter."""
    if value is None:
        return False
    denied = denied or (isinstance(value, ast.UnaryOp) and isinstance(value.op, (ast.Invert, ast.Not)))
    name = method(value) if isinstance(value, ast.Call) else ""
    if (name in SEEKS and not denied) or (name == "isin" and denied):  # df[~df.k.isin(known)]
        return True
    return any(seeks(one, denied) for one in ast.iter_child_nodes(value))


def made_empty(value):
    """Whether an expression makes a frame without rows in so many words."""
    if isinstance(value, ast.Subscript):
        index = index_of(value)
        if isinstance(index, ast.Slice):
            return getattr(index.upper, "value", None) == 0
        return isinstance(index, ast.List) and not index.elts
    if not isinstance(value, ast.Call):
        return False
    if method(value) == "head":
        return keyword(value, "n", 0) == 0
    if method(value) in ("DataFrame", "Series"):
        data = [*value.args[:1], *(one.value for one in value.keywords if one.arg == "data")]
        return not data or hollow(data[0])
    return made_empty(value.func.value) if isinstance(value.func, ast.Attribute) else False


def hollow(data):
    if isinstance(data, ast.Dict):
        return all(map(hollow, data.values))
    return (isinstance(data, (ast.List, ast.Tuple)) and not data.elts) or (
        isinstance(data, ast.Constant) and data.value is None
    )


def is_blank(value):
    """Whether an expression is nothing but missing values."""
    if isinstance(value, ast.Constant):
        return value.value is None
    if isinstance(value, (ast.Name, ast.Attribute)):
        return getattr(value, "attr", getattr(value, "id", "")) in LITERALS
    if isinstance(value, (ast.List, ast.Tuple)):
        return all(map(is_blank, value.elts))
    if isinstance(value, ast.BinOp):  # [None] * n
        return is_blank(value.left) or is_blank(value.right)
    if isinstance(value, ast.Call):
        if method(value) == "float":
            return any(constants(one) and constants(one)[0].lower() == "nan" for one in value.args)
        if method(value) in ("Series", "full", "full_like", "empty", "array", "DataFrame"):
            return not value.args or any(map(is_blank, value.args))
    return False
