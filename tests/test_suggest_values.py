"""What the failing line's values tell: in the kernel looked up without running the user's code, here put into words."""

from __future__ import annotations

import ast
import datetime
import json
import sqlite3
from enum import Enum
from types import SimpleNamespace

import pytest

from stepper.diagnosis.around import Around
from stepper.diagnosis.inside import clues, known, odd, onspot, parsed, unpacked
from stepper.diagnosis.suggest import LONGEST, hint
from stepper.diagnosis.suggest_clues import CLUES, LATE, clue_words
from stepper.diagnosis.suggest_values import described
from stepper.policy.model import Fault

BOUND = {"line": 2, "cell": 4, "text": "y = df['y']"}


@pytest.mark.parametrize(
    ("clue", "fact", "said"),
    [
        ("unparsed", {"lines": 0, "line": 0, "text": ""}, "the text is empty"),
        (
            "unparsed",
            {"lines": 2, "line": 1, "from": 0, "text": "<html>", "before": ""},
            "the text begins with `<html>`",
        ),
        (
            "unparsed",
            {"lines": 6, "line": 4, "from": 0, "text": "// c", "before": ""},
            "line 4 of 6 of the text is `// c`",
        ),
        (
            "answer",
            {"status": 422, "type": "", "size": 3, "text": "bad"},
            "the answer (status 422) says: `bad`",
        ),
        (
            "answer",
            {"status": 200, "type": "text/plain", "size": None, "text": ""},
            "the answer has the status 200, text/plain; its body has not been read",
        ),
        ("file_is", {"path": "a.csv", "size": 0, "is": "empty", "head": ""}, "`a.csv` is empty (0 bytes)"),
        (
            "file_is",
            {"path": "a.zip", "size": 48, "is": "gzip", "head": "b'\\x1f'"},
            "`a.zip` (48 bytes) is gzip: it begins with b'\\x1f'",
        ),
        ("file_is", {"path": "a.zip", "size": 48, "is": "", "head": "b'q'"}, "`a.zip` (48 bytes) begins with b'q'"),
        (
            "fitted",
            {"type": "Scaler", "names": ["old"]},
            "fitted Scaler in the kernel: `old`",
        ),
        (
            "features",
            {"model": "m", "names": ["a", "b"], "count": 2, "frame": "X", "missing": ["b"], "more": ["c"]},
            "`m` was fitted with 2 columns: `X` lacks b and has c, unknown to `m`",
        ),
        (
            "features",
            {"model": "m", "names": ["a", "b"], "count": 2, "frame": "X", "missing": [], "more": ["c"]},
            "`m` was fitted with 2 columns: `X` has c, unknown to `m`",
        ),
        ("features", {"model": "m", "names": ["a", "b"], "count": 2}, "`m` was fitted with the 2 columns a, b"),
        ("options", {"expression": "ini", "section": "", "names": ["db"], "asked": "dbs"}, "`ini` has the sections db"),
        (
            "unpacked",
            {"expression": "grid", "dict": True, "first": "'a'"},
            "`grid` is a dict: iterating it gives its keys, the first is 'a'",
        ),
        (
            "unpacked",
            {"expression": "f()", "len": 4, "bound": BOUND},
            "`f()` gives 4 values: line 2 of cell [4]: `y = df['y']`",
        ),
        (
            "odd_kind",
            {"expression": "r", "path": "[2]", "type": "int", "value": "4", "count": 1, "others": "str", "of": 3},
            "`r[2]` is 4 (int); of 3 most are str",
        ),
        (
            "odd_length",
            {"expression": "m", "odd": [["'c'", 41]], "count": 1, "usual": 60, "of": 3},
            "`m['c']` has 41 values, the other 2 have 60",
        ),
        (
            "bound_at",
            {"names": [{"expression": "y", "len": 80, "bound": BOUND}]},
            "`y` (length 80) was last bound by line 2 of cell [4]: `y = df['y']`",
        ),
        ("bound_at", {"names": [{"expression": "y", "len": 80, "bound": {**BOUND, "argument": True}}]}, ""),
        ("at_hand", {"function": "f", "names": [["a", "1"]]}, "in `f`: a = 1"),
    ],
)
def test_a_clue_in_words(clue, fact, said):
    assert clue_words({"clues": [{"clue": clue, **fact}]}, Around(), late=clue in LATE) == said


def test_every_clue_of_the_kernel_has_words():
    assert {name for name, *_ in clues.RULES} == set(CLUES)


