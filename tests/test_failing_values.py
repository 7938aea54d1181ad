"""The inspection of values in a failing line, which runs no user code."""

from __future__ import annotations

import ast
import datetime
import inspect
import json
import re
import sys
from collections.abc import Iterator
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
from pure_eval import CannotEval

from stepper.diagnosis.in_kernel import (
    expression_values,
    failing_values,
    file_read_errors,
    key_and_attribute_errors,
    value_summary,
)
from stepper.diagnosis.in_kernel.expression_values import UserFrame, Values
from stepper.diagnosis.in_kernel.last_assignment import find_last_binding
from stepper.kernels.in_kernel import safe_inspect, signatures
from tests.test_kernel_helper import Lab, environment, old_python, run_failing, text


class Loud:
    """A user's object: every access raises an error."""

    def __repr__(self, *values: Any) -> Any:
        raise AssertionError("asked")

    __str__ = __len__ = __iter__ = __getattr__ = __getitem__ = __repr__


def make_failing_spot(source: str, /, **scope: Any) -> Any:
    """Return a failing statement with its values, as the kernel's helper has it."""
    frame = UserFrame.__new__(UserFrame)
    frame.tree = ast.parse(source)
    frame.statement, frame.line, frame.values, frame.filename = (
        frame.tree.body[0],
        1,
        Values(scope),
        "<cell>",
    )
    frame.nodes = [node for node in ast.walk(frame.tree) if isinstance(node, ast.expr)]
    for above in ast.walk(frame.tree):
        for node in ast.iter_child_nodes(above):
            node.parent = above  # type: ignore[attr-defined]  # as `executing` does
    frame.frame = SimpleNamespace(f_locals=scope)  # type: ignore[assignment]
    return frame


def describe_values(error: BaseException, source: str, /, **scope: Any) -> str:
    """Return the rows of the table of values for an error."""
    spots = [make_failing_spot(source, **scope)]
    explanations = failing_values.find_explanations(
        error, failing_values.build_rows(spots, str(error))
    )
    return "; ".join(finding["text"] for finding in explanations)


# --- single rules ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "scope", "message", "expected_start"),
    [
        (
            "','.join(r)",
            {"r": ["a", "b", 3]},
            "sequence item 2: expected str instance, int found",
            "`r[2]` is 3 (int); 2 of the 3 items are str",
        ),
        (
            "sorted(p)",
            {"p": [{"a": 1}, {"a": 2}, {"a": "x"}]},
            "'<' not supported between instances of 'str' and 'int'",
            "`p[2]['a']` is 'x'",
        ),
        (
            "sum(d.values())",
            {"d": {"a": 1, "b": 2, "c": "3"}},
            "unsupported operand type(s) for +: 'int' and 'str'",
            "`d['c']` is '3'",
        ),
        (
            "sum(p)",
            {"p": [1, 2, None]},
            "unsupported operand type(s) for +: 'int' and 'NoneType'",
            "`p[2]` is None",
        ),
        (
            "sum(p)",
            {"p": [1, 2, 3]},
            "unsupported operand type(s) for +: 'int' and 'str'",
            "",
        ),
        (
            "json.dumps(x)",
            {"x": {"a": {"b": [1, {2}]}}},
            "Object of type set is not JSON serializable",
            "`x['a']['b'][1]` is of type set",
        ),
    ],
)
def test_item_of_different_type(
    line: str, scope: dict[str, Any], message: str, expected_start: str
) -> None:
    line = describe_values(TypeError(message), line, **scope)
    assert line.startswith(expected_start) and bool(line) is bool(expected_start)


@pytest.mark.parametrize(
    ("message", "value", "expected_text"),
    [
        (
            "could not convert string to float: 'n/a'",
            [1.5, "2", "n/a"],
            "[2]` is 'n/a'",
        ),
        ("math domain error", [1.0, -3.75], "[1]` is -3.75"),
        (
            "Input contains NaN.",
            {"a": [1.0, float("nan"), None]},
            "['a'][1]` is nan (float), the first of 2 such items",
        ),
        (
            "cannot convert NaT to integer",
            [1, type("NaTType", (), {"__module__": "pandas"})()],
            "[1]` is of type NaTType",
        ),
        ("no", [1, 2], ""),
    ],
)
def test_item_named_in_the_message(
    message: str, value: Any, expected_text: str
) -> None:
    line = describe_values(ValueError(message), "f(x)", x=value)
    assert expected_text in line and bool(line) is bool(expected_text)


@pytest.mark.parametrize(
    ("value", "displayed"),
    [(["a", "b", "a"], "`x` contains 'a' 2 times"), ([1, 2], "")],
)
def test_duplicate_values(value: Any, displayed: str) -> None:
    assert (
        describe_values(ValueError("labels must be unique"), "f(x)", x=value)
        == displayed
    )


