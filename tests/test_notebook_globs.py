"""Which notebooks a list of folders and globs covers."""

from __future__ import annotations

import pytest

from stepper.common.errors import UsageError
from stepper.daemon import config
from stepper.install import claude_settings
from stepper.policy.configuration import notebook_globs
from stepper.policy.model import Limits

NAMES = [
    "top.ipynb",
    "notebooks/a.ipynb",
    "notebooks/sub/b.ipynb",
    "analysis/c.ipynb",
    "analysis/2024/d.ipynb",
    "exp_1/e.ipynb",
    "exp_1/deep/f.ipynb",
]
HIDDEN = [
    ".venv/lib/g.ipynb",
    "node_modules/p/h.ipynb",
    "notebooks/.ipynb_checkpoints/a-checkpoint.ipynb",
    "exp_1/node_modules/i.ipynb",
    "analysis/.old/j.ipynb",
]


@pytest.mark.parametrize(
    ("patterns", "expected", "rules"),
    [
        (["notebooks"], "ab", ["Edit(notebooks/**)"]),
        (["./notebooks/"], "ab", ["Edit(notebooks/**)"]),
        (["."], "t", ["Edit(/*.ipynb)"]),
        (["*.ipynb"], "t", ["Edit(/*.ipynb)"]),
        (["**"], "tabcdef", ["Edit(/**/*.ipynb)"]),
        (["**/*.ipynb"], "tabcdef", ["Edit(/**/*.ipynb)"]),
        (["analysis/*.ipynb"], "c", ["Edit(/analysis/*.ipynb)"]),
        (
            ["analysis/*"],
            "cd",
            ["Edit(/analysis/*/**/*.ipynb)", "Edit(/analysis/*.ipynb)"],
        ),
        (["analysis/**"], "cd", ["Edit(/analysis/**/*.ipynb)"]),
        (["exp_?"], "ef", ["Edit(/exp_?/**/*.ipynb)"]),
        (
            ["analysis/c.ipynb", "exp_[0-9]/*.ipynb"],
            "ce",
            ["Edit(/analysis/c.ipynb)", "Edit(/exp_[0-9]/*.ipynb)"],
        ),
        (["*/*.ipynb"], "ace", ["Edit(/*/*.ipynb)"]),
        (
            ["notebook", "note*/sub"],
            "b",
            ["Edit(notebook/**)", "Edit(/note*/sub/**/*.ipynb)"],
        ),
    ],
)
def test_patterns_match_notebooks(
    patterns: list[str], expected: str, rules: list[str]
) -> None:
    results = [
        name.rpartition("/")[2][0]
        for name in NAMES
        if notebook_globs.includes(patterns, name)
    ]
    assert "".join(results) == expected
    assert not [
        name
        for name in [*HIDDEN, "../out.ipynb"]
        if notebook_globs.includes(patterns, name)
    ]
    # matching in the client: docs/development/claude-code.md
    assert claude_settings.list_permission_rules(patterns) == [
        *rules,
        "Bash(stepper *)",
    ]


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "/abs",
        "../up",
        "a/../..",
        ".claude",
        "a/.b",
        ".git/*.ipynb",
        "node_modules",
        "a)",
        "{a,b}",
        "!a",
        "a\\b",
        "a\nb",
        3,
    ],
)
def test_invalid_pattern_is_rejected_with_its_line(pattern: object) -> None:
    assert not notebook_globs.is_valid(pattern)
    with pytest.raises(
        UsageError, match=r"^x, line 2: `notebooks` must be a list of folders and globs"
    ):
        config.parse(f"# a\nnotebooks: [{config.json.dumps(pattern)}]", "x")


def test_notebooks_dir_applies_if_notebooks_is_missing() -> None:
    assert Limits().patterns == ("notebooks",)
    assert config.parse("notebooks_dir: nb", "x").patterns == ("nb",)
    assert config.parse(
        "notebooks_dir: nb\nnotebooks: [a, '*.ipynb']", "x"
    ).patterns == ("a", "*.ipynb")
    assert config.parse("notebooks: a", "x").patterns == ("a",)


@pytest.mark.parametrize(
    ("patterns", "home"),
    [
        (["analysis", "notebooks"], "analysis"),
        (
            ["*.ipynb", "notebooks"],
            "notebooks",
        ),  # a named folder comes before a glob
        ([".", "notebooks"], ""),
        (["*.ipynb"], ""),
        (["exp_*", "lab/**"], "lab"),
        (["a/b.ipynb"], None),
    ],
)
def test_folder_for_new_notebooks(patterns: list[str], home: str | None) -> None:
    assert notebook_globs.choose_new_notebook_folder(patterns) == home


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (["analysis/2024/d.ipynb"], '["notebooks", "analysis/2024"]'),
        (
            ["analysis/2024/d.ipynb", "analysis/c.ipynb", "t.ipynb"],
            '["notebooks", "analysis", "*.ipynb"]',
        ),
        ([f"p/{n}/x.ipynb" for n in range(9)], '["notebooks", "p"]'),
        ([f"p{n}/x.ipynb" for n in range(9)] + ["t.ipynb"], '["notebooks", "**"]'),
        (["old (1)/x.ipynb"], '["notebooks", "old ?1?"]'),
        ([], ""),
        (HIDDEN, ""),
    ],
)
def test_config_line_that_includes_uncovered_notebooks(
    names: list[str], line: str
) -> None:
    suggestion = notebook_globs.suggest_setting(["notebooks"], names)
    assert suggestion == (f"notebooks: {line}" if line else "")
    patterns = config.parse(suggestion, "x").patterns
    assert all(
        notebook_globs.includes(patterns, name) for name in names if name not in HIDDEN
    )


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ("", "NEW\n"),
        ("max_retries: 1", "max_retries: 1\nNEW\n"),
        ("notebooks: a  # mine\nmax_retries: 1\n", "NEW  # mine\nmax_retries: 1\n"),
        (
            "# c\nnotebooks:\n- a\n- 'b c'\n# d\nmax_retries: 1\n",
            "# c\nNEW\n# d\nmax_retries: 1\n",
        ),
        ("notebooks: [\n  a,\n  b\n]\npreflight: false\n", "NEW\npreflight: false\n"),
        ("notebooks_dir: nb\n", "notebooks_dir: nb\nNEW\n"),
    ],
)
def test_config_line_is_inserted_into_existing_config(text: str, new: str) -> None:
    line = 'notebooks: ["é", "*.ipynb"]'
    changed_config = config.replace_notebooks(text, ["é", "*.ipynb"], "x")
    assert changed_config == new.replace("NEW", line)
    assert config.parse(changed_config, "x").patterns == ("é", "*.ipynb")
