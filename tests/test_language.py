"""Texts and names of the package follow the language of the Jupyter and pytest docs.

The word list is that of benchmarks/readability.py. It excludes the worst patterns, but
a text without them is not necessarily good.
"""

from pathlib import Path

import pytest

from benchmarks import readability


def list_problems(path: Path) -> list[str]:
    """Return outdated idioms, vague names, long lines and dense code in a module."""
    density = readability.measure_density(path)
    problems = [
        *readability.find_idioms_in_module(path),
        *readability.find_vague_names(path),
        *readability.find_long_lines(path),
    ]
    messages = [str(problem) for problem in problems]
    if density.nodes_per_line > readability.MODULE_LIMIT:
        messages.append(f"{density.nodes_per_line:.2f} syntax-tree nodes per line")
    return messages


def test_no_module_has_outdated_idioms_vague_names_or_dense_lines() -> None:
    modules = readability.list_modules()
    problems = {str(path): list_problems(path) for path in modules}
    assert {path: found for path, found in problems.items() if found} == {}


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
    assert any(problem in item for item in list_problems(path))