def test_exception_attributes() -> None:
    error = RuntimeError("exit status 1")
    error.stderr = b"Traceback\nValueError: missing column: postcode\n"  # type: ignore[attr-defined]
    assert (
        describe_values(error, "run()")
        == "the error's stderr ends with: ValueError: missing column: postcode"
    )


# --- keys -----------------------------------------------------------------------------


class State(Enum):
    PAID = "paid"


@pytest.mark.parametrize(
    ("line", "key", "value", "displayed"),
    [
        (
            "x['presure']",
            "presure",
            {"pressure": 1, "time": 2},
            "`x` (dict) has 2 keys; most similar: 'pressure'",
        ),
        ("x['sales']", "sales", {"Sales": 1}, "has 1 key; most similar: 'Sales'"),
        ("x['price']", "price", {"price ": 1}, "has 1 key; most similar: 'price '"),
        ("x['1']", "1", {1: 1}, "1 (of another type)"),
        ("x['zz']", "zz", {"a": 1, "b": 2}, "`x` (dict) has 2 keys: 'a', 'b'"),
        ("x['zz']", "zz", {}, "`x` (dict) is empty"),
        (
            "x['zz']",
            "zz",
            {"a": {"b": {"c": 1}}, "d": 2},
            "2 keys: 'a' (dict: 'b'), 'd'",
        ),
        ("x.pop('ab')", "ab", {"a_b": 1}, "'a_b'"),
        ("'%(ab)s' % x", "ab", {"a_b": 1}, "'a_b'"),
        ("'{ab}'.format(**x)", "ab", {"a_b": 1}, "'a_b'"),
        ("x['PAYD']", "PAYD", State, "'PAID'"),
        ("x['a']", "a", {"a": 1}, ""),
        ("x['a']", "a", 5, ""),
    ],
)
def test_missing_key(line: str, key: str, value: Any, displayed: str) -> None:
    explanation = key_and_attribute_errors.explain_key_error(
        KeyError(key), [make_failing_spot(line, x=value)]
    )
    assert (displayed in explanation["text"]) if displayed else explanation is None


# --- values as text -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "displayed"),
    [
        (1, "1"),
        ("a", "'a'"),
        (None, "None"),
        ({"a": [1, None]}, "{'a': [1, None]} (dict), length 1, keys 'a'"),
        (
            {("a", 1): 2, frozenset(): 3, (("b",), 4): object},
            "{('a', 1): 2, …: 3, (…, 4): …} (dict), length 3",
        ),
        (datetime.date(2024, 5, 1), "2024-05-01 (date)"),
        (
            datetime.datetime(2024, 5, 1, tzinfo=datetime.timezone.utc),
            "2024-05-01 00:00:00+00:00 (datetime)",
        ),
        ([1, "a"], "[1, 'a'] (list), length 2 of int/str"),
        (10**400, "int"),
    ],
)
def test_value_description(value: Any, displayed: str) -> None:
    assert value_summary.describe_value(value) == displayed


def test_shape_of_a_tensor_is_described() -> None:
    """PyTorch is not installed for the tests: these classes have the same names."""
    size_class = type("Size", (tuple,), {"__module__": "torch"})
    tensor_class = type("Tensor", (), {"__module__": "torch"})
    tensor = tensor_class()
    tensor.shape = size_class((3, 4))
    assert value_summary.describe_value(tensor) == "Tensor (3, 4)"
    assert value_summary.format_plain_value([tensor]) == "[Tensor (3, 4)]"
    assert value_summary.get_length(tensor) == 3
    # The methods of a user's subclass of tuple are not called.
    user_class = type("Size", (tuple,), {"__iter__": Loud.__iter__})
    tensor.shape = user_class((3, 4))
    assert value_summary.describe_value(tensor) == "Tensor"
    assert value_summary.get_length(tensor) is None


def test_empty_slot_has_the_default_value() -> None:
    class Point:
        __slots__ = ("x", "y")

    point = Point()
    point.x = 3
    assert (safe_inspect.peek(point, "x", 7), safe_inspect.peek(point, "y", 7)) == (
        3,
        7,
    )


def test_user_objects_are_never_called() -> None:
    safe_inspect.suppressed_errors.clear()  # parts of the helper that are imported without a shell
    assert (
        value_summary.format_plain_value(Loud()),
        value_summary.format_plain_value([Loud(), 2]),
        value_summary.describe_value(Loud()),
    ) == (None, "[…, 2]", "Loud")
    assert describe_values(
        TypeError("unsupported operand type(s) for +: 'int' and 'Loud'"),
        "sum(p)",
        p=[3, 4, Loud()],
    ).startswith("`p[2]` is of type Loud")
    assert describe_values(ValueError("negative"), "f(p)", p=Loud()) == ""
    with pytest.raises(CannotEval):
        Values({"x": Loud()})[ast.parse("x[0]", mode="eval").body]
    assert not safe_inspect.suppressed_errors


