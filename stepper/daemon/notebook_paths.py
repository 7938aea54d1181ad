"""Where a project's notebooks lie: which paths a pattern covers, what is refused, what their journals are called."""

from __future__ import annotations

import itertools
import os
import re

from stepper.common import private_files
from stepper.common.errors import UsageError
from stepper.common.paths import Paths
from stepper.common.text import NAME_CONTROLS, escape_controls, shell_quote
from stepper.daemon.config import Config
from stepper.daemon.notebook_index import NotebookIndex
from stepper.daemon.store_names import StoreNames
from stepper.policy import notebook_globs

# how the names of notebooks begin that `stepper new` makes
DATED = re.compile(r"^\d{4}_\d{2}_\d{2}_")
MOST_NAMED = 5  # notebooks in a message
# before the names of what lies in no `notebooks_dir`, in the folders of `.stepper/`
ELSEWHERE = "@/"
# … and of a notebook whose own name is the store of one that was renamed: `@2/NAME`
NUMBERED = re.compile(r"@\d+/")
RESERVED = re.compile(r"\.\./|@\d*/")


class UncoveredError(UsageError):
    """A notebook that no pattern covers, `name` relative to the project; `line` of the configuration would."""

    name = line = ""


class Places:
    """The places of one project's notebooks, as its configuration has them now."""

    def __init__(self, paths: Paths, config: Config) -> None:
        self.paths, self.config = paths, config
        self.index = NotebookIndex(paths.project)
        self.store_names = StoreNames(paths.store_names)

    @property
    def cut(self) -> bool:
        """Whether some folders of the project have not been searched for notebooks yet."""
        return self.index.cut

    @property
    def folder(self) -> str:
        """The folder of new notebooks; raise UsageError where no pattern covers one in a folder."""
        home = notebook_globs.new_notebook_folder(self.config.limits().patterns)
        if home is None:
            raise UsageError(
                "`notebooks:` covers single notebooks only",
                "add a folder to it in .stepper/config.yaml",
            )
        return os.path.join(self.paths.project, home)

    @property
    def _usual(self) -> str:
        """The folder whose notebooks' journals and kernels bear their names alone: all others' begin with ELSEWHERE."""
        return os.path.realpath(
            os.path.join(self.paths.project, self.config.limits().notebooks_dir)
        )

    def patterns(self) -> list[str]:
        """Return what covers the project's notebooks, the folders as they are where links lead to them."""
        told = []
        for pattern in map(os.path.normpath, self.config.limits().patterns):
            head = notebook_globs.base_folder(pattern)
            real = self.paths.relpath(
                os.path.realpath(os.path.join(self.paths.project, head))
            )
            told.append(
                pattern if real == (head or ".") else real + pattern[len(head) :]
            )
        return told

    def notebooks(self) -> list[str]:
        """Return the notebooks there are that a pattern covers, relative to the project. Bounded: see `index`."""
        self.index.refresh(self.patterns())
        return self.known()

    def known(self) -> list[str]:
        """Return the notebooks of the last look, relative to the project."""
        return sorted(
            os.path.relpath(path, self.paths.project) for path in self.index.notebooks()
        )

    def store(self, path: str) -> str:
        """Return the name under which a notebook's journal, kernel and figures lie, whatever else is covered.

        A renamed notebook keeps the name that it had when its journal began.
        """
        names = self.store_names.names()
        if (renamed := names.get(self.paths.relpath(path))) is not None:
            return renamed
        own = self.own_store(path)
        if self.store_names.notebook(own) is None:
            return own
        numbered = (f"@{number}/{own}" for number in itertools.count(2))
        return next(
            name for name in numbered if self.store_names.notebook(name) is None
        )

    def own_store(self, path: str) -> str:
        """Return the store of a notebook that was never renamed."""
        name = os.path.relpath(path, self._usual)
        if RESERVED.match(name):
            name = ELSEWHERE + self.paths.relpath(path)
        return name.removesuffix(".ipynb")

    def stored(self, name: str) -> str:
        """Return the path of the notebook whose journal, kernel and figures lie under that name."""
        renamed = self.store_names.notebook(name.removesuffix(".ipynb"))
        if renamed is not None:
            return os.path.join(self.paths.project, renamed)
        name = NUMBERED.sub("", name, count=1)
        root = self.paths.project if name.startswith(ELSEWHERE) else self._usual
        return os.path.join(root, name.removeprefix(ELSEWHERE))

    def folders(self) -> list[str]:
        """Return where notebooks are looked for by their names alone."""
        return [
            os.path.join(self.paths.project, head)
            for head in map(notebook_globs.base_folder, self.config.limits().patterns)
        ]

    def find(self, name: str, cwd: str) -> str:
        """Return the real path of the notebook that a person in that folder names; raise UsageError."""
        stem, folders = (
            name if name.endswith(".ipynb") else name + ".ipynb",
            self.folders(),
        )
        for base in (cwd, self.paths.project, *folders):
            path = os.path.join(base, stem)
            if os.path.lexists(path):
                return self.resolve(path)
        if (same := self._dated(name)) is not None:
            return same
        looked = " ".join(
            shell_quote(self.paths.relpath(folder) + "/") for folder in folders
        )
        raise UsageError(f"there is no notebook {name!r}", f"ls {looked}")

    def _dated(self, name: str) -> str | None:
        """Return the real path of the one notebook with that name behind a date, as `stepper new` names them.

        Raise UsageError where there are several; None where there is none.
        """
        stem = name.removesuffix(".ipynb")
        books = self.notebooks() if DATED.sub("", stem) == stem else []
        same = [
            book
            for book in books
            if DATED.sub("", os.path.basename(book)) == f"{stem}.ipynb"
        ]
        if len(same) > 1:
            commands = ", ".join(shell_quote(book) for book in same[:MOST_NAMED])
            raise UsageError(
                f"there are {len(same)} notebooks {name!r}: {commands}",
                "name one of them with its date",
            )
        return self.resolve(os.path.join(self.paths.project, same[0])) if same else None

    def resolve(self, path: str) -> str:
        """Return a notebook's real path; raise UsageError unless a pattern covers it, and it is a file like others.

        What is swapped in after this look is met by the one who opens it (private.py): the path holds no link any more.
        """
        told, name = escape_controls(path), self.paths.relpath(path)
        if NAME_CONTROLS.search(name):
            plain = NAME_CONTROLS.sub("_", path)
            raise UsageError(
                f"{told} has control characters in its name",
                f"mv {shell_quote(path)} {shell_quote(plain)}",
            )
        real = os.path.realpath(path)
        if not real.endswith(".ipynb"):
            raise UsageError(
                f"{told} is not a notebook (.ipynb)", f"ls -l {shell_quote(path)}"
            )
        linked = real != os.path.normpath(path)
        name = self.paths.relpath(real) if linked else name
        # to what no link leads, none leads to the folder that covers it
        plainly = not linked and notebook_globs.includes(
            self.config.limits().patterns, name
        )
        if not (plainly or notebook_globs.includes(self.patterns(), name)):
            raise self._outside(path, real)
        if name.startswith("../"):
            raise UsageError(
                f"{told} leads out of the project (it is {escape_controls(real)})",
                f"ls -ld {shell_quote(self.folder)}",
            )
        if NAME_CONTROLS.search(name):  # what the link is to
            return self.resolve(real)
        if os.path.islink(path) and not os.path.lexists(real):
            raise UsageError(
                f"{told} is a symbolic link, and what it is to is gone: {escape_controls(real)}",
                f"rm {shell_quote(path)}",
            )
        try:
            private_files.check_regular(real)
        except IsADirectoryError:
            raise UsageError(
                f"{told} is a folder, not a notebook", f"ls -ld {shell_quote(path)}"
            ) from None
        except private_files.UnsafeFileError as error:
            raise UsageError(error.why, error.hint) from None
        return real

    def _outside(self, path: str, real: str) -> UsageError:
        """Return the error on a notebook that no pattern covers, or that is a link to such a one."""
        patterns, name = self.config.limits().patterns, self.paths.relpath(path)
        places = ", ".join(
            f"{pattern}/" if notebook_globs.is_folder(pattern) else pattern
            for pattern in patterns
        )
        why = f"{escape_controls(path)} lies outside of {places} (it is {escape_controls(real)})"
        if notebook_globs.includes(patterns, name):
            return UsageError(why, "move it there")
        line = notebook_globs.suggest_setting(patterns, [name])
        error = UncoveredError(
            why,
            "move it there"
            + (f", or cover it in .stepper/config.yaml: {line}" if line else ""),
        )
        error.name, error.line = (path if name.startswith("../") else name), line
        return error
