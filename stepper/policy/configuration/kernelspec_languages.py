"""The languages of Jupyter kernels, by the names of their kernelspecs.

A notebook normally records its language. If it records only the name of a kernelspec,
this table recognizes the common kernels of other languages.
"""

from __future__ import annotations

import re

from stepper.policy.commands.command_lines import CommandLines

# Patterns of kernelspec names, and the languages, which have lower-case names as in
# `language_info.name`.
KERNEL_NAMES = (
    (r"ir\d*|ir-\S+|xr", "r"),
    (r"julia\S*", "julia"),
    (r"(?:calysto_)?bash", "bash"),
    (r"x?octave", "octave"),
    (r"\w*matlab\w*", "matlab"),
    (r"javascript|nodejs|deno|jslab", "javascript"),
    (r"typescript|tslab", "typescript"),
    (r"xcpp\d*\S*|cling-\S+", "c++"),
    (r"gophernotes|gonb", "go"),
    (r"rust|evcxr", "rust"),
    (r"scala\S*|almond|spylon-kernel|apache_toree_scala", "scala"),
    (r"i?ruby", "ruby"),
    (r"i?haskell", "haskell"),
    (r"\.net-csharp", "c#"),
    (r"\.net-fsharp", "f#"),
    (r"(?:\.net-)?powershell", "powershell"),
    (r"[ij]?java|jjava", "java"),
    (r"kotlin", "kotlin"),
    (r"sas", "sas"),
    (r"n?stata", "stata"),
    (r"x?lua|ilua", "lua"),
    (r"i?perl", "perl"),
    (r"wolframlanguage\S*", "mathematica"),
    (r"ocaml-jupyter\S*", "ocaml"),
    (r"clojure|clojupyter\S*", "clojure"),
    (r"xsqlite|xsql", "sql"),
    (r"maxima", "maxima"),
)
# The installation commands of the most common kernels, by language.
INSTALL_COMMANDS = {
    "r": "R -e 'install.packages(\"IRkernel\"); IRkernel::installspec()'",
    "julia": "julia -e 'using Pkg; Pkg.add(\"IJulia\")'",
    "bash": ".venv/bin/python -m pip install bash_kernel",
}


def guess_language(kernelspec_name: str) -> str:
    """Return the language of a kernelspec, or an empty string if it is not known."""
    name = kernelspec_name.lower()
    for pattern, language in KERNEL_NAMES:
        if re.fullmatch(pattern, name):
            return language
    return ""


def format_kernel_hint(notebook: str, language: str, kernelspec_name: str) -> str:
    """Return the command to run a notebook on a kernel of its own language.

    A comment after the command says what to do first. If `kernelspec_name` is not valid
    as the name of a backend, the command contains the placeholder NAME.
    """
    # The daemon always imports this module, but usually needs no kernel backend.
    from stepper.policy.configuration.kernel_config import NAME

    commands = CommandLines(notebook)
    # The name comes from the notebook: a name that is not valid for a backend must not
    # become a part of a command.
    if not NAME.fullmatch(kernelspec_name):
        command = commands.shell("use --kernel NAME")
        return f"{command}  # a backend from `kernels:` in .stepper/config.yaml"
    command = commands.shell(f"use --kernel {kernelspec_name}")
    install = INSTALL_COMMANDS.get(language)
    details = f" ({install})" if install else ""
    return (
        f"{command}  # first install the Jupyter kernel `{kernelspec_name}`{details},"
        f" and add `kernels: {{{kernelspec_name}: {{kernelspec: {kernelspec_name}}}}}`"
        " to .stepper/config.yaml"
    )