def test_time_zone_of_the_user_is_not_asked() -> None:
    class Zone(datetime.tzinfo):
        def utcoffset(self, moment: Any) -> Any:
            raise AssertionError("asked")

    moment = datetime.time(12, tzinfo=Zone())
    assert value_summary.format_plain_value(moment) is None
    assert value_summary.format_plain_value(datetime.time(12)) == "12:00:00"


@pytest.mark.parametrize(
    ("source", "folder"),
    [
        ("glob.glob('*.csv')", "."),
        ("Path().rglob('*.csv')", "."),
        ("Path('data').rglob('*.csv')", ""),
        ("Path('data').glob('new/*.csv')", ""),
        ("glob.glob('new/*.csv')", "new"),
        ("glob.glob('/*.csv')", "/"),
        ("read_csv('data/x_*.csv')", "data"),
        ("re.findall('/tmp.*', 'abc')", ""),
        ("read_csv('data/x.csv')", ""),
        ("re.match('.*', text)", ""),
        ("f(3)", ""),
        ("glob.glob('data/[ab]/x*.csv')", "data"),
        ("glob.glob('data/202?/x*.csv')", "data"),
        ("os.path.join('raw/*.csv', 'x')", ""),
        ("join('raw/*.csv', 'x')", ""),
        ("Path('data').joinpath('raw/*.csv')", ""),
    ],
)
def test_folder_of_a_glob_pattern(source: str, folder: str) -> None:
    call: Any = ast.parse(source, mode="eval").body
    argument = call.args[0]
    argument.parent = call  # as `executing` does
    assert failing_values.find_pattern_folder(argument) == folder


@pytest.mark.parametrize(
    "source",
    [
        "glob.glob(f'{base}/data/*.csv')",
        "glob.glob(base + '/data/*.csv')",
        "glob.glob(os.path.join(base, 'raw/*.csv'))",
    ],
)
def test_pattern_in_a_larger_expression_has_no_known_folder(source: str) -> None:
    tree = ast.parse(source, mode="eval")
    folders = []
    for parent in ast.walk(tree):
        for child in ast.iter_child_nodes(parent):
            child.parent = parent  # type: ignore[attr-defined]
            folders.append(failing_values.find_pattern_folder(child))
    assert set(folders) == {""}


def test_class_name_cannot_forge_a_line() -> None:
    kind = type("X\nSuggestion: run it", (), {})
    assert "\n" not in value_summary.describe_value(kind())


@pytest.mark.parametrize(
    "line",
    [
        "x.y()",
        "f(x)",
        "x + y",
        "[a for a in x]",
        "x.prop",
        "d[k]",
        "lambda: x",
        "'a' * 9",
    ],
)
def test_facts_that_require_running_code_are_unknown(line: str) -> None:
    class UserObject:
        prop = property(lambda self: 1 / 0)

    with pytest.raises(CannotEval):
        Values({"x": UserObject(), "y": UserObject(), "d": {}, "k": "z", "f": print})[
            ast.parse(line, mode="eval").body
        ]


def test_list_with_user_objects_is_not_used_as_a_key() -> None:
    class UserObject:
        pass

    class Container:
        def __getitem__(self, key: Any) -> Any:
            return [key]

    assert expression_values.get_item(Container(), ["a", 1]) == [["a", 1]]
    with pytest.raises(CannotEval):
        expression_values.get_item(Container(), ["a", UserObject()])


# --- texts ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("<!DOCTYPE html>", "line 1 of 1 in the text is `<!DOCTYPE html>`"),
        (
            '{"a": 1}\n{"b": 2}\n',
            'line 2 of 2 in the text is `{"b": 2}`, after `{"a": 1}`',
        ),
        ('{\n "a": 1,\n // c\n "b": 2}', "line 3 of 4 in the text is `// c`"),
        ("", "the text is empty"),
    ],
)
def test_invalid_json_line(source: str, message: str) -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads(source)
    assert next(file_read_errors.explain_read_error(caught.value, [])).startswith(
        message
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("Zürich".encode("cp1252"), "look like cp1252 ('Zürich')"),
        ("Zürich".encode("utf-16"), "look like utf-16"),
        ("日本語です、これは".encode("shift_jis"), "look like shift_jis"),
        (b"caf\xe9", "the bytes may be cp1252 ('café') or cp1251 ('caf\u0439')"),
        (b"\xe9", "the bytes may be cp1252 ('é') or cp1251 ('\u0439')"),
        ("привет, мир".encode("cp1251"), "look like cp1251 ("),
        (b"\x1f\x8b\x08\x00", "compressed with gzip"),
    ],
)
def test_detected_byte_encoding(data: bytes, message: str) -> None:
    with pytest.raises(UnicodeDecodeError) as caught:
        data.decode("utf-8")
    assert message in "; ".join(file_read_errors.explain_read_error(caught.value, []))


