"""Changes of Claude Code's settings file as tables of (before, after), and their reversal."""

import json

import pytest

from stepper.install import claude_settings, skill_states

OTHER = {"type": "command", "command": "echo hi"}
STEPPER_HOOKS = {
    "type": "command",
    "command": "${CLAUDE_PROJECT_DIR}/.claude/hooks/stepper",
    "args": ["Stop"],
}
USERS = {
    "model": "opus",
    "hooks": {
        "Stop": [{"hooks": [OTHER]}],
        "Notification": [{"matcher": "", "hooks": [OTHER]}],
    },
    "permissions": {"deny": ["Read(.env)"], "allow": ["Bash(ls *)"]},
    "unknown": {"ключ": [1, 2.50, None]},
}


def test_handlers_use_exec_form_and_match_notebooks():
    data = claude_settings.add_hooks({})
    specs = [
        spec
        for groups in data["hooks"].values()
        for item in groups
        for spec in item["hooks"]
    ]
    assert len(specs) == len(claude_settings.HANDLERS) == 18
    for spec in specs:
        assert spec["type"] == "command"
        assert spec["command"] == "${CLAUDE_PROJECT_DIR}/.claude/hooks/stepper"
    post = data["hooks"]["PostToolUse"]
    assert [item["matcher"] for item in post] == [
        *["NotebookEdit", "Write"] * 2,
        "Read",
    ]
    assert post[0]["hooks"][0] == {
        "type": "command",
        "command": "${CLAUDE_PROJECT_DIR}/.claude/hooks/stepper",
        "args": ["PostToolUse"],
        "if": "NotebookEdit(**/*.ipynb)",
        "timeout": 604800,
        "statusMessage": "Running cell…",
    }
    assert post[1]["hooks"][0]["if"] == "Write(**/*.ipynb)"
    gate = [
        (item["matcher"], item["hooks"][0]["if"])
        for item in data["hooks"]["PreToolUse"]
    ]
    assert gate[2:] == [
        ("Bash", "Bash(*stepper *)"),
        ("Read", "Read(**/*.ipynb)"),
    ]
    assert [item["hooks"][0]["args"] for item in data["hooks"]["SessionStart"]] == [
        ["SessionStart"],
        ["Watch"],
        ["Rearm"],
    ]
    wakers = [spec for spec in specs if spec.get("asyncRewake")]
    assert [spec["args"] for spec in wakers] == [
        ["Wake"],
        ["Wake"],
        ["Rearm"],
        ["Rearm"],
    ]
    assert all(spec["rewakeSummary"] and spec["timeout"] == 604800 for spec in wakers)
    for event in ("PostToolBatch", "FileChanged", "UserPromptSubmit", "Stop"):
        only = data["hooks"][event][0]
        assert "matcher" not in only
        assert "if" not in only["hooks"][0]


def test_existing_settings_stay_first_and_in_order():
    settings = claude_settings.add_hooks(USERS)
    assert list(settings) == list(USERS)
    assert list(settings["hooks"])[:2] == ["Stop", "Notification"]
    assert settings["hooks"]["Stop"][0] == {"hooks": [OTHER]}
    assert settings["permissions"] == USERS["permissions"]


def test_merging_twice_changes_nothing():
    merged = claude_settings.add_hooks(USERS)
    assert claude_settings.add_hooks(merged) is merged
    assert claude_settings.list_missing_handlers(merged) == []


def test_handlers_of_older_version_are_replaced():
    """They apply to one folder and keep working until install.sh runs again."""
    new = claude_settings.add_hooks(USERS)
    old = json.loads(json.dumps(new).replace("(**/*.ipynb)", "(notebooks/**/*.ipynb)"))
    edits = [
        f"{event} {tool}"
        for event in ("PreToolUse", "PostToolUse")
        for tool in ("NotebookEdit", "Write")
    ]
    edits.insert(2, "PreToolUse Read BeforeRead")
    assert claude_settings.list_missing_handlers(old) == [
        *edits,
        "PostToolUse NotebookEdit Wake",
        "PostToolUse Write Wake",
        "PostToolUse Read AfterRead",
        "PostToolUseFailure Read ReadFailed",
    ]
    assert claude_settings.add_hooks(old) == new