def test_what_the_variables_held_comes_last_and_where_there_is_room():
    names = [["a", "1" * 150], ["b", "2" * 150]]
    look = {"clues": [{"clue": "at_hand", "function": "f", "names": names}],
            "operands": [{"text": "x" * 90, "type": "list", "len": 2}]}  # fmt: skip
    said = hint(Fault("ValueError", "no", ("ValueError",)), look, Around())
    assert said.startswith("`xxx") and len(said) <= LONGEST and "in `f`" not in said
    look["clues"][0]["names"] = [["a", "1"]]
    assert hint(Fault("ValueError", "no", ("ValueError",)), look, Around()).endswith("length 2; in `f`: a = 1")


@pytest.mark.parametrize(
    ("fact", "said"),
    [
        ({"type": "ndarray", "shape": [64, 16], "dtype": "float64"}, "ndarray (64, 16), float64"),
        ({"type": "DataFrame", "shape": [5, 3]}, "DataFrame 5 × 3"),
        ({"type": "Series", "shape": [5], "dtype": "str"}, "Series 5, str"),
        ({"type": "datetime", "value": "2024-05-01", "zone": "naive"}, "2024-05-01 (datetime), naive"),
    ],
)
def test_an_operand_in_words(fact, said):
    assert described(fact) == said


# --- in the kernel -------------------------------------------------------------------------------------------------


def spot(source, /, **scope):
    """A place as the kernel's helper sees one: a statement and what its names hold."""
    from stepper.diagnosis.inside.reach import evaluate

    tree = ast.parse(source)
    nodes = [one for one in ast.walk(tree) if isinstance(one, ast.expr)]
    return SimpleNamespace(
        nodes=nodes, statement=tree.body[0], tree=tree, line=1, function=lambda: None,
        frame=SimpleNamespace(f_locals=scope), value=lambda node: evaluate(node, (scope,)),
    )  # fmt: skip


class Loud:
    """An object of the user's: whatever is asked of it is an error."""

    def __repr__(self, *given):
        raise AssertionError("asked")

    __str__ = __len__ = __iter__ = __getattr__ = __repr__


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"),
        ("a", "'a'"),
        ({"a": [1, None]}, "{'a': [1, None]}"),
        (datetime.date(2024, 5, 1), "2024-05-01"),
        (10**400, None),
    ],
)
def test_only_plain_values_are_written(value, text):
    assert onspot.written(value) == text


@pytest.mark.parametrize(
    ("line", "scope", "said", "path"),
    [
        ("','.join(r)", {"r": ["a", "b", 3]}, "sequence item 2: expected str instance, int found", "[2]"),
        ("sorted(p)", {"p": [{"a": 1}, {"a": 2}, {"a": "x"}]}, "'<' not supported between instances of 'str' and 'int'", "[2]['a']"),
        ("sum(d.values())", {"d": {"a": 1, "b": 2, "c": "3"}}, "unsupported operand type(s) for +: 'int' and 'str'", "['c']"),
        ("sum(p)", {"p": [1, 2, None]}, "unsupported operand type(s) for +: 'int' and 'NoneType'", "[2]"),
        ("sum(p)", {"p": [1, 2, 3]}, "unsupported operand type(s) for +: 'int' and 'str'", None),
        ("sum(p)", {"p": [1, 2.5]}, "unsupported operand type(s) for +: 'int' and 'str'", None),
    ],
)  # fmt: skip
def test_which_item_is_of_another_kind(line, scope, said, path):
    found = odd.odd_kind(TypeError(said), [spot(line, **scope)])
    assert (found and found["path"]) == path


def test_objects_of_the_users_are_never_asked():
    assert (onspot.written(Loud()), onspot.written([Loud(), 2])) == (None, "[…, 2]")
    error = TypeError("unsupported operand type(s) for +: 'int' and 'Loud'")
    assert odd.odd_kind(error, [spot("sum(p)", p=[Loud(), Loud(), 3])])["path"] == "[2]"
    assert odd.odd_length(ValueError(), [spot("f(p)", p=[Loud(), [1], [1]])]) is None
    assert odd.first_bad([spot("f(p)", p=Loud())], lambda one: one < 0) is None


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ({"a": [1] * 60, "b": [1] * 60, "c": [1] * 41}, "'c'"),
        ([[1, 2]] * 5 + [[1]], "5"),
        ([[1, 2], [1, 2]], None),
        ([[1], [1, 2], [1, 2, 3], [1] * 4], None),
        ("text", None),
    ],
)
def test_which_list_is_of_another_length(value, key):
    found = odd.odd_length(ValueError(), [spot("f(x)", x=value)])
    assert (found and found["odd"][0][0]) == key


