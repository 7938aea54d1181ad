"""Paths of a project's notebooks: lookup by name, validation and store names.

The store of a notebook is the relative name of its journal, its kernel record and its
figures in the subfolders of `.stepper/`.
"""

from __future__ import annotations

import itertools
import os
import re

from stepper.common import secure_files
from stepper.common.errors import UsageError
from stepper.common.paths import Paths
from stepper.common.text import NAME_CONTROLS, escape_controls, shell_quote
from stepper.daemon.config import Config
from stepper.daemon.workspace.notebook_discovery import NotebookIndex
from stepper.daemon.workspace.renames_file import RenamesFile
from stepper.policy.configuration import notebook_globs

# The names of notebooks that `stepper new` creates start with a date.
DATE_PREFIX = re.compile(r"^\d{4}_\d{2}_\d{2}_")
MAX_NAMED = 5  # notebooks in a message
# Prefix of the store of a notebook outside of `notebooks_dir`.
OUTSIDE_PREFIX = "@/"
# Prefix of a store, as in `@2/NAME`, if a renamed notebook has the store `NAME`.
NUMBER_PREFIX = re.compile(r"@\d+/")
RESERVED_PREFIX = re.compile(r"\.\./|@\d*/")


class UncoveredError(UsageError):
    """A notebook matches no pattern of `notebooks:`.

    `name` is the notebook's path relative to the project. `setting` is the
    configuration line that would include the notebook, or an empty string if no line
    can include it.
    """

    def __init__(self, message: str, hint: str, *, name: str, setting: str) -> None:
        super().__init__(message, hint)
        self.name = name
        self.setting = setting