def test_file_line_of_an_undecodable_byte(tmp_path: Any) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"a\nb\nJ\xf6n\n")
    with pytest.raises(UnicodeDecodeError) as caught:
        path.read_bytes().decode("utf-8")
    assert f"line 3 of `{path}`" in next(
        file_read_errors.explain_read_error(
            caught.value, [make_failing_spot(f"read({str(path)!r})")]
        )
    )


def test_line_of_a_byte_that_a_file_contains_twice(tmp_path: Any) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("é\nb\n".encode() + b"c\xa9\n")
    find_line = file_read_errors.find_byte_line
    assert find_line(str(path), b"\xa9", 0) is None
    assert find_line(str(path), b"c\xa9", 1) == 3


def test_only_existing_lines_are_quoted(tmp_path: Any) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n")
    quotes = [list(file_read_errors.quote_line(str(path), n)) for n in (0, 2, 9)]
    assert quotes == [[], [f"line 2 of `{path}` is `1,2`"], []]


def test_file_without_a_size_is_not_called_empty(tmp_path: Any) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    message = file_read_errors.describe_file(str(empty), b"")
    assert message == f"`{empty}` is empty (0 bytes)"
    head = file_read_errors.read_start("/proc/self/status")
    message = file_read_errors.describe_file("/proc/self/status", head)
    assert message.startswith("`/proc/self/status`: it begins with b'Name:")
    assert file_read_errors.read_start(str(tmp_path)) is None


def test_surrogates_are_shown_as_escapes() -> None:
    with pytest.raises(UnicodeEncodeError) as caught:
        "J\udcf6n".encode()
    assert next(file_read_errors.explain_read_error(caught.value, [])) == (
        r"utf-8 cannot encode the character '\udcf6' in 'J\udcf6n', which is a surrogate,"
        " to which errors='surrogateescape' decodes byte 0xf6"
    )


def test_text_cut_within_a_character_keeps_its_encoding() -> None:
    size = file_read_errors.MAX_GUESS_SIZE
    data = (b"a" + "é".encode() * size)[:size]
    assert file_read_errors.guess_encodings(data) == ["utf-8"]


# --- in real kernels ------------------------------------------------------------------


@pytest.fixture(
    scope="module",
    params=["this Python", pytest.param("Python 3.9", marks=pytest.mark.nightly)],
)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    python = old_python() if request.param == "Python 3.9" else sys.executable
    if not python:
        pytest.skip("there is no Python 3.9 on this machine")
    key = (
        ("ipykernel==6.29.5", "ipython==8.18.1", "pandas>=2.2,<3")
        if python != sys.executable
        else ("ipykernel>=7", "pandas>=2.2,<4")
    )
    lab = Lab(environment(python, *key))
    yield lab
    lab.close()


def findings(lab: Lab, code: str) -> str:
    """Return the helper's data about a failing cell."""
    result = run_failing(lab, code)
    assert (
        "swallowed" not in result.diagnosis_data
        and result.diagnosis_data["seconds"] < 10  # usually some milliseconds
    )
    return "; ".join(
        finding["text"] for finding in result.diagnosis_data["look"]["findings"]
    )


FRAME = "import pandas as pd\ndf = pd.DataFrame({'price': ['1,2', '3'], 'qty': [1, None]})\n"


