"""Suggestions for source that does not parse: a small change, or the position."""

from __future__ import annotations

import ast
import sys
import time
import warnings
from typing import Any

import pytest

from stepper.diagnosis import syntax_suggestion
from stepper.diagnosis.syntax_suggestion import suggest_change
from stepper.policy.model import Fault, Frame


def fault(source: str) -> Fault:
    """Return the syntax error of a source as a fault."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError as error:
        mro = tuple(kind.__name__ for kind in type(error).__mro__)
        text = source.split("\n")[(error.lineno or 1) - 1 :][:1]
        attributes = {
            "lineno": error.lineno,
            "offset": error.offset,
            "text": (text or [""])[0],
        }
        return Fault(mro[0], error.msg, mro, error.lineno, attributes=attributes)
    raise AssertionError(f"{source!r} reads")


new = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="this Python reports another position"
)

READS_WITH = [
    # --- brackets
    ("x = (\n  a.b(c=(1, 2)\n  .d()\n)\ny = 3", "a `)` at the end of line 2"),
    ("f(\n  g(,\n  h=3,\n)", "a `)` at the end of line 2"),
    ("x = [1,\n2,\n3\ny = 4", "a `]` at the end of line 3"),
    ("d = {\n  'x': [1, 2,\n  'y': 3,\n}", "a `]` at the end of line 2"),
    ("if f(a:\n    b", "a `)` at the end of line 1"),
    ("f(\n    a,\n    b,\ng()", "a `)` at the end of line 4"),
    ("x = (a\n    .b())\n    .c())\nz", "no `)` in line 2"),
    ("print((a) + b))", "no `)` in line 1"),
    # --- commas, colons, operators
    ("[\n  {'a': 1}\n  {'b': 2},\n]", "a comma at the end of line 2"),
    ("d = {\n 'a': 'x'\n 'b': 'y',\n}", "a comma at the end of line 2"),
    (
        "d = {'a': 1\n 'b': 2\n 'c': 3\n}",
        "a comma at the end of line 1, a comma at the end of line 2",
    ),
    ("x = [\n  'a',\n  'b'\n  'c'\n  d\n]", "a comma at the end of line 4"),
    # --- blocks
    ("try:\n    x = 3\n\ny = 4", "an `except` or `finally` for the `try` in line 1"),
    ("try:\n    x = 3", "an `except` or `finally` for the `try` in line 1"),
    (
        "try:\n    try:\n        x\n    except A:\n        y\n\nz = 3",
        "for the `try` in line 1",
    ),
    (
        "if a:\n    b\nc = 3\nelif d:\n    e",
        "line 3 indented to 4 spaces (now 0), in the block of line 1",
    ),
    (
        "for a in b:\n    if a:\n        c\nelif e:\n    f",
        "lines 4–5 indented to 4 spaces (now 0)",
    ),
    (
        "def f():\n    x\ny = 3\nreturn y",
        "lines 3–4 indented to 4 spaces (now 0), in the block of line 1",
    ),
    (
        "def f():\n        a\n    b",
        "line 3 indented to 8 spaces (now 4), in the block of line 1",
    ),
    (
        "def f():\n    a\n  b",
        "line 3 indented to 4 spaces (now 2), in the block of line 1",
    ),
    ("if a:\n    # later\nelse:\n    b", "a body (for example `pass`) below line 1"),
    ("if a:\nb", "line 2 indented to 4 spaces (now 0), in the block of line 1"),
    ("a = 3\n    b = 4", "line 2 indented to 0 spaces (now 4)"),
    (
        "if a:\n b\n    c",
        "line 3 indented to 1 space (now 4), in the block of line 1",
    ),
    (
        "def f(x):\n    y = await g(x)\n    return y",
        "`async def` instead of `def` in line 1",
    ),
    ("x = f'''\n{a}\n{b\n'''", "a `}` after `{b` in line 3"),
    # --- source that is not Python
    ("a = b and and c", "`and` instead of `and and` in line 1"),
    ('x = "a["b"]c"', "single quotes (') inside the string of line 1"),
    (
        "```python\na\n```",
        "no Markdown fence (backticks) in line 1, no Markdown fence (backticks) in line 3",
    ),
    ("a = 1\\nb = 2\\nc", r"a line break instead of `\n` in line 1"),
    ("a = 3\npip install b", "`%pip install b` (a shell command) in line 2"),
    ("git clone a", "`!git clone a` (a shell command) in line 1"),
    ("f(a, class=3)", "`class_` instead of the reserved word `class` in line 1"),
    (
        "def f(from, to):\n    pass",
        "`from_` instead of the reserved word `from` in line 1",
    ),
    (
        "a = “b”\nc = “d”",
        '`"` instead of `“` in line 1, `"` instead of `“` in line 2',
    ),
    (
        "if a:\n    b\nelse if c:\n    n++",
        "`elif` instead of `else if` in line 3, `n += 1` instead of `n++` in line 4",
    ),
    ("df.class", "`class_` instead of the reserved word `class` in line 1"),
]


@new
@pytest.mark.parametrize(("source", "part"), READS_WITH)
def test_change_that_makes_the_cell_compile(source: str, part: str) -> None:
    broken = (
        fault(source)
        if "%" not in source
        else Fault("SyntaxError", "", ("SyntaxError",), 6)
    )
    suggestion = suggest_change(source, broken)
    assert suggestion.startswith("the cell compiles with ") and part in suggestion, (
        suggestion
    )


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="valid in this Python")
def test_quotes_within_an_f_string() -> None:
    source = 'f"{a["key"]}"\nf"{a["more"]}"'
    assert "single quotes (') inside the string of line 2" in suggest_change(
        source, fault(source)
    )


PLACE_ALONE = [
    "x = 'a['b']c'",
    "print('it's')",
    "for x in y\n    z",  # Python's own message asks for the colon
    "f(a, , b)",
    "a = 1 2",
    "if a = 3:\n    pass",  # Python's own message asks for `==`
    "f(a=1, 3)",
    "1 = a",
    "a = [b for c in d e]",
    "pip = cd cd",
    "(a)(b) c",
    "return 3",
]


@pytest.mark.parametrize("source", PLACE_ALONE)
def test_only_the_position_is_named_if_no_change_helps(source: str) -> None:
    position = f"line 1, column {fault(source).attributes['offset']}: `"
    assert suggest_change(source, fault(source)).startswith(position)


@pytest.mark.parametrize(
    "source",
    ["def f():\n    print(x)\n    global x", "f(a=1,\n  a=2)", "def f(a, a): pass"],
)
def test_complete_python_message_is_kept(source: str) -> None:
    assert suggest_change(source, fault(source)).startswith(
        f"line {fault(source).line}, column "
    )


@new
@pytest.mark.parametrize(
    "table", ["WORDS", "MISSING_CHARACTERS", "ASYNC", "MISSING_BLOCKS"]
)
def test_every_suggestion_row_is_needed(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row changes the suggestion for at least one cell of the tables."""
    sources = [source for source, _ in READS_WITH if "%" not in source]
    messages = [suggest_change(source, fault(source)) for source in sources]
    rows = getattr(syntax_suggestion, table)
    for row in rows:
        monkeypatch.setattr(
            syntax_suggestion, table, [entry for entry in rows if entry is not row]
        )
        assert messages != [
            suggest_change(source, fault(source)) for source in sources
        ], row


