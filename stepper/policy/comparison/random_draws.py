"""Find the cells that draw random numbers without a seed, from their sources.

The tables contain functions of the standard library and of common packages. A draw
counts as seeded if its generator is seeded in the same cell or in a cell above.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

# Generators that have a global state.
PYTHON = "random"
NUMPY = "numpy"
TORCH = "torch"
# Calls that seed a global generator. A call without arguments does not count, because
# it uses random bytes as the seed.
SEEDS = {
    PYTHON: re.compile(r"(?<![\w.])(?:random\.)?seed\(\s*[^\s)]"),
    NUMPY: re.compile(
        r"\b(?:np|numpy)\.random\.seed\(\s*[^\s)]|\brandom\.set_state\("
        r"|\bfrom numpy\.random import.*\bseed\b"
    ),
    TORCH: re.compile(r"\bmanual_seed(?:_all)?\(|\btf\.random\.set_seed\("),
}
SEEDS_OF_ALL = re.compile(
    r"\b(?:seed_everything|set_random_seeds?|set_global_seeds?|seed_all|set_seeds?"
    r"|fix_seeds?|enable_determinism)\("
)
DRAWS = {
    PYTHON: re.compile(
        r"(?<![\w.])random\.(?:random|randint|randrange|choice|choices|sample|shuffle"
        r"|uniform|gauss|normalvariate|triangular|\w+variate|getrandbits|randbytes)\("
        r"|\bfrom random import\b"
    ),
    NUMPY: re.compile(
        r"\b(?:np|numpy)\.random\.(?!seed\b|default_rng\b|[A-Z]|[gs]et_state\b)\w+\("
        r"|\bfrom numpy\.random import\b(?!.*\bdefault_rng\b)"
    ),
    TORCH: re.compile(
        r"\btorch\.(?:rand|randn|randint|randperm|normal|bernoulli|multinomial)\w*\("
        r"|\btf\.random\.(?!set_seed)\w+\("
    ),
}
# Calls that create a generator without a seed, or one that cannot be seeded.
ENTROPY = re.compile(
    r"\b(?:default_rng|RandomState|random\.Random)\(\s*\)|\bSystemRandom\("
)
# An assignment of such a generator to a name.
GENERATOR_NAME = re.compile(
    r"^\s*(\w+)\s*=.*\b(?:default_rng|RandomState|Random)\(\s*\)", re.MULTILINE
)
# An assignment of any value to a name, outside of blocks.
ASSIGNED_NAME = re.compile(r"^(\w+)\s*=(?!=)", re.MULTILINE)
# Functions that use NumPy's global generator, unless they get a seed.
SEEDED_CALLS = re.compile(
    r"\b(?:train_test_split|shuffle|resample|ShuffleSplit|StratifiedShuffleSplit"
    r"|(?:MiniBatch)?KMeans|\w*Forest\w*|ExtraTrees\w*|Bagging\w*|AdaBoost\w*"
    r"|GradientBoosting\w*|HistGradientBoosting\w*|DecisionTree\w*|MLP\w+|SGD\w+"
    r"|TSNE|UMAP|NMF|FastICA|GaussianMixture|BayesianGaussianMixture"
    r"|permutation_importance|make_(?:blobs|moons|circles|classification|regression"
    r"|friedman\d|s_curve|swiss_roll)|random_layout|spring_layout|gnp_random_graph"
    r"|fast_gnp_random_graph|gnm_random_graph|erdos_renyi_graph|barabasi_albert_graph"
    r"|watts_strogatz_graph|random_\w+_graph|stripplot|bootstrap)\(|\.(?:sample|rvs)\("
)
SEED_ARGUMENT = re.compile(
    r"\b(?:random_state|seed|rng|random_seed)\s*=\s*(?!None\b)|\bshuffle\s*=\s*False"
)
# Comments. After code, a `#` may be in a string, unless no quote follows.
COMMENT = re.compile(r"^\s*#.*$|\s#[^'\"\n]*$", re.MULTILINE)
# How many characters of a call's arguments are searched for a seed.
MAX_ARGUMENTS = 2000


def find_unseeded_draws(sources: Sequence[str]) -> set[int]:
    """Return the indices of the sources that draw random numbers without a seed."""
    seeded_generators = set[str]()
    names = set[str]()  # of variables with a generator that has no seed
    drawing_indices = set[int]()
    for index, source in enumerate(sources):
        code = COMMENT.sub("", source)
        seeded_generators.update(_list_seeded_generators(code))
        names.difference_update(ASSIGNED_NAME.findall(code))
        names.update(GENERATOR_NAME.findall(code))
        if _draws(code, seeded_generators, names):
            drawing_indices.add(index)
    return drawing_indices


def _list_seeded_generators(code: str) -> Iterator[str]:
    """Yield the global generators that a cell seeds."""
    for generator, pattern in SEEDS.items():
        if pattern.search(code) or SEEDS_OF_ALL.search(code):
            yield generator


def _draws(code: str, seeded_generators: set[str], names: set[str]) -> bool:
    """Return whether a cell draws random numbers without a seed.

    `seeded_generators` are the global generators that this cell or a cell above seeds.
    `names` are the variables with other generators that have no seed.
    """
    if ENTROPY.search(code):
        return True
    if any(re.search(rf"\b{name}\b", code) for name in names):
        return True
    for generator, pattern in DRAWS.items():
        if generator not in seeded_generators and pattern.search(code):
            return True
    if NUMPY in seeded_generators:
        return False
    calls = SEEDED_CALLS.finditer(code)
    return not all(_has_seed(code, call) for call in calls)


def _has_seed(code: str, call: re.Match[str]) -> bool:
    """Return whether the arguments of a call contain a seed.

    `call` is a match in the code that ends with the opening parenthesis of the call.
    """
    depth = 1
    stop = call.end()
    last = min(len(code), call.end() + MAX_ARGUMENTS)
    while depth and stop < last:
        if code[stop] == "(":
            depth += 1
        elif code[stop] == ")":
            depth -= 1
        stop += 1
    arguments = code[call.end() : stop]
    return SEED_ARGUMENT.search(arguments) is not None
