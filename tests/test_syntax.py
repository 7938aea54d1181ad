"""What is said of source that Python can't read: what really lacks, where Python names where it stopped."""

from __future__ import annotations

import ast
import sys
import time
import warnings
from typing import Any

import pytest

from stepper.diagnosis.around import Around
from stepper.diagnosis.syntax import syntax_error
from stepper.diagnosis.tokens import statements, tokens
from stepper.policy.model import Fault, Frame


def fault(source: str) -> Fault:
    """Return the fault with which Python refuses a source."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError as error:
        mro = tuple(kind.__name__ for kind in type(error).__mro__)
        text = source.split("\n")[(error.lineno or 1) - 1 :][:1]
        attributes = {"lineno": error.lineno, "offset": error.offset, "text": (text or [""])[0]}
        return Fault(mro[0], error.msg, mro, error.lineno, attributes=attributes)
    raise AssertionError(f"{source!r} reads")


def said(source: str) -> str:
    return syntax_error(fault(source), {}, Around(source=source))


new = pytest.mark.skipif(sys.version_info < (3, 11), reason="Python says less there")

SAID = [
    # brackets
    ("x = (\n  a.b(c=(1, 2)\n  .d()\n)\ny = 3", "the ( opened in line 2, column 6, lacks its )", "end of line 2"),
    ("f(\n  g(,\n  h=3,\n)", "the ( opened in line 2, column 4, lacks its )", "right behind it"),
    ("f(\n    a,\n    b,\ng()", "line 1, column 2, lacks its )", "end of line 3"),
    ("x = [1,\n2,\n3\ny = 4", "the [ opened in line 1", "end of line 3"),
    ("d = {\n  'x': [1, 2,\n  'y': 3,\n}", "the [ opened in line 2, column 8", "end of line 2"),
    ("x = [(1, 2), (3, 4]", "the ( opened in line 1, column 14", "before the ] in line 1, column 19"),
    (
        "x = (a\n    .b())\n    .c())\nz",
        "the ) in line 3, column 9, closes nothing",
        "closed already in line 2, column 9",
    ),
    ("print((a) + b))", "the ) in line 1, column 15, closes nothing", "closed already in line 1, column 14"),
    # commas
    ("[\n  {'a': 1}\n  {'b': 2},\n]", "a comma lacks at the end of line 2", "the cell reads"),
    ("d = {\n 'a': 'x'\n 'b': 'y',\n}", "a comma lacks at the end of line 2", "between `'x'` and `'b'`"),
    ("d = {'a': 1\n 'b': 2\n 'c': 3\n}", "2 commas lack at the end of lines 1, 2", "with them the cell reads"),
    ("x = [\n  'a',\n  'b'\n  'c'\n  d\n]", "a comma lacks at the end of line 4", "the cell reads"),
    ("f(a b)", "a comma lacks in line 1, between `a` and `b`", ""),
    # texts
    ('def f():\n    """Says.\n    x = 3\n\ndef g():\n    """More."""\n', "in line 2, column 5, lacks its end", ""),
    ('q = """\nselect a\n\ndef f():\n    """All."""\n', "in line 1, column 5, lacks its end", "line 2 the cell reads"),
    ("print('it's')", "the text `'it'` ends at the ' in line 1, column 10", "`s` follows"),
    ("p = 'C:\\data\\'\nx = 3", "the ' in column 14 follows a backslash", ""),
    # blocks
    ("try:\n    x = 3\n\ny = 4", "the try of line 1 has no except and no finally", "line 4"),
    ("try:\n    x = 3", "the try of line 1 has no except", "the cell ends"),
    ("try:\n    try:\n        x\n    except A:\n        y\n\nz = 3", "the try of line 1 has no except", "line 7"),
    ("if a:\n    b\nc = 3\nelif d:\n    e", "line 3 (`c = 3`) stands between the `if` of line 1", "`elif` of line 4"),
    ("for a in b:\n    if a:\n        c\n\n        d\nelif e:\n    f", "the nearest `if` (line 2) by 4", ""),
    ("def f():\n    print(x)\n    global x", "line 2 (`print(x)`) uses `x` first", "line 3"),
    ("def f():\n    x\ny = 3\nreturn y", "the function `f` of line 1 ended before line 3 (`y = 3`)", "not indented"),
    ("return 3", "no function stands above the `return` of line 1", ""),
    ("for x in y:\n    pass\nif z:\n    break", "the loop of line 1 ended before line 3", ""),
    ("f(a=1,\n  a=2)", "the argument `a` is given twice: line 1, column 3 and line 2, column 3", ""),
    ("def f():\n        a\n    b", "line 3 is indented by 4 blanks", "0 (line 1), 8 (line 2)"),
    ("def f():\n\ta\n    b", "line 2 is indented with a tab, line 3 with blanks alone", ""),
    ("if a:\n    # later\nelse:\n    b", "only a comment (line 2)", "`pass`"),
    ("if a:\nb", "the `if` of line 1 is indented by 0 blanks, line 2 after it by 0", ""),
    ("a = b\n    .c()", "line 2 begins with `.`, but the expression before it ended in line 1", ""),
    ("a = 3\n    b = 4", "line 2 is indented by 4 blanks, line 1 before it (`a = 3`) by 0", ""),
    ("for x in y\n    z", "a colon lacks at the end of line 1", ""),
    ("for x in y print(x)", "a colon lacks before `print` in line 1", ""),
    # what is no Python
    ("a = “b”\nc = 'x’y'\nd = [‘e’]", "curly quotes", "lines 1, 3:"),
    ("a = 3 × 4", "characters that are no Python stand in line 1: ×", ""),
    ("a\u00a0= 3", "U+00A0 no-break space", ""),
    ("```python\na\n```", "lines 1, 3 are code fences of Markdown", ""),
    ("a = 1\\nb = 2\\nc", "line 1 holds `\\n` as two characters", "2 times"),
    ("a = 1 + \\ \n2", "line 1 ends with blanks after its backslash", ""),
    ("a = 3\npip install b", "`%pip install b`, a magic of IPython", ""),
    ("git clone a", "`!git clone a`", ""),
    ("f(a, class=3)", "`class` (line 1, column 6) is a reserved word", "an argument's name"),
    ("def f(from, to):\n    pass", "`from` (line 1, column 7) is a reserved word", "an argument's name"),
    ("df.class", "can't be an attribute's name", ""),
    ("import a as in", "can't be a name", ""),
]