EMPTIES = [
    {},
    {"hooks": {}},
    {"hooks": {"Stop": []}},
    {"hooks": {"Stop": [{"hooks": []}]}},
    {"a": 1, "hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [OTHER]}]}},
    USERS,
]


@pytest.mark.parametrize("before", EMPTIES)
def test_removing_hooks_is_the_inverse_of_adding_them(before):
    assert (
        claude_settings.remove_ours(claude_settings.add_hooks(before), [], before)
        == before
    )


def test_emptied_keys_are_removed_without_a_record():
    settings = claude_settings.add_hooks({"hooks": {"Stop": []}, "a": 1})
    assert claude_settings.remove_ours(settings, [], {}) == {"a": 1}


@pytest.mark.parametrize(
    ("hooks", "remaining"),
    [
        # the user added a handler to stepper's group, or copied stepper's into another
        (
            {"Stop": [{"hooks": [STEPPER_HOOKS, OTHER], "x": 1}]},
            {"Stop": [{"hooks": [OTHER], "x": 1}]},
        ),
        (
            {"Stop": [{"hooks": [OTHER]}, {"hooks": [STEPPER_HOOKS]}]},
            {"Stop": [{"hooks": [OTHER]}]},
        ),
        (
            {"Stop": [{"hooks": [{**STEPPER_HOOKS, "timeout": 1}]}], "End": []},
            {"End": []},
        ),
        (
            {
                "Stop": [
                    {
                        "hooks": [
                            {"command": '"$CLAUDE_PROJECT_DIR"/.claude/hooks/stepper'}
                        ]
                    }
                ]
            },
            None,
        ),
        ({"Stop": [{"hooks": [{"command": "/x/.claude/hooks/stepper2"}]}]}, "same"),
        ({"Stop": "what?", "End": [3, {"hooks": 4}]}, "same"),
        ("what?", "same"),
    ],
)
def test_later_edits_are_kept(hooks, remaining):
    data = {"b": 2, "hooks": hooks}
    expected = (
        data
        if remaining == "same"
        else {"b": 2, **({"hooks": remaining} if remaining else {})}
    )
    assert claude_settings.remove_ours(data, [], {}) == expected


@pytest.mark.parametrize(
    "before",
    [
        {},
        {"permissions": {}},
        {"permissions": {"allow": []}},
        {"permissions": {"allow": ["Bash(stepper *)"]}},
        USERS,
    ],
)
def test_permission_rules_are_added_and_removed(before):
    rules = claude_settings.list_permission_rules(["notebooks"])
    assert rules == ["Edit(notebooks/**)", "Bash(stepper *)"]
    after, new = claude_settings.add_rules(before, rules)
    assert set(rules) <= set(after["permissions"]["allow"])
    assert claude_settings.add_rules(after, rules) == (after, [])
    assert claude_settings.remove_ours(after, new, before) == before


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "the top level is not a JSON object"),
        ({"hooks": []}, "hooks is not an object"),
        ({"hooks": {"Stop": {}}}, "hooks.Stop is not a list"),
        ({"permissions": "all"}, "permissions is not an object"),
        ({"permissions": {"allow": "all"}}, "permissions.allow is not a list"),
        (USERS, ""),
        ({}, ""),
    ],
)
def test_unmergeable_settings_are_reported(data, message):
    assert claude_settings.find_shape_problem(data) == message


# --- text


def lines_added(old: str, new: str) -> list[str]:
    """Return the added lines; assert that old lines are unchanged except for commas."""
    remaining = iter(line.rstrip(",\r") for line in new.split("\n"))
    for line in old.split("\n"):
        assert any(line.rstrip(",\r") == other for other in remaining), line
    old_lines = {line.rstrip(",\r") for line in old.split("\n")}
    return [line for line in new.split("\n") if line.rstrip(",\r") not in old_lines]


TEXTS = [
    json.dumps(USERS, indent=2, ensure_ascii=False) + "\n",
    json.dumps(USERS, indent=4, ensure_ascii=False),
    json.dumps(USERS, indent="\t", ensure_ascii=False) + "\n\n",
    json.dumps(USERS, indent=2, ensure_ascii=False).replace("\n", "\r\n") + "\r\n",
    '{\n  "env": {"A": "é", "B": 1e5, "C": 0.10},\n  "allow": ["a", "b"],\n  "none": [ ]\n}\n',
]


@pytest.mark.parametrize("old", TEXTS)
def test_diff_shows_only_what_was_added(old):
    settings = claude_settings.add_hooks(claude_settings.parse(old))
    new = claude_settings.render(settings, old)
    assert claude_settings.parse(new) == settings
    assert all("hooks/stepper" not in line for line in old.split("\n"))
    assert lines_added(old, new)
    assert new[len(new.rstrip()) :] == old[len(old.rstrip()) :]
    assert ("\r\n" in old) == ("\r\n" in new)
    assert new.count("\n") == new.count("\r\n") or "\r" not in new
    # removal restores the old text
    before = claude_settings.parse(old)
    assert (
        claude_settings.render(claude_settings.remove_ours(settings, [], before), new)
        == old
    )


