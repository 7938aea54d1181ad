"""Random generators and database connections: objects of libraries that cells change.

These objects have methods that change them, although the names of the methods do not
suggest it. A connection is analyzed like a variable. Its database counts as the file at
its path if the path is a literal in the source.
"""

from __future__ import annotations

import ast
import re

from stepper.policy.dataflow.name_effects import FunctionEffects
from stepper.policy.dataflow.outside_state import get_dotted_name, get_text, name_file

# The value of `NameUsage.created_by` for random generators.
GENERATOR = "random generator"
GENERATOR_CLASSES = re.compile(r"(^|\.)(default_rng|Generator|RandomState|Random)$")
# Arguments of functions that draw from a generator.
GENERATOR_ARGUMENTS = frozenset({"random_state", "rng", "generator", "seed"})
# Stands for all methods that draw: the method `random`.
DRAW = "random"
DRAW_METHODS = """
    normal integers choice choices shuffle permutation permuted uniform standard_normal
    rand randn randint randrange sample random_sample gauss exponential poisson binomial
    beta gamma lognormal bytes multivariate_normal multinomial dirichlet laplace spawn
"""
GENERATOR_EFFECTS = FunctionEffects(mutating_methods={DRAW, *DRAW_METHODS.split()})

CONNECT_FUNCTIONS = frozenset({"connect", "create_engine"})
CONNECT = re.compile(r"^(sqlite3|sqlite|duckdb)\.connect$|(^|\.)create_engine$")
DATABASE_URL = re.compile(r"^(?:sqlite(?:\+\w+)?|duckdb):///")
# Methods that return an object for the same database.
CONNECTION_METHODS = frozenset({"connect", "begin", "cursor"})
WRITE_METHODS = frozenset({"executemany", "executescript", "commit"})
SQL_METHODS = frozenset({"execute", "sql"})
SQL_WRITE = re.compile(
    r"\s*(insert|update|delete|replace|create|drop|alter|truncate)\b", re.IGNORECASE
)


def find_creator(node: ast.Call) -> str:
    """Return the value of `NameUsage.created_by` for a call that creates an object.

    The value is GENERATOR for a random generator, the state of the database for a
    connection (see `find_database`), or an empty string for other calls.
    """
    if GENERATOR_CLASSES.search(get_dotted_name(node.func)):
        return GENERATOR
    return find_database(node)


def find_database(node: ast.Call) -> str:
    """Return the state that stands for the database which a call opens.

    This is the file of the database (see `outside_state.name_file`). Return an empty
    string if the call opens no database, or if the path is not a literal.
    """
    function = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if function not in CONNECT_FUNCTIONS or not node.args:
        return ""
    if not CONNECT.search(get_dotted_name(node.func)):
        return ""
    path = DATABASE_URL.sub("", get_text(node.args[0]))
    if not path or path == ":memory:" or "://" in path:
        return ""
    return name_file(path)


def get_library_effects(creator: str) -> FunctionEffects | None:
    """Return the effects of an object of a library, or None if there are none.

    `creator` is a value of `NameUsage.created_by`.
    """
    if creator == GENERATOR:
        return GENERATOR_EFFECTS
    if creator.startswith("file "):
        return FunctionEffects(database=creator)
    return None


def find_connected_object(node: ast.expr) -> ast.expr | None:
    """Return the object whose method opens a connection or cursor, or None.

    `node` is the call, for example `engine.connect()`, whose object is `engine`.
    """
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    return node.func.value if node.func.attr in CONNECTION_METHODS else None


def find_written_database(node: ast.Call) -> ast.expr | None:
    """Return the connection through which a call writes to a database, or None."""
    function = node.func
    if not isinstance(function, ast.Attribute):
        return None
    method = function.attr
    if method in WRITE_METHODS:
        return function.value
    if method == "to_sql":
        for keyword in node.keywords:
            if keyword.arg == "con":
                return keyword.value
        return node.args[1] if len(node.args) > 1 else None
    if method not in SQL_METHODS or not node.args:
        return None
    query = node.args[0]
    if isinstance(query, ast.Call) and query.args:  # `text("INSERT …")` of SQLAlchemy
        query = query.args[0]
    if SQL_WRITE.match(_get_start(query)):
        return function.value
    return None


def _get_start(node: ast.expr) -> str:
    """Return the literal text at the start of a string or f-string."""
    if isinstance(node, ast.JoinedStr) and node.values:
        return get_text(node.values[0])
    return get_text(node)
