"""The skills of this package, and the state of a project's skills.

A skill is its files by relative name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from stepper.install.install_files import find_assets

SKILLS = ".claude/skills"
MARK = re.compile(rb"\s*<!-- notebook-stepper(?: ([0-9a-f]{16}))? -->\s*")


def compute_digest(files: Mapping[str, bytes]) -> str:
    """Return the hash of a skill's files, without its mark and its line ends.

    Git may change the line ends.
    """
    digest = hashlib.sha256()
    for name in sorted(files):
        content = files[name].replace(b"\r\n", b"\n")
        if name == "SKILL.md":
            content = MARK.sub(b"\n", content).rstrip()
        encoded_name = name.encode()
        digest.update(b"%d %d " % (len(encoded_name), len(content)))
        digest.update(encoded_name)
        digest.update(content)
    return digest.hexdigest()[:16]


def add_mark(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return a skill's files with stepper's mark at the end of SKILL.md.

    The mark contains the hash of the files.
    """
    body = MARK.sub(b"\n", files["SKILL.md"]).rstrip()
    digest = compute_digest(files)
    mark = f"<!-- notebook-stepper {digest} -->".encode()
    return {**files, "SKILL.md": body + b"\n\n" + mark + b"\n"}


def classify_skill(files: Mapping[str, bytes]) -> str:
    """Return the origin of a skill.

    It is `missing` (no files), `foreign`, `ours`, or `edited` (ours and changed).
    """
    if not files:
        return "missing"
    mark = MARK.search(files.get("SKILL.md", b""))
    if not mark:
        return "foreign"
    marked_digest = (mark[1] or b"").decode()
    if marked_digest == compute_digest(files):
        return "ours"
    return "edited"


def get_skill_states(project: Path) -> dict[str, str]:
    """Return the states of stepper's skills in a project, and of skills of their names.

    A state is missing, foreign, edited, current, outdated, or gone, which is a skill of
    an older version of stepper.
    """
    shipped = load_shipped_skills()
    folders = sorted(project.glob(f"{SKILLS}/*"))
    names = [*shipped, *(folder.name for folder in folders)]
    states = {}
    for name in dict.fromkeys(names):
        files = read_skill_files(project / SKILLS / name)
        state = classify_skill(files)
        if state == "ours" and name not in shipped:
            state = "gone"
        elif state == "ours":
            is_same = compute_digest(files) == compute_digest(shipped[name])
            state = "current" if is_same else "outdated"
        if name in shipped or state in ("edited", "gone"):
            states[name] = state
    return states


def list_our_skills(project: Path) -> dict[str, str]:
    """Return the skills of a project that have stepper's mark, with their states."""
    return {
        name: state
        for name, state in get_skill_states(project).items()
        if state not in ("missing", "foreign")
    }


def load_shipped_skills() -> dict[str, dict[str, bytes]]:
    """Return the skills of this package as they are installed: name → file → bytes."""
    skills = {}
    for path in sorted(find_assets("skills").glob("*/SKILL.md")):
        folder = path.parent
        skills[folder.name] = add_mark(read_skill_files(folder))
    return skills


def read_skill_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a skill by relative name; ignore hidden ones and bytecode."""
    files = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        is_ignored = any(part.startswith((".", "__pycache__")) for part in name.parts)
        if path.is_file() and not is_ignored:
            files[name.as_posix()] = path.read_bytes()
    return files
