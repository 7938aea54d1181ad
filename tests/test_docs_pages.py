"""README and docs: links work, every page is reachable, and commands exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest
import yaml

from stepper.cli.main import main
from stepper.daemon import config
from stepper.install.install_options import parse_arguments
from stepper.policy.model import Limits
from tests.conftest import ROOT

README = ROOT / "README.md"
PAGES = [README, ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"!?\[[^]\n]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"(?ms)^```.*?^```$")
CODE = re.compile(r"`[^`\n]+`")


def find_links(page: Path) -> list[str]:
    """Return the targets of a page's links, except links in code."""
    return LINK.findall(CODE.sub("", FENCE.sub("", page.read_text())))


def find_anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub generates for a page's headings."""
    titles = re.findall(r"(?m)^#+ (.+)$", FENCE.sub("", page.read_text()))
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_have_targets(page: Path) -> None:
    for link in find_links(page):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists() and target.is_relative_to(ROOT), link
        assert not anchor or anchor in find_anchors(target), link


def test_every_page_is_reachable_from_the_readme() -> None:
    reached, queue = set[Path](), [README]
    while queue:
        page = queue.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            queue += [
                (page.parent / link.partition("#")[0]).resolve()
                for link in find_links(page)
                if not link.startswith("https:")
            ]
    assert set(PAGES) <= reached


def test_readme_fits_one_screen() -> None:
    text = README.read_text()
    assert len(text.splitlines()) <= 50
    (image,) = re.findall(r'<img src="([^"]+)"', text)
    drawing = ElementTree.parse(ROOT / image)
    drawn_text = "".join(drawing.getroot().itertext()).replace("\xa0", " ")
    for line in (
        '✗ step 2 of 2 "Mean price in Oslo" · KeyError',
        '✓ step 2 of 2 "Mean price in Oslo" · ok',
    ):
        assert line in drawn_text
    assert "http" not in (ROOT / image).read_text().replace(
        "http://www.w3.org/2000/svg", ""
    ).replace("https://www.textualize.io", "")
    # Essential information is not behind a link.
    assert "Approving an edit is approving its execution" in text


def find_commands(pattern: str) -> list[tuple[str, str]]:
    """Return (page, line) of code lines and code spans that match `pattern`."""
    results = []
    for page in PAGES:
        text = page.read_text()
        fences = "\n".join(FENCE.findall(text))
        spans = [span.strip("`") for span in CODE.findall(FENCE.sub("", text))]
        lines = [line.removeprefix("$ ") for line in (*fences.splitlines(), *spans)]
        results += [(page.name, line) for line in lines if re.match(pattern, line)]
    return results


def test_make_targets_named_in_pages_exist() -> None:
    commands_in_pages = find_commands(r"make [a-z]")
    assert len(commands_in_pages) > 5
    targets = {
        word
        for page, line in commands_in_pages
        for word in line.split("#")[0].split()[1:]
        if "=" not in word
    }
    make = re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text())
    assert targets <= set(make)


def test_install_options_named_in_pages_exist() -> None:
    pattern = (
        r"(\./install\.sh|install\.sh|(uvx |pipx run )?notebook-stepper install)\b"
    )
    commands_in_pages = find_commands(pattern)
    assert {line.split()[0] for _, line in commands_in_pages} >= {
        "./install.sh",
        "uvx",
        "pipx",
    }
    for _, line in commands_in_pages:
        arguments = shlex.split(
            re.sub(pattern, "", line.split("  #")[0].replace("…", ""), count=1)
        )
        if arguments != ["--help"]:
            parse_arguments(arguments)


def test_verify_calls_in_pages_are_valid() -> None:
    prefix = (
        r"(?:- run: |- )?((uvx (--with ipykernel )?)?notebook-stepper|stepper) verify"
    )
    calls = find_commands(rf" *{prefix}\b")
    programs = set()
    for _, line in calls:
        match = re.match(rf" *{prefix}", line)
        assert match is not None
        programs.add(match[1])
        call = line[match.end() :].split("  #")[0].split(" > ")[0]
        arguments = shlex.split(call.replace("…", ""))
        if "--help" not in arguments:
            # With the group's settings: click stores the help options at the first call.
            group = click.Context(main, **main.context_settings)
            main.commands["verify"].make_context("verify", arguments, parent=group)
    assert programs >= {"stepper", "notebook-stepper", "uvx notebook-stepper"}


def test_ci_examples_are_valid() -> None:
    text = (ROOT / "docs" / "verify.md").read_text()
    github, gitlab = map(yaml.safe_load, re.findall(r"(?ms)^```yaml\n(.*?)^```$", text))
    steps = [
        step["run"] for step in github["jobs"]["notebooks"]["steps"] if "run" in step
    ]
    script = gitlab["notebooks"]["script"]
    for install, verify in (steps, script):
        requirements = install.removeprefix("pip install -r requirements.txt ").split()
        assert requirements == ["ipykernel", "notebook-stepper"]
        assert verify.startswith("notebook-stepper verify notebooks/ --scratch -j 2 ")
    assert script[1].endswith(
        f" > {gitlab['notebooks']['artifacts']['reports']['junit']}"
    )


def test_scripts_named_in_pages_exist() -> None:
    commands_in_pages = find_commands(r"python [\w/]+\.py")
    assert len(commands_in_pages) > 3
    for page, line in commands_in_pages:
        assert (ROOT / line.split()[1]).is_file(), (page, line)


def test_commands_page_lists_every_command() -> None:
    text = (ROOT / "docs" / "commands.md").read_text()
    assert [name for name in main.commands if f"`stepper {name}" not in text] == []


def test_settings_page_lists_every_key_with_default() -> None:
    (block,) = re.findall(
        r"(?ms)^```yaml\n(.*?)^```$", (ROOT / "docs" / "settings.md").read_text()
    )
    keys = set(re.findall(r"(?m)^(?:# )?(\w+):", block))
    assert keys | {"notebooks_dir"} == set(config.RULES)
    defaults = Limits()
    for key, value in yaml.safe_load(block).items():
        default = defaults.patterns if key == "notebooks" else getattr(defaults, key)
        assert value == (list(default) if isinstance(default, tuple) else default), key