@pytest.mark.nightly_after(8)
@pytest.mark.parametrize(
    ("code", "message"),
    [
        (FRAME + "df.price.foo", "closest|Series \\(2,\\)"),  # a column as an attribute
        (
            FRAME + "df['prise']",
            r"`df` \(DataFrame\) has 2 columns; most similar: 'price'",
        ),
        (
            FRAME + "df[df['price'] == '9'].iloc[0]",
            r"`df\['price'\]`: Series \(2,\), \w+, '1,2', '3'",
        ),
        (FRAME + "df.loc['zz']", "3? ?(row )?labels?: 0, 1"),
        (
            FRAME + "df.loc[0, 'prise']",
            r"`df` \(DataFrame\) has 2 columns; most similar: 'price'",
        ),
        (FRAME + "df.drop('zz')", r"`df` \(DataFrame\) has 2 row labels: 0, 1"),
        (FRAME + "df.drop('price')", r"`df` \(DataFrame\) has 2 row labels: 0, 1"),
        (
            FRAME + "df.drop(columns='prise')",
            r"`df` \(DataFrame\) has 2 columns; most similar: 'price'",
        ),
        (
            FRAME + "df.rename(columns={'a': 'b', 'c': 'd'}, errors='raise')",
            "DataFrame.* has 2 columns: 'price', 'qty'",
        ),
        (FRAME + "df.prices", "closest attributes: price"),
        (
            "class Outer:\n    class Inner:\n        n = 1\nOuter.n",
            r"`Outer\.Inner` has `n`",
        ),
        (
            FRAME + "means = df.groupby('qty').sum()\nmeans['qty']",
            r"has 1 column: 'price'; 'qty' is the name of the index",
        ),
        (
            "found = {'count': 1, 'rows': [{'a': 1}]}\nfor row in found:\n    row.get('a')",
            r"`row` comes from `found`: .*rows",
        ),
        (
            FRAME + "df.price + df.qty",
            "`df.price`: Series .*; `df.qty`: Series .*1 NaN",
        ),
        (
            "def f(n_epochs=1): pass\nf(epochs=2)",
            r"f\(n_epochs=1\); closest to `epochs`: n_epochs",
        ),
        ("rows = [1, 2, 3]\nrows[7]", r"length 3 of int"),
        (
            "import glob\nfound = glob.glob('*.nowhere')\nfound[0]",
            r"`found`: \[\].*with \. is a folder that contains ",
        ),
        ("a = b = None\na.split()", "`a`: None"),
        ("import datetime\ndatetime.now()", r"`datetime\.datetime` has `now`"),
        ("import math\nmath.squareroot(2)", "math"),
        (
            "from collections import OrderDict",
            "`collections` has no `OrderDict`; closest names: OrderedDict",
        ),
        (
            "def f():\n    x = y\n    y = 1\ny = 2\nf()",
            r"`y` is local to `f`, which assigns it \(a global with this name exists\)",
        ),
        (
            "def f():\n    def g():\n        global y\n        y = 1\n    y += 1\nf()",
            r"`y` is local to `f`, which assigns it",
        ),
        (
            "def f():\n    def g():\n        nonlocal y\n        y += 1\n    g()\n    y = 1\nf()",
            r"`y` is local to `f`, which assigns it",
        ),
        (
            "class A:\n    n = 2\n    m = [n for _ in range(2)]",
            "attribute of the class A, .* `A.n`",
        ),
    ],
)
def test_fact_behind_an_error(lab: Lab, code: str, message: str) -> None:
    assert re.search(message, findings(lab, code))


def test_regular_expression_is_not_taken_for_a_glob_pattern(lab: Lab) -> None:
    code = "import re\ntext = 'abc'\nmatch = re.match('.*z', text)\nmatch.group()"
    text = findings(lab, code)
    assert "`text`: 'abc'" in text and "is a folder" not in text


@pytest.mark.parametrize(
    "code",
    [
        "pick = lambda size: size\npick.y",
        "few = [size for size in [] if size]\nfew[0]",
        "sorted([], key=lambda size: size)[1]",
    ],
)
def test_local_name_of_a_lambda_is_not_the_global_name(lab: Lab, code: str) -> None:
    lab.ok("size = 'the global value'")
    assert "the global value" not in findings(lab, code)


def test_value_in_a_lambda_or_comprehension_is_found(lab: Lab) -> None:
    lab.ok("size = 'the global value'")
    for code in (
        "[1 / size for size in [2, 0]]",
        "list(map(lambda size: 1/size, [0]))",
    ):
        assert re.search("`size`: 0", findings(lab, code)), code


def test_loop_variable_is_not_described_before_it_is_assigned(lab: Lab) -> None:
    lab.ok("step = 3\nlimit = 4")
    text = findings(lab, "for step in limit:\n    pass")
    assert "`limit`: 4" in text and "step" not in text


def test_columns_are_not_compared_with_their_items(lab: Lab) -> None:
    lab.ok("import pandas as pd")
    code = "df = pd.DataFrame({'a': [1], 'b': ['x'], 'c': ['y']})\ndf['a'] + df['b']"
    assert "items are Series" not in findings(lab, code)


def test_global_name_is_not_called_local(lab: Lab) -> None:
    code = "def f():\n    global count_of_runs\n    count_of_runs += 1\nf()"
    assert "is local to" not in findings(lab, code)


def test_in_place_change_is_reported_at_its_last_line(lab: Lab) -> None:
    lab.ok("class Box: pass\nbox = Box()")
    source = "if 1:\n    if 1:\n        box.a = 1\n    box.b = 2\n1 / 0"
    result = run_failing(lab, source)
    assert result.diagnosis_data["changed"]["in_place"] == [["box", 4]]


def test_in_place_change_is_reported_with_its_binding(lab: Lab) -> None:
    lab.ok("import pandas as pd\ndf = pd.DataFrame({'a': [1], 'b': [2]})")
    lab.ok("df.drop(columns='b', inplace=True)")
    result = run_failing(lab, "df.bb")
    (bound,) = [
        finding["bound"]
        for finding in result.diagnosis_data["look"]["findings"]
        if finding["bound"]
    ]
    assert bound["text"].startswith("df = ") and bound["changed_line"] == 1
    assert (
        bound["changed_text"] == "df.drop(columns='b', inplace=True)"
        and bound["changed_cell"] == bound["cell"] + 1
    )