@new
@pytest.mark.parametrize(("source", "first", "more"), SAID)
def test_what_is_said(source: str, first: str, more: str) -> None:
    told = said(source)
    assert first in told and more in told, told


PLACE_ALONE = [
    "a = 1 2",
    "if a = 3:\n    pass",
    "f(a=1, 3)",
    "a = class",
    "1 = a",
    "a = [b for c in d e]",
    "pip = cd cd",
    "(a)(b) c",
]


@pytest.mark.parametrize("source", PLACE_ALONE)
def test_where_nothing_is_known_there_is_the_place_alone(source: str) -> None:
    assert said(source).startswith(f"line 1, column {fault(source).attributes['offset']}: `")


def parsed(source: str, line: int, columns: list[str] | None = None, **attributes: Any) -> str:
    """Return what is said of another text that a cell's line had parsed."""
    look = {"operands": [{"text": "df", "type": "DataFrame", "columns": columns}]} if columns else {}
    mro = ("SyntaxError", "Exception")
    given = Fault("SyntaxError", "invalid syntax", mro, line, (Frame(3, line, "<module>"),), attributes)
    return syntax_error(given, look, Around(source=source, cwd="/project/notebooks"))


UNKNOWN: dict[str, Any] = {"filename": "<unknown>", "lineno": 1, "offset": 4, "text": "a b >3\n"}


@pytest.mark.parametrize(
    ("source", "columns", "part"),
    [
        ("df.query('a b > 3')", ["a b", "c"], "'a b' is a column; "),
        ("q = 'a b > 3'\ndf.query(q)", ["a b"], "between backticks in a query: `a b`"),
        ("df.query('A b > 3')", ["a b"], "nearest to `A b` is 'a b'"),
        ("df.query('c > 3 && d < 4')", ["c", "d"], "it is `&` or `and`"),
        ("df.eval('c || d')", ["c", "d"], "it is `|` or `or`"),
        ("df.query('c like d')", ["c", "d"], "no operator is between them; columns: 'c', 'd'"),
        ("df.query('c like d')", None, "a name with a blank stands between backticks"),
        ("df.query('c = ')", ["c"], "line 1 of the text that was parsed, column 4: `a b >3`"),
        ("exec('a b >3')", None, "line 1 of the text that was parsed, column 4: `a b >3`"),
    ],
)
def test_texts_that_a_cell_had_parsed(source: str, columns: list[str] | None, part: str) -> None:
    assert part in parsed(source, source.count("\n") + 1, columns, **UNKNOWN)


def test_a_broken_file_of_the_project_is_named_from_the_kernels_folder() -> None:
    name = "/project/notebooks/../src/tidying.py"
    told = parsed("import tidying", 1, filename=name, lineno=5, offset=9, text="    x = f({'a': 3)\n")
    assert told == "line 5 of ../src/tidying.py: `x = f({'a': 3)`; the { in column 11 is not closed in it"


def test_a_cell_magics_lines_are_counted_from_the_cell_on() -> None:
    told = parsed("%%time\nx = 3\ny = (4", 1, filename="<unknown>", lineno=2, offset=5, text="y = (4\n")
    assert told.startswith("the ( opened in line 3, column 5")


def test_a_line_of_ipythons_own_is_no_fault() -> None:
    source = "%matplotlib inline\n!echo \"it's\nx = [\n    f(1,\n    g(2),\n]\nfiles = !ls 'a"
    given = Fault("SyntaxError", "closing parenthesis", ("SyntaxError",), 6, attributes={"lineno": 6, "text": "]"})
    assert "the ( opened in line 4, column 6, lacks its )" in syntax_error(given, {}, Around(source=source))


def test_tokens_of_a_broken_source() -> None:
    found = tokens("x = f'{a}' + (\n  'b\n  c")
    assert [(one.kind, one.text, one.line, one.depth) for one in found[-3:]] == [
        ("op", "(", 1, 0), ("open", "'b", 2, 1), ("name", "c", 3, 1),
    ]  # fmt: skip
    assert [(one.line, one.width, one.first) for one in statements("if a:\n  async for b in c:\n\td")] == [
        (1, 0, "if"), (2, 2, "for"), (3, 8, "d"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "source",
    ["(,\n" * 6_000, "[a b\n" * 4_000, "try:\n " * 3_000, "'''\n" * 5_001, "%x\n" * 6_000 + "(", "else:\n" * 3_000,
     "x = (\n" + "  a b,\n" * 2_500 + ")", "\0(", "\ud800 x", "-" * 19_000 + "1", "(" * 19_000, "x" * 200_000 + " y"],
)  # fmt: skip
@pytest.mark.parametrize(
    "message", ["invalid syntax", "'(' was never closed", "'return' outside function", "unmatched"]
)
def test_no_source_takes_long(source: str, message: str) -> None:
    began = time.monotonic()
    for line in (1, source.count("\n") + 1):
        syntax_error(Fault("SyntaxError", message, ("SyntaxError",), line), {}, Around(source=source))
    assert time.monotonic() - began < 5