class NotebookPaths:
    """The paths of a project's notebooks, according to the current configuration."""

    def __init__(self, paths: Paths, config: Config) -> None:
        self.paths = paths
        self.config = config
        self.index = NotebookIndex(paths.project)
        self.renames_file = RenamesFile(paths.renames_file)

    @property
    def is_incomplete(self) -> bool:
        """Whether some folders of the project have not been searched for notebooks."""
        return self.index.is_incomplete

    @property
    def new_notebook_folder(self) -> str:
        """The folder for new notebooks.

        Raise UsageError if `notebooks:` includes no folder.
        """
        patterns = self.config.load_limits().patterns
        folder = notebook_globs.choose_new_notebook_folder(patterns)
        if folder is None:
            raise UsageError(
                "`notebooks:` contains no folder for new notebooks",
                "add a folder to `notebooks:` in .stepper/config.yaml",
            )
        return self._join(folder)

    @property
    def _default_folder(self) -> str:
        """The real path of `notebooks_dir`. Stores of its notebooks have no prefix."""
        return os.path.realpath(self._join(self.config.load_limits().notebooks_dir))

    def _join(self, name: str) -> str:
        """Return the path of a notebook or folder by its name in the project."""
        return os.path.join(self.paths.project, name)

    def list_patterns(self) -> list[str]:
        """Return the patterns of `notebooks:`, with symbolic links resolved."""
        patterns = []
        for pattern in map(os.path.normpath, self.config.load_limits().patterns):
            folder = notebook_globs.get_base_folder(pattern)
            real_folder = self.paths.relpath(os.path.realpath(self._join(folder)))
            if real_folder == (folder or "."):
                patterns.append(pattern)
            else:
                patterns.append(real_folder + pattern[len(folder) :])
        return patterns

    def list_notebooks(self) -> list[str]:
        """Search the project, and return its notebooks relative to the project.

        The time of the search is limited: see `notebook_discovery`.
        """
        self.index.refresh(self.list_patterns())
        return self.list_known()

    def list_known(self) -> list[str]:
        """Return the notebooks that the last search found, relative to the project."""
        paths = self.index.list_notebooks()
        return sorted(os.path.relpath(path, self.paths.project) for path in paths)

    def get_store(self, path: str) -> str:
        """Return the store of the notebook at a path.

        A renamed notebook keeps its former store.
        """
        former_store = self.renames_file.get_stores().get(self.paths.relpath(path))
        if former_store is not None:
            return former_store
        default = self.get_default_store(path)
        if self.renames_file.get_notebook(default) is None:
            return default
        # A renamed notebook already has this store.
        for number in itertools.count(2):
            store = f"@{number}/{default}"
            if self.renames_file.get_notebook(store) is None:
                break
        return store

    def get_default_store(self, path: str) -> str:
        """Return the store that a notebook has if no notebook was renamed."""
        name = os.path.relpath(path, self._default_folder)
        if RESERVED_PREFIX.match(name):
            name = OUTSIDE_PREFIX + self.paths.relpath(path)
        return name.removesuffix(".ipynb")

    def get_path_of_store(self, store_file: str) -> str:
        """Return the path of the notebook with a store.

        `store_file` is the store with the suffix `.ipynb`.
        """
        store = store_file.removesuffix(".ipynb")
        renamed_notebook = self.renames_file.get_notebook(store)
        if renamed_notebook is not None:
            return self._join(renamed_notebook)
        name = NUMBER_PREFIX.sub("", store_file, count=1)
        if name.startswith(OUTSIDE_PREFIX):
            return self._join(name.removeprefix(OUTSIDE_PREFIX))
        return os.path.join(self._default_folder, name)

    def list_folders(self) -> list[str]:
        """Return the paths of the folders to search for a notebook by name."""
        patterns = self.config.load_limits().patterns
        return [self._join(notebook_globs.get_base_folder(item)) for item in patterns]

    def find(self, name: str, cwd: str) -> str:
        """Return the real path of a notebook by its name, with or without `.ipynb`.

        The folder `cwd` is searched first. Raise UsageError if no notebook is found, or
        if its path is not valid.
        """
        file_name = name if name.endswith(".ipynb") else name + ".ipynb"
        folders = self.list_folders()
        for folder in (cwd, self.paths.project, *folders):
            path = os.path.join(folder, file_name)
            if os.path.lexists(path):
                return self.resolve(path)
        dated_path = self._find_dated(name)
        if dated_path is not None:
            return dated_path
        arguments = []
        for folder in folders:
            relative_path = self.paths.relpath(folder)
            arguments.append(shell_quote(f"{relative_path}/"))
        command = f"ls {' '.join(arguments)}"
        raise UsageError(f"there is no notebook {name!r}", command)

    def _find_dated(self, name: str) -> str | None:
        """Return the real path of a notebook by its name without the date prefix.

        Return None if no notebook matches. Raise UsageError if several match.
        """
        stem = name.removesuffix(".ipynb")
        if DATE_PREFIX.match(stem):
            return None
        matches = []
        for notebook in self.list_notebooks():
            file_name = os.path.basename(notebook)
            if DATE_PREFIX.sub("", file_name) == f"{stem}.ipynb":
                matches.append(notebook)
        if not matches:
            return None
        if len(matches) > 1:
            names = ", ".join(map(shell_quote, matches[:MAX_NAMED]))
            if len(matches) > MAX_NAMED:
                names += ", …"
            raise UsageError(
                f"{len(matches)} notebooks match the name {name!r}: {names}",
                "use the name with the date",
            )
        return self.resolve(self._join(matches[0]))

    def resolve(self, path: str) -> str:
        """Return the real path of a notebook, without symbolic links.

        Raise UsageError if the real path is outside of the project, does not match
        `notebooks:` or is not a regular file. The file does not have to exist. If a
        link replaces the file later, opening the file fails: see `secure_files`.
        """
        quoted = escape_controls(path)
        name = self.paths.relpath(path)
        _check_controls(path, name)
        real = os.path.realpath(path)
        if not real.endswith(".ipynb"):
            raise UsageError(
                f"{quoted} is not a notebook (.ipynb)", f"ls -l {shell_quote(path)}"
            )
        is_linked = real != os.path.normpath(path)
        if is_linked:
            name = self.paths.relpath(real)
        if not self._is_covered(name, is_linked):
            raise self._build_uncovered_error(path, real)
        if name.startswith("../"):
            raise UsageError(
                f"{quoted} is outside of the project: its real path is"
                f" {escape_controls(real)}",
                f"ls -ld {shell_quote(self.new_notebook_folder)}",
            )
        _check_controls(real, name)  # of the target of a link
        if os.path.islink(path) and not os.path.lexists(real):
            raise UsageError(
                f"{quoted} is a symbolic link to {escape_controls(real)}, which does"
                " not exist",
                f"rm {shell_quote(path)}",
            )
        try:
            secure_files.check_regular(real)
        except IsADirectoryError:
            raise UsageError(
                f"{quoted} is a folder, not a notebook", f"ls -ld {shell_quote(path)}"
            ) from None
        except secure_files.UnsafeFileError as error:
            raise UsageError(error.message, error.hint) from None
        return real

    def _is_covered(self, name: str, is_linked: bool) -> bool:
        """Return whether a notebook's name matches a pattern of `notebooks:`."""
        # If the path contains no link, neither does its folder, so the patterns need
        # not be resolved.
        patterns = self.config.load_limits().patterns
        if not is_linked and notebook_globs.includes(patterns, name):
            return True
        return notebook_globs.includes(self.list_patterns(), name)

    def _build_uncovered_error(self, path: str, real: str) -> UsageError:
        """Return the error for a path that matches no pattern of `notebooks:`.

        `real` is the real path. If `path` matches a pattern and only `real` does not,
        the error is not an UncoveredError.
        """
        patterns = self.config.load_limits().patterns
        name = self.paths.relpath(path)
        pattern_names = []
        for pattern in patterns:
            suffix = "/" if notebook_globs.is_folder(pattern) else ""
            pattern_names.append(f"{pattern}{suffix}")
        listed_patterns = ", ".join(pattern_names)
        problem = f"does not match `notebooks:` ({listed_patterns})"
        quoted = escape_controls(path)
        quoted_real = escape_controls(real)
        hint = "move the notebook to a path that `notebooks:` includes"
        if notebook_globs.includes(patterns, name):
            message = f"the real path of {quoted} {problem}: {quoted_real}"
            return UsageError(message, hint)
        message = f"{quoted} {problem}"
        if real != path:
            message += f"; its real path is {quoted_real}"
        setting = notebook_globs.suggest_setting(patterns, [name])
        if setting:
            hint += f", or change .stepper/config.yaml: {setting}"
        if name.startswith("../"):  # the notebook is outside of the project
            name = path
        return UncoveredError(message, hint, name=name, setting=setting)


def _check_controls(path: str, name: str) -> None:
    """Raise UsageError if the name of a notebook contains control characters."""
    if not NAME_CONTROLS.search(name):
        return
    plain = NAME_CONTROLS.sub("_", path)
    raise UsageError(
        f"{escape_controls(path)} has control characters in its name",
        f"mv {shell_quote(path)} {shell_quote(plain)}",
    )
