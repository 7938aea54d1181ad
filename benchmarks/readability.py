"""Measure how easy the code and the texts of stepper are to read.

    python benchmarks/readability.py [--list]

Prints four figures, each with its target:

- Syntax-tree nodes per line of code, over `stepper/` and for each module above the limit.
  Every node that `ast.walk` yields counts, except docstrings. Blank lines, comments
  and docstrings are not lines of code. Nine other projects (h11, nbclient, pre-commit,
  uvicorn, httpx and others) have 5.7 to 6.7.
- Lines of `stepper/` with more than 88 characters.
- Uses of outdated idioms in the strings and docstrings of `stepper/`, the documentation
  for users and the skills.
- Variables of `stepper/` whose names do not say what they contain.

`--list` also prints each place.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "stepper"
LINE_LENGTH = 88
NODES_TARGET = 7.5
MODULE_LIMIT = 9.0
IDIOMS_TARGET = 120
NAMES_TARGET = 60
VAGUE_NAMES = ("told", "found", "said", "known", "made", "owed")
# A pattern → what to write instead. tests/test_language.py rejects the same patterns.
IDIOMS = {
    r"\bmend(s|ed|ing)?\b": "fix",
    r"(?<!there )\b(is|are|was|were) (?-i:none)\b": "is not a …, there is no …",
    r"\b(is|are) no [a-z]+ of\b": "is not a … of",
    r"\bwhere (it|there|that|they|he|she|none|no|neither)\b": "if",
    r"\bwhere (nobody|somebody|nothing|anybody)\b": "if",
    r"\ball the same\b": "anyway",
    r"\banew\b": "again",
    r"\btold\b": "reported, printed",
    r"\bof which\b": "a separate sentence",
    r"\bthat is to\b": "that …s, to …",
    r"\b(is|are) to (be|have|do|run|end)\b": "must, will",
    r"\bthe person('s)?\b": "the user",
    r"\bwhoever\b": "the caller, the user",
    r"\bwhat came of\b": "the result of",
    r"\bcame of it\b": "the result",
    r"\bbesides\b": "also, except",
    r"\b(lends?|lent)\b": "uses the main checkout's",
    r"\bheed(s|ed)?\b": "follow",
    r"\blift(s|ed|ing)?\b": "resume",
    r"\bnobody's\b": "a separate sentence",
    r"\bat all\b": "leave out",
    r"\bmay be had\b": "is available",
    r"\b(comes?|came) to an end\b": "finishes, exits",
    r"\bstands? (in|at|on|there|above|below|behind|between)\b": "is in",
    r"\bwhat (it|they|he|she) (was|were|is|are)\b": "a noun",
    r"\bon the person's side\b": "by the user",
}
IDIOM = re.compile("|".join(IDIOMS), re.IGNORECASE)
USER_DOCS = ("README.md", "SECURITY.md", "docs/*.md", "skills/**/*.md")
NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
HAS_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Density(NamedTuple):
    """The size of a module."""

    path: Path
    nodes: int
    lines: int

    @property
    def nodes_per_line(self) -> float:
        """The figure that is compared with the limit."""
        return self.nodes / self.lines if self.lines else 0.0


class Problem(NamedTuple):
    """A place with a word that should be replaced."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"  {self.path.relative_to(ROOT)}:{self.line}: {self.text}"


def list_modules() -> list[Path]:
    """Return the modules of the package."""
    return sorted(PACKAGE.rglob("*.py"))


@functools.lru_cache(maxsize=1)
def list_nodes(source: str) -> list[ast.AST]:
    """Return all syntax-tree nodes of a module."""
    return [*ast.walk(ast.parse(source))]


def find_docstrings(nodes: list[ast.AST]) -> list[ast.Expr]:
    """Return those nodes that are docstring statements."""
    docstrings = []
    for node in nodes:
        if isinstance(node, HAS_DOCSTRING) and ast.get_docstring(node) is not None:
            statement = node.body[0]
            assert isinstance(statement, ast.Expr)
            docstrings.append(statement)
    return docstrings


def measure_density(path: Path) -> Density:
    """Count the syntax-tree nodes and the lines of code of a module."""
    source = path.read_text(encoding="utf-8")
    nodes = list_nodes(source)
    docstrings = find_docstrings(nodes)
    code_lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NOT_CODE:
            code_lines.update(range(token.start[0], token.end[0] + 1))
    for docstring in docstrings:
        last_line = docstring.end_lineno or docstring.lineno
        code_lines.difference_update(range(docstring.lineno, last_line + 1))
    docstring_nodes = 2 * len(docstrings)  # the statement and its constant
    return Density(path, len(nodes) - docstring_nodes, len(code_lines))


def find_long_lines(path: Path) -> Iterator[Problem]:
    """Yield the lines of a module that are too long."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_LENGTH:
            yield Problem(path, number, line.strip()[:60])


def find_idioms_in_module(path: Path) -> Iterator[Problem]:
    """Yield the outdated idioms in the strings and docstrings of a module."""
    for node in list_nodes(path.read_text(encoding="utf-8")):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = " ".join(node.value.split())
            # A string without a space is a name, a key or a part of a format.
            if " " in text:
                for match in IDIOM.finditer(text):
                    yield Problem(path, node.lineno, match[0])


def find_idioms_in_page(path: Path) -> Iterator[Problem]:
    """Yield the outdated idioms in a page of documentation."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        for match in IDIOM.finditer(line):
            yield Problem(path, number, match[0])


def find_vague_names(path: Path) -> Iterator[Problem]:
    """Yield the variables, parameters and attributes of a module with vague names."""
    for node in list_nodes(path.read_text(encoding="utf-8")):
        name = ""
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr
        if name in VAGUE_NAMES:
            yield Problem(path, node.lineno, name)


def main() -> None:
    """Print the figures."""
    modules = list_modules()
    densities = [measure_density(path) for path in modules]
    node_count = sum(density.nodes for density in densities)
    line_count = sum(density.lines for density in densities)
    dense = [each for each in densities if each.nodes_per_line > MODULE_LIMIT]
    dense.sort(key=lambda density: -density.nodes_per_line)
    long_lines = [problem for path in modules for problem in find_long_lines(path)]
    names = [problem for path in modules for problem in find_vague_names(path)]
    idioms = [problem for path in modules for problem in find_idioms_in_module(path)]
    for pattern in USER_DOCS:
        for path in sorted(ROOT.glob(pattern)):
            idioms += find_idioms_in_page(path)
    average = node_count / line_count
    print(f"nodes per line of code: {average:.2f} (target {NODES_TARGET})")
    print(f"modules above {MODULE_LIMIT:g} nodes per line: {len(dense)} (target 0)")
    for density in dense:
        path = density.path.relative_to(ROOT)
        print(f"  {density.nodes_per_line:5.2f} {path}")
    print(f"lines over {LINE_LENGTH} characters: {len(long_lines)} (target 0)")
    print(f"outdated idioms: {len(idioms)} (target {IDIOMS_TARGET})")
    print(f"vague variable names: {len(names)} (target {NAMES_TARGET})")
    if "--list" in sys.argv[1:]:
        for problem in (*long_lines, *idioms, *names):
            print(problem)


if __name__ == "__main__":
    main()
