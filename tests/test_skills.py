"""Skills are short, and every command and flag named in them or in the docs exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from stepper.cli.main import main
from stepper.policy.commands.cli_commands import COMMANDS
from tests.conftest import ROOT

SKILLS = sorted((ROOT / "skills").iterdir())
TEXTS = [
    *sorted((ROOT / "skills").rglob("*.md")),
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
LIFTING = {
    skill.name
    for skill in SKILLS
    if skill.name in COMMANDS and COMMANDS[skill.name].needs_user
}


def read_front_matter(skill: Path) -> dict:
    return yaml.safe_load((skill / "SKILL.md").read_text().split("---")[1])


@pytest.mark.parametrize("skill", SKILLS, ids=lambda path: path.name)
def test_skill_is_short_and_has_a_description(skill: Path) -> None:
    head = read_front_matter(skill)
    assert head["name"] == skill.name
    assert 20 < len(head["description"]) < 300
    assert len((skill / "SKILL.md").read_text().splitlines()) < 100
    assert head.get("disable-model-invocation", False) == (skill.name in LIFTING)
    # that one is the agent's
    assert head.get("user-invocable", True) == (skill.name != "stepping-notebooks")
    assert ("argument-hint" in head) == (
        skill.name in LIFTING | {"new-notebook", "notebook-status"}
    )


def test_five_command_skills_exist() -> None:
    assert {"continue", "fix", "skip"} == LIFTING
    assert {path.name for path in SKILLS} == LIFTING | {
        "new-notebook",
        "notebook-status",
        "stepping-notebooks",
    }


def list_named_commands() -> list[tuple[str, str]]:
    """Return each `stepper …` in code spans, fences and injected commands of a text."""
    results = []
    for path in TEXTS:
        text = path.read_text()
        spans = re.findall(r"`(?:!)?(stepper [^`\n]+)`", text) + re.findall(
            r"(?m)^(?:\$ )?(stepper [^`\n|]+)$", text
        )
        results += [(path.name, span) for span in spans]
    return results


def test_texts_name_enough_commands() -> None:
    assert len(list_named_commands()) > 20


@pytest.mark.parametrize(("where", "command"), sorted(set(list_named_commands())))
def test_commands_and_flags_named_in_texts_exist(where: str, command: str) -> None:
    arguments = shlex.split(
        command.split("<<")[0].split("#")[0].replace("…", ""), posix=True
    )[1:]
    group: click.Command = main
    while (
        isinstance(group, click.Group) and arguments and arguments[0] in group.commands
    ):
        group = group.commands[arguments.pop(0)]
    assert group is not main or arguments[0].startswith("-"), command
    if isinstance(group, click.Group) and "show" in group.commands:
        group = group.commands["show"]
    flags = {
        flag
        for parameter in group.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    } | {
        "--help",
        "--version",
    }
    for argument in arguments:
        if argument.startswith("--"):
            assert argument.split("=")[0].strip("[]") in flags, f"{command}: {argument}"
