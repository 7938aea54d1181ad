"""Texts and names of the package follow the language of the Jupyter and pytest docs.

The word list is that of benchmarks/readability.py. It keeps the worst patterns out; it does not make a text good.
"""

from pathlib import Path

import pytest

from benchmarks import readability

# Rooms that are not rewritten yet. Remove a room from this list as soon as it passes; never add one.
UNFINISHED: set[str] = set()
ROOMS = {
    path.relative_to(readability.PACKAGE).parts[0]
    for path in readability.list_modules()
} - {"__init__.py"}
FINISHED = [
    path
    for path in readability.list_modules()
    if path.relative_to(readability.PACKAGE).parts[0] not in UNFINISHED
]
IDS = [str(path.relative_to(readability.PACKAGE)) for path in FINISHED]


def list_problems(path: Path) -> list[str]:
    """Return all that a rewritten module must not contain."""
    density = readability.measure_density(path)
    problems = [
        *readability.find_idioms_in_module(path),
        *readability.find_vague_names(path),
        *readability.find_long_lines(path),
    ]
    messages = [str(place) for place in problems]
    if density.nodes_per_line > readability.MODULE_LIMIT:
        messages.append(f"{density.nodes_per_line:.2f} syntax-tree nodes per line")
    return messages


@pytest.mark.parametrize("path", FINISHED, ids=IDS)
def test_module_has_no_outdated_idioms_vague_names_or_dense_lines(path: Path) -> None:
    assert list_problems(path) == []


def test_finished_packages_are_not_exempt() -> None:
    assert UNFINISHED <= ROOMS
    finished = {
        room
        for room in UNFINISHED
        if not any(map(list_problems, (readability.PACKAGE / room).rglob("*.py")))
    }
    assert finished == set(), "remove these rooms from UNFINISHED"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('x = "the command that mends it"', "mends"),
        ('"""Return the folder, None where there is none."""', "where there"),
        ('raise ValueError("standard output is none")', "is none"),
        ('f"{name} is to be had anew"', "anew"),
        ("told = 1", "told"),
        ("def f(said: str) -> None: ...", "said"),
        ("self.found = 1", "found"),
        (f"x = '{'y' * 90}'", "y" * 50),
        ("f(g(h(i(j(k(a.b.c, d.e.f)))), m[n], o.p)[0:1], q=r.s)", "nodes per line"),
    ],
)
def test_each_problem_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, problem: str
) -> None:
    monkeypatch.setattr(readability, "ROOT", tmp_path)
    path = tmp_path / "module.py"
    path.write_text("def clean(text: str) -> str:\n    return text\n")
    assert list_problems(path) == []
    path.write_text(line + "\n")
    assert any(problem in each for each in list_problems(path))