def test_single_line_json_is_formatted():
    new = claude_settings.render({"a": 1, "b": [True, {}]}, '{"a":1}')
    assert new == '{\n  "a": 1,\n  "b": [\n    true,\n    {}\n  ]\n}'


@pytest.mark.parametrize(
    "name", [f"{claude_settings.MARK}{number}" for number in (0, 7)]
)
def test_user_key_equal_to_a_marker_is_kept(name):
    old = json.dumps({name: {"a": 1}, "b": [1]}, indent=2) + "\n"
    assert json.loads(
        claude_settings.render({name: {"a": 1}, "b": [1], "c": 2}, old)
    ) == {
        name: {"a": 1},
        "b": [1],
        "c": 2,
    }


def test_change_of_type_or_order_is_a_change():
    assert json.loads(
        claude_settings.render({"a": True, "c": 2, "b": 1}, '{"a": 1, "b": 1, "c": 2}')
    ) == {
        "a": True,
        "c": 2,
        "b": 1,
    }
    assert claude_settings.render({"a": [2, 1]}, '{"a": [1, 2]}').split() == [
        "{",
        '"a":',
        "[",
        "2,",
        "1",
        "]",
        "}",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "{'a': 1}",
        '{"a": 1,}',
        '{"a": 1, "a": 2}',
        '{"x": {"a": 1, "a": 2}}',
        "// x\n{}",
    ],
)
def test_invalid_json_raises_value_error(text):
    with pytest.raises(ValueError):
        claude_settings.parse(text)


# --- .gitignore


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"", b".stepper/\n"),
        (b"a\n", b"a\n.stepper/\n"),
        (b"a", b"a\n.stepper/"),
        (b"a\r\nb\r\n", b"a\r\nb\r\n.stepper/\r\n"),
        (b"a\r\nb", b"a\r\nb\r\n.stepper/"),
        (b"caf\xe9\n\n", b"caf\xe9\n\n.stepper/\n"),
        (b"# .stepper/\n.stepper/env\n", b"# .stepper/\n.stepper/env\n.stepper/\n"),
    ],
)
def test_gitignore_line_is_added_and_removed(old, new):
    assert claude_settings.add_ignore_line(old) == new
    assert claude_settings.add_ignore_line(new) == new
    assert claude_settings.remove_ignore_line(new) == old


@pytest.mark.parametrize(
    "line", [b".stepper", b".stepper/", b"/.stepper", b"/.stepper/  "]
)
def test_existing_gitignore_pattern_suffices(line):
    assert (
        claude_settings.add_ignore_line(b"a\n" + line + b"\r\nb")
        == b"a\n" + line + b"\r\nb"
    )


def test_later_lines_of_gitignore_stay():
    assert claude_settings.remove_ignore_line(b"a\n.stepper/\nb\n") == b"a\nb\n"
    assert claude_settings.remove_ignore_line(b"a\nb\n") == b"a\nb\n"


# --- skills

SKILL = {"SKILL.md": "---\nname: x\n---\nWörter\n".encode(), "more/a.md": b"a"}


@pytest.mark.parametrize(
    ("change", "owner"),
    [
        ({}, "ours"),
        ({"more/a.md": b"b"}, "edited"),
        ({"more/b.md": b"new"}, "edited"),
        (
            {
                "SKILL.md": skill_states.add_mark(SKILL)["SKILL.md"].replace(
                    b"name", b"nome"
                )
            },
            "edited",
        ),
        (
            {
                "SKILL.md": skill_states.add_mark(SKILL)["SKILL.md"].replace(
                    b"\n", b"\r\n"
                )
            },
            "ours",
        ),
        (
            {"SKILL.md": skill_states.add_mark(SKILL)["SKILL.md"] + b"a line\n"},
            "edited",
        ),
        ({"SKILL.md": SKILL["SKILL.md"]}, "foreign"),
    ],
)
def test_skill_is_identified_by_its_mark(change, owner):
    assert (
        skill_states.classify_skill({**skill_states.add_mark(SKILL), **change}) == owner
    )


def test_adding_the_mark_twice_changes_nothing():
    marked = skill_states.add_mark(SKILL)
    assert skill_states.add_mark(marked) == marked
    assert skill_states.classify_skill({}) == "missing"
    plain = {**SKILL, "SKILL.md": SKILL["SKILL.md"] + b"\n<!-- notebook-stepper -->\n"}
    assert skill_states.add_mark(plain) == marked