def find_bound_line(lab: Lab, code: str, name: str) -> tuple[str, str]:
    """Return the assignment and the change in place that are reported for a name."""
    result = run_failing(lab, code)
    for finding in result.diagnosis_data["look"]["findings"]:
        bound = finding["bound"]
        if bound and bound["name"] == name:
            return bound["text"], bound.get("changed_text", "")
    return "", ""


@pytest.mark.parametrize(
    ("code", "assignment"),
    [
        # The variable of an enclosing function hides the global variable.
        (
            "def f():\n    v = None\n    return [*map(lambda y: v + y, [1])]\nf()",
            "v = None",
        ),
        (
            "def f():\n    v = None\n    def g(y): return v + y\n    return g(1)\nf()",
            "v = None",
        ),
        # The argument of the enclosing function: its caller is unknown.
        ("def f(v):\n    return sum(v + y for y in [1])\nf(None)", ""),
        # Lines below the call have not run.
        ("def f():\n    return v.a\nv = 3\nf()\nv = 4\nv.append(1)", "v = 3"),
        # The first iterable of a comprehension is evaluated outside.
        ("[v for v in v.items]", "v = 'the global value'"),
        # An earlier iteration may have assigned the variable.
        ("for n in range(2):\n    v.upper()\n    v = 1", ""),
        ("def f(v):\n    while True:\n        v.upper()\n        v = 1\nf('a')", ""),
        ("def f():\n    v.upper()\nfor n in range(2):\n    f()\n    v = 1", ""),
        ("for n in v.items:\n    v = 1", "v = 'the global value'"),
        # A failed assignment has assigned nothing.
        ("v = (\n    v.a\n)", "v = 'the global value'"),
    ],
)
def test_last_assignment_is_of_the_same_variable(
    lab: Lab, code: str, assignment: str
) -> None:
    lab.ok("v = 'the global value'")
    assert find_bound_line(lab, code, "v") == (assignment, "")


def test_last_assignment_is_in_the_cell_that_ran_last(lab: Lab) -> None:
    lab.ok("v = 1\ndef f():\n    return v.a")
    assert find_bound_line(lab, "v = 2\nf()\nv = 3", "v") == ("v = 2", "")
    lab.ok("v = 4")
    assert find_bound_line(lab, "f()", "v") == ("v = 4", "")


def test_attribute_that_two_methods_assign_has_no_last_assignment(lab: Lab) -> None:
    lab.ok(
        "class Model:\n    def __init__(self): self.w = None\n"
        "    def load(self): self.w = 1\n    def fit(self): self.w.shape"
    )
    code = "model = Model()\nmodel.fit()"
    assert find_bound_line(lab, code, "self.w") == ("", "")
    lab.ok("box = Model()\nbox.v = 1\nbox.v = 2")
    assert find_bound_line(lab, "box.v + 'a'", "box.v") == ("box.v = 2", "")


def test_global_of_a_module_is_not_assigned_by_a_cell(lab: Lab) -> None:
    module = "def f():\n    return v.a\n"
    (lab.folder / "with_global.py").write_text(module)
    lab.ok("import with_global\nv = with_global.v = 1")
    assert find_bound_line(lab, "with_global.f()", "v") == ("", "")


def test_failed_statement_has_not_changed_a_value(lab: Lab) -> None:
    lab.ok("class Box: pass\nbox = Box()\nbox.items = []")
    result = run_failing(lab, "box.items.append(\n    1 / 0\n)")
    assert result.diagnosis_data["changed"]["in_place"] == []
    result = run_failing(lab, "del box.items\n1 / 0")
    assert result.diagnosis_data["changed"]["in_place"] == [["box", 1]]


def test_name_is_accessible_in_the_class_body_that_assigns_it(lab: Lab) -> None:
    code = "class A:\n    first_value = n_of_class\n    n_of_class = 1"
    assert "attribute of the class" not in findings(lab, code)


def test_number_of_many_keys_is_a_lower_bound(lab: Lab) -> None:
    lab.ok("many = {n: n for n in range(6000)}\nfew = {'b': 1}")
    text = findings(lab, "many['x']")
    assert "`many` (dict) has at least 5,000 keys: 0, 1" in text
    assert " more" not in text
    assert findings(lab, "few[str(many[5999])]").startswith("`few` (dict) has 1 key")


def test_key_with_apostrophes_is_compared_as_a_whole(lab: Lab) -> None:
    lab.ok("""sizes = {"size of men's und women's shoes": 1}""")
    text = findings(lab, """sizes["size of men's and women's shoes"]""")
    assert "most similar: \"size of men's und women's shoes\"" in text


