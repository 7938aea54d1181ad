"""Seeds the random generators of a replay's kernel, before its first cell.

Without a seed, a cell would draw other numbers each time the notebook is verified, and
two replays could agree by chance at one time and not at another. Each replay has
another seed, so drawn numbers differ between replays. The seeds are the same each time
the notebook is verified, so the verdict is the same, too.
"""

from __future__ import annotations

from stepper.session.caller import Caller
from stepper.session.protocols import Kernel
from stepper.session.session import Session

SECONDS = 30  # the deadline of the code
# The seeds of users are small numbers: a replay must not reproduce outputs of a seed
# that the notebook no longer sets. With this number, four replays do not agree by
# chance on a first draw of few values: `choice`, `randint(2)`, `random() < 0.5`, dice.
SEED_OFFSET = 3_405_691_224
# Python code for the kernel. NumPy is seeded when it is imported: importing it here
# would come before the environment variables that the notebook sets for it. Generators
# without a seed of their own get their entropy from `randbits`.
SOURCE = """
def _seed_replay(seed):
    import importlib.util
    import random
    import sys

    class SeedNumpy:
        def find_spec(self, name, path=None, target=None):
            if name != "numpy.random":
                return None
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            run_module = spec.loader.exec_module

            def run_and_seed(module):
                run_module(module)
                module.seed(seed)
                bits = sys.modules.get("numpy.random.bit_generator")
                if hasattr(bits, "randbits"):
                    bits.randbits = random.Random(seed).getrandbits

            spec.loader.exec_module = run_and_seed
            return spec

    random.seed(seed)
    sys.meta_path.insert(0, SeedNumpy())

if "get_ipython" in globals():
    _seed_replay({seed})
del _seed_replay
"""


async def seed_generators(
    fresh: Session, kernel: Kernel, caller: Caller, seed: int
) -> None:
    """Seed the random generators of a replay's kernel.

    `seed` is a small number that differs between the replays of a notebook.
    """
    source = SOURCE.replace("{seed}", str(SEED_OFFSET + seed))
    limits = fresh.limits()
    await fresh.execute(kernel, source, caller, SECONDS, limits, scratch=True)
