"""What a source imports: the dotted modules and names behind a fault that names only their beginning."""

from __future__ import annotations

import re

LINE = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<module>\.*[\w.]*)[ \t]+import[ \t]+(?:\((?P<many>[^)]*)\)|(?P<names>[^\n#;]*))"
    r"|import[ \t]+(?P<plain>[\w., \t]+))",
    re.MULTILINE,
)


def imports(source: str) -> list[tuple[str, list[str]]]:
    """Return the modules that a source imports, as they are written, each with the names taken from it."""
    found: list[tuple[str, list[str]]] = []
    for match in LINE.finditer(source):
        if match["plain"] is not None:
            found += [(_first(part), []) for part in match["plain"].split(",") if part.strip()]
        else:
            names = match["many"] if match["many"] is not None else match["names"]
            parts = re.sub(r"#[^\n]*", "", names).split(",")
            found.append((match["module"], [_first(one) for one in parts if one.strip()]))
    return found


def _first(text: str) -> str:
    return text.split(maxsplit=1)[0].strip("()\\")


def of_module(source: str, name: str) -> tuple[str, list[str]]:
    """Return the whole dotted module that a source imports below `name`, with the names taken from it."""
    for module, names in imports(source):
        if module == name or module.startswith(name + "."):
            return module, names
    return name, []


def relative(source: str) -> tuple[str, list[str]]:
    """Return the module of a source's first relative import, without its dots, with the names taken from it."""
    for module, names in imports(source):
        if module.startswith("."):
            return module.lstrip("."), names
    return "", []
