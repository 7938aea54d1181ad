"""The entry point of the hook scripts, under a name that does not change.

Projects commit the hook script, so it may be older or newer than the installed package.
"""

from stepper.hook.hook_process import hook

__all__ = ["hook"]