def suggest_for_parsed_text(source: str, line: int, **attributes: Any) -> str:
    """Return the suggestion for a syntax error with this line and these attributes."""
    mro = ("SyntaxError", "Exception")
    fault = Fault(
        "SyntaxError",
        "invalid syntax",
        mro,
        line,
        (Frame(3, line, "<module>"),),
        attributes,
    )
    return suggest_change(source, fault)


@pytest.mark.parametrize(
    ("source", "text", "part"),
    [
        (
            "df.query('c > 3 && d < 4')",
            "c >3 and and d <4\n",
            "compiles with `and` instead of `and and`",
        ),
        (
            "df.eval('1 = c')",
            "1 =c\n",
            "line 1 of the parsed text, column 4: `1 =c`",
        ),
        (
            "exec('a b >3')",
            "a b >3\n",
            "line 1 of the parsed text, column 4: `a b >3`",
        ),
        (
            "exec('else if a:')",
            "x = 3\n",
            "line 1 of the parsed text, column 4: `x = 3`",
        ),
    ],
)
def test_source_parsed_by_a_cell(source: str, text: str, part: str) -> None:
    suggestion = suggest_for_parsed_text(
        source, 1, filename="<unknown>", lineno=1, offset=4, text=text
    )
    assert suggestion.endswith(part) or f"{part} in line 1" in suggestion, suggestion


def test_broken_file_is_named() -> None:
    name = "/project/notebooks/../src/tidying.py"
    suggestion = suggest_for_parsed_text(
        "import tidying",
        1,
        filename=name,
        lineno=5,
        offset=9,
        text="    x = f({'a': 3}\n",
    )
    assert suggestion.startswith(
        "line 5 of /project/src/tidying.py, column 9: `x = f({'a': 3}`; this line compiles with a `)`"
    )


def test_source_valid_in_this_python_is_not_changed() -> None:
    """A kernel can have an older Python: then parsing in the daemon shows nothing."""
    refused = Fault(
        "SyntaxError",
        "invalid syntax",
        ("SyntaxError",),
        1,
        attributes={"lineno": 1, "text": "x = y"},
    )
    assert suggest_change("x = y", refused) == "line 1: `x = y`"


@pytest.mark.nightly_after(3)
@pytest.mark.parametrize(
    "source",
    [
        "(,\n" * 6_000,
        "[a b\n" * 4_000,
        "try:\n " * 3_000,
        "'''\n" * 5_001,
        "%x\n" * 6_000 + "(",
        "else:\n" * 3_000,
        "x = (\n" + "  a b,\n" * 2_500 + ")",
        "\0(",
        "\ud800 x",
        "-" * 19_000 + "1",
        "(" * 19_000,
        "x" * 200_000 + " y",
        "a\n b\n" * 2_000,
        '"""a""" b\n' * 1_500,
        "“" * 9_000,
        "f'{a" * 5_000,
        "x" + " \t" * 990 + "y (",
        ("(" + "#" * 1_990 + "'\n") * 9,
        "a.b" * 660 + "++ (",
    ],
)
def test_suggestion_time_is_bounded(source: str) -> None:
    began = time.process_time()
    for line in (1, source.count("\n") + 1):
        suggest_change(
            source, Fault("SyntaxError", "invalid syntax", ("SyntaxError",), line)
        )
    assert time.process_time() - began < 5