def test_quoted_key_that_exists_is_not_of_another_type(lab: Lab) -> None:
    lab.ok("sizes = {'a': 1}")
    code = "def need(d): raise KeyError(\"no 'bbb' next to 'a'\")\nneed(sizes)"
    text = findings(lab, code)
    assert "`sizes` (dict) has 1 key: 'a'" in text


def test_dtype_of_an_index_is_not_that_of_the_values(lab: Lab) -> None:
    lab.ok("import pandas as pd\nsizes = pd.Series([1.5, 2.5])")
    text = findings(lab, "sizes['a']")
    assert "`sizes` (Series with an index of dtype int64) has 2 row labels" in text


def test_similar_attribute_of_a_large_module_is_found(lab: Lab) -> None:
    lab.ok(
        "import types\nlarge = types.ModuleType('large')\n"
        "vars(large).update({f'a{n}': n for n in range(1000)}, zeros_like=1)"
    )
    assert "closest attributes: zeros_like" in findings(lab, "large.zeros_lik")


def test_stream_in_memory_has_no_name(lab: Lab) -> None:
    lab.ok("import io\nstream = io.TextIOWrapper(io.BytesIO())\nn = 1")
    assert "`stream`: TextIOWrapper" in findings(lab, "stream + n")


def test_numpy_object_without_dtype_is_described(lab: Lab) -> None:
    lab.ok("import numpy as np\nrandom = np.random.default_rng()")
    assert "Generator(PCG64)" in findings(lab, "random + None")


def test_missing_values_of_pandas_number_types_are_counted(lab: Lab) -> None:
    lab.ok("import pandas as pd\nprices = pd.Series([1.5, None], dtype='Float64')")
    assert "1.5, 1 NaN or infinite" in findings(lab, "int(prices)")


def test_annotated_assignment_is_reported_with_its_values(lab: Lab) -> None:
    lab.ok("words = []")
    assert "words" in findings(lab, "first: list = words[:0]\nfirst[0]")


def test_in_place_change_before_a_deep_error_is_reported(lab: Lab) -> None:
    lab.ok("class Box: pass\nbox = Box()")
    lab.ok("def down(n):\n    return 1 / 0 if n == 0 else down(n - 1)")
    result = run_failing(lab, "box.size = 1\ndown(9)")
    assert result.diagnosis_data["changed"]["in_place"] == [["box", 1]]


def test_program_that_is_not_executable_is_not_called_missing(lab: Lab) -> None:
    code = "import subprocess\nopen('tool', 'w').close()\nsubprocess.run(['./tool'])"
    look = run_failing(lab, code).diagnosis_data["look"]
    assert "program" not in look and "not found" not in str(look)
    look = run_failing(lab, "subprocess.run(['./no-tool'])").diagnosis_data["look"]
    assert look["program"] and "'./no-tool' was not found" in str(look)


def lost_columns(result: Any) -> list[Any]:
    return [
        finding["lost"]
        for finding in result.diagnosis_data["look"]["findings"]
        if finding.get("lost")
    ]


@pytest.mark.parametrize(
    "fails",
    [
        "df['Amount'] * 2",
        "df.groupby('Amount')",
        "df[['Amount', 'scaled_Amount']]",
        "df.Amount",
    ],
)
def test_column_dropped_by_earlier_run_is_reported(lab: Lab, fails: str) -> None:
    lab.ok("import pandas as pd\ndf = pd.DataFrame({'Amount': [1], 'b': [2]})")
    assert not lost_columns(run_failing(lab, "df['Amounts']"))
    cell = "df['scaled_Amount'] = df['Amount'] * 2\ndf.drop(columns='Amount', inplace=True)"
    lab.ok(cell)
    run_failing(lab, "1 / 0")
    (lost,) = lost_columns(run_failing(lab, fails))
    assert (lost["name"], lost["label"], lost["now"]) == ("df", "'Amount'", False)
    assert lost["cell"] > 0
    lab.ok("df['Amount'] = 3")
    assert not lost_columns(run_failing(lab, "df['Amounts']"))


def test_column_dropped_by_failing_run_is_reported(lab: Lab) -> None:
    lab.ok("import pandas as pd\ndf = pd.DataFrame({'Amount': [1], 'b': [2]})")
    (lost,) = lost_columns(
        run_failing(lab, "df = df.rename(columns={'Amount': 'amount'})\ndf['Amount']")
    )
    assert (lost["name"], lost["label"], lost["now"]) == ("df", "'Amount'", True)
    # the previous run, which failed, changed the frame
    (lost,) = lost_columns(run_failing(lab, "df['Amount']"))
    assert not lost["now"]


def test_redefined_class_is_reported(lab: Lab) -> None:
    lab.ok("import pandas as pd\ndf = pd.DataFrame({'a': [1, 2]})")
    result = run_failing(lab, "df = df.to_numpy()\n1 / 0")
    assert result.diagnosis_data["changed"]["rebound"] == [
        ["df", "DataFrame 2 × 1", "ndarray 2 × 1"]
    ]


