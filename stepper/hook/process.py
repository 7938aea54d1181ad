"""Former name of `hook_process`.

The hook scripts of earlier versions, which users may have committed, import it.
"""

from stepper.hook.hook_process import hook

__all__ = ["hook"]
