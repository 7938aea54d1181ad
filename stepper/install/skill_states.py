"""The skills of this package, and the states of a project's skills.

A skill is represented as a mapping from the relative names of its files to their
contents.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from stepper.install.install_file_io import find_assets

SKILLS = ".claude/skills"
DIGEST_LENGTH = 16  # hexadecimal digits
MARK = re.compile(rb"\s*<!-- notebook-stepper(?: ([0-9a-f]{16}))? -->\s*")


def compute_digest(files: Mapping[str, bytes]) -> str:
    """Return the hash of a skill's files.

    The hash ignores stepper's mark, and line endings, which git may change.
    """
    digest = hashlib.sha256()
    for name in sorted(files):
        encoded_name = name.encode()
        content = files[name].replace(b"\r\n", b"\n")
        if name == "SKILL.md":
            content = _remove_mark(content)
        # The lengths separate names from contents.
        name_length = len(encoded_name)
        content_length = len(content)
        digest.update(b"%d %d " % (name_length, content_length))
        digest.update(encoded_name)
        digest.update(content)
    hexadecimal = digest.hexdigest()
    return hexadecimal[:DIGEST_LENGTH]


def _remove_mark(content: bytes) -> bytes:
    """Return the content of SKILL.md without stepper's mark."""
    unmarked = MARK.sub(b"\n", content)
    return unmarked.rstrip()


def add_mark(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return a skill's files with stepper's mark at the end of SKILL.md.

    The mark contains the hash of the files.
    """
    content = _remove_mark(files["SKILL.md"])
    digest = compute_digest(files)
    mark = f"\n\n<!-- notebook-stepper {digest} -->\n"
    marked = content + mark.encode()
    return {**files, "SKILL.md": marked}


def classify_skill(files: Mapping[str, bytes]) -> str:
    """Return the origin of a skill.

    The origin is `missing` (no files), `foreign` (not from stepper), `ours`, or
    `edited` (from stepper and changed by the user).
    """
    if not files:
        return "missing"
    content = files.get("SKILL.md", b"")
    mark = MARK.search(content)
    if mark is None:
        return "foreign"
    digest = mark[1]
    if digest is None:  # a mark without a hash: the user may have edited the skill
        return "edited"
    is_unchanged = digest.decode() == compute_digest(files)
    return "ours" if is_unchanged else "edited"


def get_skill_states(project: Path) -> dict[str, str]:
    """Return the states of a project's skills, by name.

    A state is `missing`, `foreign` (a skill of the user with the name of a shipped
    skill), `edited`, `current`, `outdated` (from another version), or `gone` (this
    version does not have the skill).
    """
    shipped = load_shipped_skills()
    folders = sorted(project.glob(f"{SKILLS}/*"))
    names = list(shipped)
    for folder in folders:
        if folder.name not in shipped:
            names.append(folder.name)
    states = {}
    for name in names:
        files = read_skill_files(project / SKILLS / name)
        state = _compare_with_shipped(files, shipped.get(name))
        if name in shipped or state in ("edited", "gone"):
            states[name] = state
    return states


def _compare_with_shipped(
    files: Mapping[str, bytes], shipped: Mapping[str, bytes] | None
) -> str:
    """Return the state of a skill.

    `shipped` is None if this version does not have the skill.
    """
    state = classify_skill(files)
    if state != "ours":
        return state
    if shipped is None:
        return "gone"
    digest = compute_digest(files)
    shipped_digest = compute_digest(shipped)
    return "current" if digest == shipped_digest else "outdated"


def list_our_skills(project: Path) -> dict[str, str]:
    """Return the skills of a project that have stepper's mark, with their states."""
    return {
        name: state
        for name, state in get_skill_states(project).items()
        if state not in ("missing", "foreign")
    }


def load_shipped_skills() -> dict[str, dict[str, bytes]]:
    """Return the skills of this package with their marks, by name."""
    skills = {}
    for path in sorted(find_assets("skills").glob("*/SKILL.md")):
        folder = path.parent
        skills[folder.name] = add_mark(read_skill_files(folder))
    return skills


def read_skill_files(folder: Path) -> dict[str, bytes]:
    """Return the contents of a skill's files by name.

    Hidden files and bytecode are left out.
    """
    files = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not _is_ignored(name):
            posix_name = name.as_posix()
            files[posix_name] = path.read_bytes()
    return files


def _is_ignored(name: Path) -> bool:
    """Return whether a file is hidden or bytecode."""
    return any(part.startswith((".", "__pycache__")) for part in name.parts)