def test_documented_signature_of_a_method_has_no_self() -> None:
    class Axes:
        def scatter(self, x: Any, s: Any = None) -> None: ...

    documented = inspect.Signature(
        [
            inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            inspect.Parameter("x", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            inspect.Parameter("data", inspect.Parameter.KEYWORD_ONLY, default=None),
        ]
    )
    # matplotlib sets this attribute.
    Axes.scatter.__signature__ = documented  # type: ignore[attr-defined]
    Axes.scatter.__module__ = "matplotlib.axes"
    signature = signatures.describe_callable(Axes().scatter)
    assert signature == ("(x, *, data=None)", ["x", "data"])


def test_signature_keeps_parameters_that_the_caller_passes() -> None:
    class Model:
        def wrapper(*args: Any, **options: Any) -> None: ...
        def update(self, /, *names: str) -> None: ...
        def empty() -> None: ...  # type: ignore[misc]

    model = Model()
    wrapper = signatures.describe_callable(model.wrapper)
    assert wrapper == ("(*args: Any, **options: Any)", ["args", "options"])
    update = signatures.describe_callable(model.update)
    assert update == ("(*names: str)", ["names"])
    assert signatures.describe_callable(model.empty) == ("()", [])


def test_named_c_method_is_not_an_inspection_error(lab: Lab) -> None:
    result = lab.run("f = [].append\ng = len")
    assert "swallowed" not in result.diagnosis_data


def test_inspection_runs_no_user_code(lab: Lab) -> None:
    lab.ok(
        "class Trap:\n    def __getattr__(self, name): print('RUN'); raise AttributeError(name)\n"
        "    __getitem__ = __len__ = __repr__ = __eq__ = __iter__ = __getattr__\n"
        "    price = property(lambda self: print('RUN'))\n"
        "    def fails(self, given): raise ValueError('length')\ntrap, held = Trap(), {'a': [Trap(), 1]}"
    )
    result = run_failing(lab, "trap.fails(held['a'][0])")
    assert "RUN" not in text(result) and "look" in result.diagnosis_data


def test_labels_of_columns_run_no_user_code(lab: Lab) -> None:
    lab.ok(
        "import pandas as pd\nclass Name:\n    def __str__(self): print('RUN'); return 'x'\n"
        "    __repr__ = __str__\n    def __hash__(self): print('RUN'); return 1\n"
        "    def __eq__(self, other): print('RUN'); return False\n"
        "def check(x): raise ValueError('negative')"
    )
    code = "named = pd.DataFrame([[1, -2]], columns=[Name(), Name()])\ncheck(named)"
    result = run_failing(lab, code)
    look = str(result.diagnosis_data["look"])
    assert "`named[__main__.Name] at 0` is -2 (int)" in look
    assert "columns __main__.Name" in look
    assert "RUN" not in text(result)


@pytest.mark.parametrize("code", ["1 / 0 + named.a", "int(array.a)"])
def test_labels_and_items_run_no_user_code(lab: Lab, code: str) -> None:
    lab.ok(
        "import numpy as np, pandas as pd\nclass Name:\n"
        "    def __repr__(self): print('RUN'); return 'x'\n"
        "    __eq__ = lambda self, other: print('RUN')\n"
        "    __hash__ = lambda self: hash('a')\n"
        "named = pd.DataFrame([[1, -2]], columns=[Name(), 'b'])\n"
        "array = np.array(Name(), dtype=object)"
    )
    result = run_failing(lab, code)
    assert "RUN" not in text(result) and "look" in result.diagnosis_data


def test_column_called_dtype_is_a_column(lab: Lab) -> None:
    lab.ok("import pandas as pd\nodd = pd.DataFrame({'dtype': [1, 2], 'b': [3, 4]})")
    assert "DataFrame 2 × 2, columns dtype, b" in findings(lab, "float(odd)")


def test_suppressed_inspection_errors_are_counted(lab: Lab) -> None:
    result = run_failing(
        lab,
        "class Bad(Exception):\n    def __str__(self): raise SystemExit\nraise Bad('x')",
    )
    assert (
        result.diagnosis_data["swallowed"]["count"] >= 1
        and "SystemExit in " in result.diagnosis_data["swallowed"]["first"]
    )
    assert "swallowed" not in lab.ok("x = 1").diagnosis_data


def test_assignment_in_a_class_is_not_the_last_assignment() -> None:
    source = "path = 'b'\nclass Config:\n    path = 'a'\n    def f(self): self.path = 1"
    tree = ast.parse(source)
    assert find_last_binding(tree, "path", 99).lineno == 1
    assert find_last_binding(tree, "Config", 99).lineno == 2
    assert find_last_binding(tree.body[1], "path", 99).lineno == 3
    assert find_last_binding(tree, "self.path", 99).lineno == 4