def test_where_the_value_stands_that_is_no_json():
    class Int64:
        pass

    Int64.__qualname__ = "int64"
    error = TypeError("Object of type int64 is not JSON serializable")
    found = odd.not_json(error, [spot("json.dumps(x)", x={"a": {"b": [1, Int64()]}})])
    assert found["path"] == "['a']['b'][1]"
    assert odd.not_json(error, [spot("json.dumps(x)", x={"a": 1})]) is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("<!DOCTYPE html>", (1, "<!DOCTYPE html>")),
        ('{"a": 1}\n{"b": 2}\n', (2, '{"b": 2}')),
        ('{\n "a": 1,\n // c\n "b": 2}', (3, "// c")),
        ("", (0, "")),
    ],
)
def test_the_line_that_is_no_json(text, told):
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads(text)
    found = parsed.unparsed(caught.value, [])
    assert (found["line"], found["text"]) == told


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"\x1f\x8b\x08", "gzip"),
        (b"PK\x03\x04 xl/workbook.xml", "an Excel workbook (xlsx, a zip archive)"),
        (b"PK\x03\x04 a.txt", "a zip archive"),
        (b"\n<HTML><body>", "HTML"),
        (b"a,b\n1,2\n", ""),
        (b"", ""),
    ],
)
def test_what_a_file_is_by_its_first_bytes(head, kind):
    assert parsed.kind_of(head) == kind


def test_the_line_of_a_file_on_which_a_byte_stands(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"a\nb\nJ\xf6n\n")
    with pytest.raises(UnicodeDecodeError) as caught:
        b"J\xf6n".decode("utf-8")
    error = caught.value
    found = parsed.line_of_byte(error, [spot(f"read({str(path)!r})")])
    assert (found["line"], found["lines"]) == (3, 3)
    path.write_bytes(b"a\n\xff\n")  # another byte fails there: it is not the file that was read
    assert parsed.line_of_byte(error, [spot(f"read({str(path)!r})")]) is None


@pytest.mark.parametrize(
    ("line", "scope", "count", "told"),
    [
        ("a, b, c = line.split(';')", {"line": "Vardo;-4.1"}, 3, {"len": 2, "value": "['Vardo', '-4.1']"}),
        ("for a, b in x: pass", {"x": [(1, 2), (3,)]}, 2, {"index": 1, "len": 1, "value": "(3,)"}),
        ("for a, b in x: pass", {"x": {"ab": 1, "rate": 2}}, 2, {"dict": True, "first": "'ab'"}),
        ("for a, b in x: pass", {"x": [(1, 2)]}, 2, None),
        ("a = x", {"x": [(1, 2)]}, 2, None),
    ],
)
def test_what_was_to_be_unpacked(line, scope, count, told):
    found = unpacked.unpacked(
        ValueError(f"not enough values to unpack (expected {count}, got 1)"), [spot(line, **scope)]
    )
    assert (found and {key: value for key, value in found.items() if key != "expression"}) == told


def test_tables_of_a_database_are_read_without_the_users_factories():
    def loud(*given):
        raise AssertionError("asked")

    connection = sqlite3.connect(":memory:")
    connection.execute("create table obs (station text, temperature_c real)")
    connection.row_factory = loud
    wait = connection.cursor()
    wait.row_factory = None
    before = wait.execute("pragma busy_timeout").fetchone()
    error, places = sqlite3.OperationalError("no such column: temp"), [spot("con.execute(sql)", con=connection)]
    assert known.tables(error, places) == {"tables": [["obs", ["station", "temperature_c"]]]}
    assert wait.execute("pragma busy_timeout").fetchone() == before
    connection.text_factory = loud
    assert known.tables(error, places) is None


def test_values_of_an_enumeration():
    class State(Enum):
        PAID = "paid"
        CANCELLED = "cancelled"

    error = ValueError("'canceled' is not a valid State")
    found = known.members(error, [spot("State(x)", State=State, x="canceled")])
    assert found["names"] == ["'paid'", "'cancelled'"]
    assert known.members(error, [spot("f(x)", x="canceled")]) is None


def test_what_a_search_went_over():
    layers = [{"name": "coast"}, {"name": "road_lines"}]
    line = "next(l for l in layers if l['name'] == 'roads')"
    found = known.searched(StopIteration(), [spot(line, layers=layers)])
    assert (found["key"], found["values"]) == ("l['name']", ["'coast'", "'road_lines'"])
    assert known.searched(StopIteration(), [spot(line, layers=[])])["len"] == 0
    assert known.searched(StopIteration(), [spot("next(x)", x=iter([]))]) is None
