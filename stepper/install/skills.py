"""The skills that came with this package, and whose those of a project are. A skill is its files by relative name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from stepper.install.file_edits import find_assets

SKILLS = ".claude/skills"
MARK = re.compile(rb"\s*<!-- notebook-stepper(?: ([0-9a-f]{16}))? -->\s*")


def compute_digest(files: Mapping[str, bytes]) -> str:
    """Return the hash of a skill's files, whatever its mark and its line ends (git may change those)."""
    total = hashlib.sha256()
    for name in sorted(files):
        content = files[name].replace(b"\r\n", b"\n")
        content = MARK.sub(b"\n", content).rstrip() if name == "SKILL.md" else content
        total.update(
            b"%d %d " % (len(name.encode()), len(content)) + name.encode() + content
        )
    return total.hexdigest()[:16]


def add_mark(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return a skill's files with our mark and their hash at the end of SKILL.md: how it is known again."""
    body = MARK.sub(b"\n", files["SKILL.md"]).rstrip()
    mark = f"<!-- notebook-stepper {compute_digest(files)} -->".encode()
    return {**files, "SKILL.md": body + b"\n\n" + mark + b"\n"}


def classify_skill(files: Mapping[str, bytes]) -> str:
    """Return whose a skill is: `missing` (no files), `foreign`, `ours`, or `edited` (ours, changed since)."""
    if not files:
        return "missing"
    mark = MARK.search(files.get("SKILL.md", b""))
    if not mark:
        return "foreign"
    return "ours" if (mark[1] or b"").decode() == compute_digest(files) else "edited"


def get_skill_states(project: Path) -> dict[str, str]:
    """Return how the skills of a project stand that are ours or have the name of one of ours: name → word.

    missing, foreign, edited, current, outdated, or gone (ours, but of an older version that had it).
    """
    shipped, found = load_shipped_skills(), {}
    there = (folder.name for folder in sorted(project.glob(f"{SKILLS}/*")))
    for name in dict.fromkeys((*shipped, *there)):
        files = read_skill_files(project / SKILLS / name)
        word = classify_skill(files)
        if word == "ours":
            same = name in shipped and compute_digest(files) == compute_digest(
                shipped[name]
            )
            word = "current" if same else "outdated" if name in shipped else "gone"
        if name in shipped or word in ("edited", "gone"):
            found[name] = word
    return found


def list_our_skills(project: Path) -> dict[str, str]:
    """Return the skills of the project that bear our mark, as they stand."""
    return {
        name: word
        for name, word in get_skill_states(project).items()
        if word not in ("missing", "foreign")
    }


def load_shipped_skills() -> dict[str, dict[str, bytes]]:
    """Return the skills that came with this package, as they are installed: name → file → bytes."""
    folders = sorted(path.parent for path in find_assets("skills").glob("*/SKILL.md"))
    return {folder.name: add_mark(read_skill_files(folder)) for folder in folders}


def read_skill_files(folder: Path) -> dict[str, bytes]:
    """Return the files below `folder` by relative name; hidden ones and bytecode are none of a skill."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not any(
            part.startswith((".", "__pycache__")) for part in name.parts
        ):
            found[name.as_posix()] = path.read_bytes()
    return found
