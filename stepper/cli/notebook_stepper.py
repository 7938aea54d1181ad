"""The program `notebook-stepper`, which uvx, pipx and pip provide.

`install` and `uninstall` set stepper up in a repository. `verify` needs no
installation. The modules of `verify` are imported only for this command.
"""

from __future__ import annotations

import sys

# The name of the program, as in `wheel_install`, which takes time to import.
NAME = "notebook-stepper"
VERIFY = "verify"


def main() -> int:
    """Run the command of `sys.argv` and return the exit code."""
    if sys.argv[1:2] != [VERIFY]:
        from stepper.install import wheel_install

        return wheel_install.main()
    import click

    from stepper.cli.main import CommandGroup, make_command
    from stepper.cli.verify_command import STANDALONE
    from stepper.policy.commands.cli_commands import COMMANDS

    class Program(CommandGroup):
        """The commands of `notebook-stepper` that are click commands."""

        def invoke(self, ctx: click.Context) -> object:
            """Run the command without a daemon."""
            ctx.meta[STANDALONE] = True
            return super().invoke(ctx)

    program = Program(NAME)
    program.add_command(make_command(COMMANDS[VERIFY], VERIFY, NAME))
    program.main(prog_name=NAME)
    return 0


if __name__ == "__main__":
    sys.exit(main())
