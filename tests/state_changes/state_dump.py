"""A deep description of a kernel's state as text, to compare two kernels.

It runs inside the kernel and imports only the standard library. It shares no code with
stepper. Values are described by type, contents, order and dtype. Aliases are described
separately, as groups of paths to one object, so that one difference in a value does not
change the description of another name.
"""

import collections
import contextvars
import enum
import gc
import hashlib
import io
import json
import os
import re
import sys
import types
import warnings

LINES_PER_NAME = 20_000
PATHS_PER_OBJECT = 12
SHORT = 60  # number of elements that are described one by one
DEPTH = 150
ATOMS = (type(None), bool, int, float, complex, type(Ellipsis), type(NotImplemented))
# Names that IPython itself binds.
IPYTHON_NAMES = re.compile(
    r"(_+|_\d+|_i+\d*|_[iod]h|_exit_code|In|Out|exit|quit|get_ipython|__\w+__)"
)
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
# Variables of the environment that differ between any two kernels.
FOREIGN_VARIABLES = re.compile(r"JPY_\w+|STEPPER_\w+|IPYKERNEL_\w+|_")
PATCHED_CLASSES = (
    ("pandas", "DataFrame"),
    ("pandas", "Series"),
    ("collections", "Counter"),
)
PATCHED_MODULES = (
    "statistics",
    "math",
    "time",
    "random",
    "builtins",
    "numpy",
    "pandas",
)
LIBRARY_TYPES_AS_TEXT = (
    "datetime",
    "decimal",
    "fractions",
    "pathlib",
    "uuid",
    "zoneinfo",
    "ipaddress",
)


def sort_values(values, key=None):
    """Return a sorted list; a cell may have replaced `sorted`."""
    elements = list(values)
    elements.sort(key=key)
    return elements


def get_type_name(value):
    """Return the module and name of a value's type."""
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def digest(data):
    """Return a short hash of bytes."""
    return hashlib.sha256(data).hexdigest()[:20]


def shorten(text):
    """Return the text, or its hash if it is long."""
    if len(text) <= 400:
        return text
    data = text.encode("utf-8", "surrogatepass")
    return f"{len(text)} characters, hash {digest(data)}"


class Description:
    """The lines that describe the objects reachable from each root."""

    def __init__(self, folder):
        self.folder = folder
        self.lines = []
        self.paths_in_root = {}
        self.paths = {}  # id → paths of an object with an identity
        self.memory = {}  # id of an owner of memory → paths with offsets
        self.alive = []  # ids stay unique while the objects exist
        self.is_truncated = False

    def describe_root(self, name, value):
        """Return the lines on one name."""
        self.lines = []
        self.paths_in_root = {}
        self.is_truncated = False
        self.visit(name, value, 0)
        if self.is_truncated:
            self.lines.append(f"{name}: more objects are not described")
        return self.lines

    def add(self, path, text):
        """Add a line."""
        text = ADDRESS.sub("ADDRESS", text).replace(self.folder, "FOLDER")
        self.lines.append(f"{path}: {shorten(text)}")

    def enter(self, path, value):
        """Record an object with an identity; return False if its root contains it."""
        self.alive.append(value)
        key = id(value)
        paths = self.paths.setdefault(key, [])
        if len(paths) < PATHS_PER_OBJECT:
            paths.append(path)
        if key in self.paths_in_root:
            self.add(path, f"the same object as {self.paths_in_root[key]}")
            return False
        self.paths_in_root[key] = path
        return True

    def visit(self, path, value, depth):
        """Describe a value and what it refers to."""
        if len(self.lines) > LINES_PER_NAME or depth > DEPTH:
            self.is_truncated = True
            return
        kind = type(value)
        if kind in ATOMS:
            self.add(path, repr(value))
        elif kind is str or kind is bytes:
            self.add(path, f"{kind.__name__} {value!r}")
        elif isinstance(value, types.ModuleType):
            self.visit_module(path, value, depth)
        elif isinstance(value, enum.Enum):
            self.add(path, f"member {get_type_name(value)}.{value.name}")
            self.visit_attributes(path, value, depth, skip=("_value_", "_name_"))
        elif kind.__module__ in LIBRARY_TYPES_AS_TEXT:
            self.add(path, f"{get_type_name(value)} {value!r}")
        else:
            self.visit_object(path, value, depth)

    def visit_object(self, path, value, depth):
        """Describe an object by the first function that fits."""
        for describe in DESCRIBERS:
            if describe(self, path, value, depth):
                return
        if self.enter(path, value):
            self.visit_instance(path, value, depth)

    def visit_module(self, path, module, depth):
        """Describe a module: its variables if it belongs to the user."""
        self.add(path, f"module {module.__name__}")
        if is_user_module(module, self.folder) and self.enter(path, module):
            for name, value in list(vars(module).items()):
                if not re.fullmatch(r"__\w+__", name):
                    self.visit(f"{path}.{name}", value, depth + 1)

    def visit_children(self, path, pairs, depth):
        """Describe elements with their positions or keys."""
        for suffix, value in pairs:
            self.visit(f"{path}{suffix}", value, depth + 1)

    def visit_attributes(self, path, value, depth, skip=()):
        """Describe instance attributes and slots."""
        try:
            attributes = object.__getattribute__(value, "__dict__")
        except AttributeError:
            attributes = {}
        has_any = False
        if isinstance(attributes, dict):
            for name in sort_values(attributes, key=str):
                if name not in skip:
                    has_any = True
                    self.visit(f"{path}.{name}", attributes[name], depth + 1)
        for owner in type(value).__mro__:
            for name, member in vars(owner).items():
                if isinstance(member, types.MemberDescriptorType) and name not in skip:
                    try:
                        slot = member.__get__(value, type(value))
                    except AttributeError:
                        continue
                    has_any = True
                    self.visit(f"{path}.{name}", slot, depth + 1)
        return has_any

    def visit_instance(self, path, value, depth):
        """Describe an object of any class."""
        self.add(path, f"object {get_type_name(value)}")
        if is_user_class(type(value)):
            self.visit(f"{path}.__class__", type(value), depth + 1)
        has_attributes = self.visit_attributes(path, value, depth)
        if isinstance(value, BaseException):
            self.visit(f"{path}.args", value.args, depth + 1)
        if has_attributes or is_user_class(type(value)):
            return
        self.visit_reduced(path, value, depth)

    def visit_reduced(self, path, value, depth):
        """Describe an object of a C extension by the state that pickle would store."""
        try:
            reduced = value.__reduce_ex__(4)
        except Exception:
            self.add(path, "its state is not accessible")
            return
        if isinstance(reduced, str):
            self.add(path, f"global {reduced}")
            return
        self.alive.append(reduced)
        for position, part in enumerate(reduced[1:4], 1):
            is_iterator = isinstance(part, collections.abc.Iterator)
            state = list(part) if is_iterator else part
            self.alive.append(state)
            if state is not None:
                self.visit(f"{path}<state {position}>", state, depth + 1)

    def format_aliases(self):
        """Return groups of paths that lead to one object or one block of memory."""
        groups = [("same object", paths) for paths in self.paths.values()]
        groups += [("shared memory", paths) for paths in self.memory.values()]
        return sort_values(
            f"{title}: {' = '.join(sort_values(paths))}"
            for title, paths in groups
            if len(paths) > 1
        )


def is_user_class(kind):
    """Return whether a class was defined in a cell or in a module of the user."""
    return is_user_name(getattr(kind, "__module__", ""))


def is_user_name(module_name):
    """Return whether a module's name is that of the user's code."""
    if module_name == "__main__":
        return True
    module = sys.modules.get(module_name)
    return module is not None and is_user_module(module, FOLDER)


def is_user_module(module, folder):
    """Return whether a module is a file of the folder, or was made by hand."""
    if module.__name__ in ("__main__", "builtins"):
        return False
    path = getattr(module, "__file__", None)
    if path is not None:
        return path.startswith(folder)
    has_spec = getattr(module, "__spec__", None) is not None
    return not has_spec and "." not in module.__name__


def describe_code(code):
    """Return what distinguishes the code of a function, without its position."""
    constants = [
        describe_code(each) if isinstance(each, types.CodeType) else repr(each)
        for each in code.co_consts
    ]
    parts = (code.co_code, code.co_names, code.co_varnames, constants)
    return digest(ADDRESS.sub("ADDRESS", repr(parts)).encode())


def describe_function(self, path, value, depth):
    if not isinstance(value, types.FunctionType):
        return False
    if not is_user_name(value.__module__):
        self.add(path, f"function {value.__module__}.{value.__qualname__}")
        return True
    if not self.enter(path, value):
        return True
    self.add(path, f"function {value.__name__}, code {describe_code(value.__code__)}")
    self.visit(f"{path}.__defaults__", value.__defaults__, depth + 1)
    self.visit(f"{path}.__kwdefaults__", value.__kwdefaults__, depth + 1)
    names = value.__code__.co_freevars
    for name, cell in zip(names, value.__closure__ or ()):
        cell_path = f"{path}<closure {name}>"
        if self.enter(cell_path, cell):
            try:
                content = cell.cell_contents
            except ValueError:
                self.add(cell_path, "empty")
            else:
                self.visit(f"{cell_path}.value", content, depth + 1)
    for name in sort_values(value.__dict__):
        self.visit(f"{path}.{name}", value.__dict__[name], depth + 1)
    return True


def describe_method(self, path, value, depth):
    if isinstance(value, types.MethodType):
        self.add(path, "method")
        self.visit(f"{path}.__self__", value.__self__, depth + 1)
        self.visit(f"{path}.__func__", value.__func__, depth + 1)
        return True
    if isinstance(value, types.BuiltinFunctionType):
        self.add(path, f"builtin {value.__qualname__}")
        owner = value.__self__
        if owner is not None and not isinstance(owner, (types.ModuleType, type)):
            self.visit(f"{path}.__self__", owner, depth + 1)
        return True
    return False


def describe_class(self, path, value, depth):
    if not isinstance(value, type):
        return False
    if not is_user_class(value):
        self.add(path, f"class {value.__module__}.{value.__qualname__}")
        return True
    if not self.enter(path, value):
        return True
    self.add(path, f"class {value.__qualname__}")
    self.visit(f"{path}.__bases__", value.__bases__, depth + 1)
    subclasses = [each.__qualname__ for each in type.__subclasses__(value)]
    self.add(f"{path}.__subclasses__", repr(subclasses))
    ignored = ("__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__")
    for name, member in list(vars(value).items()):
        if name in ignored or name.startswith("_abc_"):
            continue
        if isinstance(member, (types.GetSetDescriptorType, types.MemberDescriptorType)):
            self.add(f"{path}.{name}", "slot")
        elif isinstance(member, (staticmethod, classmethod)):
            self.visit(f"{path}.{name}", member.__func__, depth + 1)
        elif isinstance(member, property):
            for part in (member.fget, member.fset, member.fdel):
                self.visit(f"{path}.{name}<property>", part, depth + 1)
        else:
            self.visit(f"{path}.{name}", member, depth + 1)
    return True


def describe_tuple(self, path, value, depth):
    if type(value) is not tuple and not hasattr(type(value), "_fields"):
        return False
    if not isinstance(value, tuple):
        return False
    if id(value) in self.paths_in_root:
        self.add(path, "a tuple that is described above")
        return True
    self.alive.append(value)
    self.paths_in_root[id(value)] = path
    self.add(path, f"{get_type_name(value)} of {len(value)}")
    visit_elements(self, path, value, depth)
    return True


def visit_elements(self, path, values, depth):
    """Describe the elements of a sequence, in one line if all are atoms."""
    if all(type(each) in ATOMS or type(each) in (str, bytes) for each in values):
        typed = [(type(each).__name__, each) for each in values]
        self.add(path, f"elements {typed!r}")
        return
    pairs = ((f"[{index}]", each) for index, each in enumerate(values))
    self.visit_children(path, pairs, depth)


def describe_sequence(self, path, value, depth):
    if not isinstance(value, (list, collections.deque)):
        return False
    if self.enter(path, value):
        plain = list if isinstance(value, list) else collections.deque
        elements = list(plain.__iter__(value))
        bound = getattr(value, "maxlen", None)
        self.add(path, f"{get_type_name(value)} of {len(elements)}, bound {bound}")
        self.alive.append(elements)
        visit_elements(self, path, elements, depth)
        describe_subclass(self, path, value, depth, (list, collections.deque))
    return True


def describe_subclass(self, path, value, depth, plain):
    """Describe what an instance of a subclass has in addition to its elements."""
    if type(value) not in plain:
        if is_user_class(type(value)):
            self.visit(f"{path}.__class__", type(value), depth + 1)
        self.visit_attributes(path, value, depth)


def describe_mapping(self, path, value, depth):
    if isinstance(value, types.MappingProxyType):
        self.add(path, "mapping proxy")
        self.visit(f"{path}.copy", dict(value), depth + 1)
        return True
    if not isinstance(value, dict):
        return False
    if self.enter(path, value):
        if value is NAMESPACE:
            self.add(path, "the namespace")
            return True
        self.add(path, f"{get_type_name(value)} of {len(value)}")
        if isinstance(value, collections.defaultdict):
            factory = value.default_factory
            self.visit(f"{path}.default_factory", factory, depth + 1)
        for position, (key, item) in enumerate(list(dict.items(value))):
            if type(key) in ATOMS or type(key) is str:
                name = f"[{key!r}]"
            else:
                name = f"[key {position}]"
                self.visit(f"{path}{name}<key>", key, depth + 1)
            # The line on the value has the key, so that the order of keys is compared.
            self.visit(f"{path}{shorten(name)}", item, depth + 1)
        plain = (
            dict,
            collections.defaultdict,
            collections.OrderedDict,
            collections.Counter,
        )
        describe_subclass(self, path, value, depth, plain)
    return True


def describe_set(self, path, value, depth):
    if not isinstance(value, (set, frozenset)):
        return False
    if isinstance(value, set) and not self.enter(path, value):
        return True
    self.add(path, f"{get_type_name(value)} of {len(value)}")
    elements = list(value)
    self.alive.append(elements)
    texts = []
    objects = []
    for each in elements:
        if type(each) in ATOMS or type(each) in (str, bytes):
            texts.append(f"{type(each).__name__} {each!r}")
        else:
            objects.append((describe_alone(self, each), each))
    self.add(path, f"elements {sort_values(texts)!r}")
    objects.sort(key=lambda pair: pair[0])
    pairs = ((f"<element {n}>", pair[1]) for n, pair in enumerate(objects))
    self.visit_children(path, pairs, depth)
    describe_subclass(self, path, value, depth, (set, frozenset))
    return True


def describe_alone(self, value):
    """Return the description of a value as text, by which a set is sorted."""
    alone = Description(self.folder)
    return "\n".join(alone.describe_root("element", value))


def describe_buffer(self, path, value, depth):
    name = get_type_name(value)
    if isinstance(value, bytearray):
        if self.enter(path, value):
            self.add(path, f"{name} {bytes(value)!r}")
        return True
    if name == "array.array":
        if self.enter(path, value):
            self.add(path, f"{name} {value.typecode} {value.tolist()!r}")
        return True
    if isinstance(value, memoryview):
        if self.enter(path, value):
            try:
                self.add(path, f"{name} {value.format} {value.tobytes()!r}")
                self.visit(f"{path}.obj", value.obj, depth + 1)
            except ValueError:
                self.add(path, "released memoryview")
        return True
    if name.startswith("_ctypes.") or "ctypes" in repr(type(value).__mro__):
        if self.enter(path, value):
            try:
                self.add(path, f"ctypes {bytes(memoryview(value))!r}")
            except TypeError:
                self.add(path, f"ctypes {type(value).__name__}")
        return True
    return False


def describe_suspended(self, path, value, depth):
    """Describe generators and coroutines by the position and the variables."""
    for kind, prefix in (
        (types.GeneratorType, "gi"),
        (types.CoroutineType, "cr"),
        (types.AsyncGeneratorType, "ag"),
    ):
        if isinstance(value, kind):
            if self.enter(path, value):
                frame = getattr(value, f"{prefix}_frame")
                code = getattr(value, f"{prefix}_code")
                position = frame.f_lasti if frame is not None else "finished"
                self.add(path, f"{kind.__name__} {code.co_name} at {position}")
                if frame is not None:
                    for name, variable in sort_values(frame.f_locals.items()):
                        self.visit(f"{path}<{name}>", variable, depth + 1)
            return True
    return False


def describe_iterator(self, path, value, depth):
    kind = type(value)
    is_builtin = kind.__module__ in ("builtins", "itertools")
    if not is_builtin or not isinstance(value, collections.abc.Iterator):
        return False
    if self.enter(path, value):
        self.add(path, f"iterator {kind.__name__}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.visit_reduced(path, value, depth)
    return True


def describe_stream(self, path, value, depth):
    if isinstance(value, (io.StringIO, io.BytesIO)):
        if self.enter(path, value):
            content = "closed"
            if not value.closed:
                content = f"{value.getvalue()!r} at {value.tell()}"
            self.add(path, f"{get_type_name(value)} {content}")
        return True
    if isinstance(value, io.IOBase):
        if self.enter(path, value):
            self.add(path, f"{get_type_name(value)} {describe_file(value)}")
        return True
    return False


def describe_file(value):
    """Return the name, mode and position of a file."""
    if value.closed:
        return "closed"
    try:
        position = value.tell()
    except (OSError, ValueError) as error:
        position = str(error)
    if "telling position disabled" in str(position):
        position = f"buffer at {value.buffer.tell()}"
    return f"{getattr(value, 'name', '')} {getattr(value, 'mode', '')} at {position}"


def describe_known_type(self, path, value, depth):
    """Describe types of the standard library that hide their state."""
    name = get_type_name(value)
    if name in ("_thread.lock", "_thread.RLock"):
        self.add(path, f"{name} {'locked' if is_locked(value) else 'free'}")
    elif name in ("re.Pattern", "builtins.range", "builtins.slice"):
        self.add(path, repr(value))
    elif name == "functools.partial":
        if self.enter(path, value):
            self.add(path, name)
            parts = (value.func, value.args, value.keywords)
            self.visit_children(path, zip((".func", ".args", ".keywords"), parts), 1)
    elif name == "functools._lru_cache_wrapper":
        if self.enter(path, value):
            self.add(path, f"{name} {value.cache_info()}")
            self.visit(f"{path}.__wrapped__", value.__wrapped__, depth + 1)
            for part in sort_values(
                gc.get_referents(value), key=lambda item: str(type(item))
            ):
                if type(part) is dict and part is not value.__dict__:
                    self.visit(f"{path}<contents>", part, depth + 1)
    elif name in ("weakref.ReferenceType", "weakref.weakref"):
        target = value()
        self.add(path, f"weak reference, {'dead' if target is None else 'alive'}")
        if target is not None:
            self.visit(f"{path}()", target, depth + 1)
    elif name in ("_contextvars.ContextVar", "contextvars.ContextVar"):
        if self.enter(path, value):
            self.add(path, f"context variable {value.name}")
            self.visit(f"{path}.get()", CONTEXT.get(value, "no value"), depth + 1)
    elif name == "sqlite3.Connection":
        if self.enter(path, value):
            self.add(path, describe_database(value))
    elif name in ("builtins.dict_keys", "builtins.dict_values", "builtins.dict_items"):
        self.add(path, name)
        self.visit(f"{path}.mapping", dict(value.mapping), depth + 1)
        owners = [each for each in gc.get_referents(value) if isinstance(each, dict)]
        self.visit_children(path, ((".owner", each) for each in owners), depth)
    else:
        return False
    return True


def describe_resource(self, path, value, depth):
    """Describe threads, processes, loggers and other objects with outside state."""
    name = get_type_name(value)
    if name == "threading.Thread":
        if self.enter(path, value):
            self.add(path, f"thread, alive {value.is_alive()}")
    elif name == "subprocess.Popen":
        if self.enter(path, value):
            self.add(path, f"process {value.args!r}, exit code {value.poll()}")
    elif isinstance(value, types.CodeType):
        self.add(path, f"code {describe_code(value)}")
    elif name in ("logging.Logger", "logging.RootLogger"):
        if self.enter(path, value):
            self.add(path, describe_logger(value))
    elif name == "random.Random":
        if self.enter(path, value):
            self.add(path, f"random.Random {digest(repr(value.getstate()).encode())}")
    elif type(value).__module__.split(".")[0] == "IPython":
        self.add(path, name)
    elif name == "builtins.cell":
        if self.enter(path, value):
            try:
                self.visit(f"{path}.value", value.cell_contents, depth + 1)
            except ValueError:
                self.add(path, "empty cell")
    else:
        return False
    return True


def is_locked(lock):
    """Return whether a lock is taken."""
    if hasattr(lock, "locked"):
        return lock.locked()
    return "unlocked" not in repr(lock)


def describe_database(connection):
    """Return the contents of an SQLite database."""
    try:
        statements = list(connection.iterdump())
    except Exception as error:
        return f"database: {error}"
    return f"database, in transaction {connection.in_transaction}, {statements!r}"


def describe_logger(logger):
    """Return the settings of a logger."""
    handlers = [
        (
            get_type_name(handler),
            handler.level,
            getattr(handler.formatter, "_fmt", None),
        )
        for handler in logger.handlers
    ]
    parts = (logger.name, logger.level, logger.propagate, logger.disabled, handlers)
    return f"logger {parts!r}"


def describe_numpy(self, path, value, depth):
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    if isinstance(value, numpy.ndarray):
        if self.enter(path, value):
            describe_array(self, path, value, depth)
        return True
    if isinstance(value, (numpy.generic, numpy.dtype)):
        self.add(path, f"{get_type_name(value)} {value!r}")
        return True
    if isinstance(value, numpy.ufunc):
        self.add(path, f"ufunc {value.__name__}")
        return True
    for kind, get_state in (
        (numpy.random.Generator, lambda: value.bit_generator.state),
        (numpy.random.RandomState, lambda: value.get_state(legacy=False)),
        (numpy.random.BitGenerator, lambda: value.state),
    ):
        if isinstance(value, kind):
            if self.enter(path, value):
                self.add(path, f"{kind.__name__} {describe_state(get_state())}")
            return True
    return False


def describe_state(state):
    """Return the hash of the state of a random number generator."""
    numpy = sys.modules["numpy"]
    with numpy.printoptions(threshold=sys.maxsize, precision=17):
        return digest(repr(state).encode())


def describe_array(self, path, array, depth):
    """Describe an array: dtype, shape, flags, memory and elements."""
    numpy = sys.modules["numpy"]
    flags = array.flags
    layout = f"C {flags.c_contiguous}, F {flags.f_contiguous}, write {flags.writeable}"
    self.add(
        path, f"{get_type_name(array)} {array.dtype.descr} {array.shape}, {layout}"
    )
    owner = array
    while isinstance(owner.base, numpy.ndarray):
        owner = owner.base
    base = owner if owner.base is None else owner.base
    if isinstance(base, memoryview):
        base = base.obj
    address = array.__array_interface__["data"][0]
    start = owner.__array_interface__["data"][0]
    self.alive.append(base)
    paths = self.memory.setdefault(id(base), [])
    if len(paths) < PATHS_PER_OBJECT and array.size:
        paths.append(f"{path} + {address - start}")
    if base is not array and id(base) in self.paths:
        paths.append(f"{self.paths[id(base)][0]} + 0")
    plain = numpy.asarray(array)
    if isinstance(array, numpy.ma.MaskedArray):
        plain = array.data
        mask = numpy.ma.getmaskarray(array)
        self.add(f"{path}.mask", f"{mask.tolist()!r}, fill {array.fill_value!r}")
    if plain.dtype.hasobject:
        pairs = ((f"[{n}]", each) for n, each in enumerate(plain.ravel().tolist()))
        self.visit_children(path, pairs, depth)
    elif plain.dtype.names or plain.size <= SHORT:
        self.add(path, f"elements {plain.tolist()!r}")
    else:
        self.add(path, f"elements {digest(numpy.ascontiguousarray(plain).tobytes())}")
    describe_subclass(self, path, array, depth, (numpy.ndarray, numpy.ma.MaskedArray))


def describe_pandas(self, path, value, depth):
    pandas = sys.modules.get("pandas")
    if pandas is None or not hasattr(pandas, "DataFrame"):
        return False
    if isinstance(value, pandas.DataFrame):
        if self.enter(path, value):
            self.add(path, f"{get_type_name(value)} {value.shape}")
            describe_labels(self, f"{path}.columns", value.columns, depth)
            describe_labels(self, f"{path}.index", value.index, depth)
            for position in range(value.shape[1]):
                column = value.iloc[:, position]
                column_path = f"{path}[column {position}]"
                describe_column(self, column_path, column.array, depth)
            describe_frame_attributes(self, path, value, depth)
        return True
    if isinstance(value, pandas.Series):
        if self.enter(path, value):
            self.add(path, f"{get_type_name(value)} {value.shape}")
            self.visit(f"{path}.name", value.name, depth + 1)
            describe_labels(self, f"{path}.index", value.index, depth)
            describe_column(self, path, value.array, depth)
            describe_frame_attributes(self, path, value, depth)
        return True
    if isinstance(value, pandas.Index):
        describe_labels(self, path, value, depth)
        return True
    if isinstance(value, pandas.api.extensions.ExtensionArray):
        if self.enter(path, value):
            describe_column(self, path, value, depth)
        return True
    extension_dtype = pandas.api.extensions.ExtensionDtype
    scalars = (pandas.Timestamp, pandas.Timedelta, pandas.Period, pandas.Interval)
    if value is pandas.NA or value is pandas.NaT:
        self.add(path, repr(value))
        return True
    if isinstance(value, (*scalars, extension_dtype, pandas.offsets.BaseOffset)):
        self.add(path, f"{get_type_name(value)} {value!r}")
        return True
    return False


def describe_labels(self, path, index, depth):
    """Describe an index: type, dtype, names and labels."""
    frequency = getattr(index, "freq", None)
    header = f"{get_type_name(index)} {index.dtype!r} {list(index.names)!r} {frequency}"
    self.add(path, header)
    labels = index.tolist()
    if len(labels) <= SHORT:
        self.add(path, f"labels {[(type(x).__name__, x) for x in labels]!r}")
    else:
        self.add(path, f"labels {digest(repr(labels).encode())}")


def describe_column(self, path, array, depth):
    """Describe the array of a column: dtype and elements."""
    self.add(path, f"{type(array).__name__} {array.dtype!r}")
    elements = list(array.tolist() if hasattr(array, "tolist") else array)
    if str(array.dtype) == "object":
        self.alive.append(elements)
        visit_elements(self, path, elements, depth)
    elif str(array.dtype) == "category":
        describe_labels(self, f"{path}.categories", array.categories, depth)
        self.add(path, f"ordered {array.ordered}, codes {array.codes.tolist()!r}")
    elif len(elements) <= SHORT:
        self.add(path, f"elements {elements!r}")
    else:
        self.add(path, f"elements {digest(repr(elements).encode())}")


def describe_frame_attributes(self, path, frame, depth):
    """Describe what a user attached to a frame or series."""
    self.visit(f"{path}.attrs", dict(frame.attrs), depth + 1)
    self.add(f"{path}.flags", repr(frame.flags.allows_duplicate_labels))
    hidden = ("_mgr", "_item_cache", "_attrs", "_flags", "_name", "_cacher")
    internal = (*hidden, "_references", "_is_copy", "_AXIS_REVERSED")
    attributes = object.__getattribute__(frame, "__dict__")
    for name in sort_values(set(attributes) - set(internal)):
        self.visit(f"{path}.{name}", attributes[name], depth + 1)


def describe_matplotlib(self, path, value, depth):
    artist = sys.modules.get("matplotlib.artist")
    if artist is None or not isinstance(value, artist.Artist):
        return False
    if self.enter(path, value):
        self.add(path, f"artist {get_type_name(value)} {describe_artist(value)}")
        children = value.get_children()
        self.alive.append(children)
        pairs = ((f"<child {n}>", child) for n, child in enumerate(children))
        self.visit_children(path, pairs, depth)
    return True


ARTIST_GETTERS = [
    "get_label",
    "get_visible",
    "get_alpha",
    "get_text",
    "get_xydata",
    "get_color",
    "get_linewidth",
    "get_linestyle",
    "get_marker",
    "get_facecolor",
    "get_edgecolor",
    "get_xlim",
    "get_ylim",
    "get_xscale",
    "get_yscale",
    "get_xlabel",
    "get_ylabel",
    "get_title",
    "get_size_inches",
    "get_dpi",
    "get_clim",
    "get_offsets",
    "get_array",
    "get_autoscale_on",
    "get_fontsize",
    "get_position",
]


def describe_artist(artist):
    """Return the properties of an artist as text."""
    parts = []
    for name in ARTIST_GETTERS:
        getter = getattr(artist, name, None)
        if getter is None:
            continue
        try:
            result = getter()
        except Exception as error:
            result = type(error).__name__
        if hasattr(result, "tolist"):
            result = (type(result).__name__, result.tolist())
        parts.append(f"{name[4:]}={result!r}")
    return ADDRESS.sub("ADDRESS", " ".join(parts))


def describe_torch(self, path, value, depth):
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return False
    if self.enter(path, value):
        shape = tuple(value.shape)
        grad_mode = f"requires_grad {value.requires_grad}, leaf {value.is_leaf}"
        self.add(path, f"{get_type_name(value)} {value.dtype} {shape}, {grad_mode}")
        plain = value.detach().cpu()
        self.add(path, f"elements {plain.reshape(-1).tolist()!r}")
        key = ("torch", value.untyped_storage().data_ptr())
        paths = self.memory.setdefault(key, [])
        if value.numel():
            paths.append(f"{path} + {value.storage_offset()}")
        if value.is_leaf:
            self.visit(f"{path}.grad", value.grad, depth + 1)
    return True


def describe_polars(self, path, value, depth):
    polars = sys.modules.get("polars")
    if polars is None or not isinstance(value, (polars.DataFrame, polars.Series)):
        return False
    if self.enter(path, value):
        schema = getattr(value, "schema", None) or (value.name, value.dtype)
        content = value.rows() if hasattr(value, "rows") else value.to_list()
        self.add(path, f"{get_type_name(value)} {schema!r} {content!r}")
    return True


def describe_other_package(self, path, value, depth):
    name = get_type_name(value)
    if name == "PIL.Image.Image":
        if self.enter(path, value):
            self.add(
                path, f"{name} {value.mode} {value.size} {digest(value.tobytes())}"
            )
        return True
    if name.startswith("tqdm.") and hasattr(value, "n"):
        if self.enter(path, value):
            self.add(path, f"{name} {value.n} of {value.total}, {value.desc!r}")
        return True
    if name.startswith("plotly.") and hasattr(value, "to_plotly_json"):
        if self.enter(path, value):
            document = json.dumps(value.to_plotly_json(), default=repr, sort_keys=True)
            self.add(path, f"{name} {document}")
        return True
    if hasattr(value, "traits") and hasattr(value, "get_state"):
        if self.enter(path, value):
            state = {
                key: item
                for key, item in value.get_state().items()
                if not re.search(r"IPY_MODEL", repr(item))
            }
            self.add(path, f"{name} {state!r}")
        return True
    if name == "xml.etree.ElementTree.Element":
        if self.enter(path, value):
            etree = sys.modules["xml.etree.ElementTree"]
            self.add(path, f"{name} {etree.tostring(value)!r}")
        return True
    return False


DESCRIBERS = (
    describe_function,
    describe_method,
    describe_class,
    describe_numpy,
    describe_pandas,
    describe_torch,
    describe_matplotlib,
    describe_polars,
    describe_other_package,
    describe_tuple,
    describe_sequence,
    describe_mapping,
    describe_set,
    describe_buffer,
    describe_suspended,
    describe_iterator,
    describe_stream,
    describe_known_type,
    describe_resource,
)


def flatten(mapping, prefix=""):
    """Return the leaves of nested dicts with their paths."""
    leaves = {}
    for key, value in mapping.items():
        if isinstance(value, dict):
            leaves.update(flatten(value, f"{prefix}{key}."))
        else:
            leaves[f"{prefix}{key}"] = ADDRESS.sub("ADDRESS", repr(value))
    return leaves


def describe_members(owner):
    """Return the public members of a class or module: kinds, names and simple values."""
    members = []
    for name, member in sort_values(vars(owner).items()):
        if name.startswith("_") or isinstance(member, types.ModuleType):
            continue
        if type(member) in ATOMS or type(member) is str:
            text = repr(member)
        else:
            module = getattr(member, "__module__", "")
            origin = f"{module}.{getattr(member, '__qualname__', '')}"
            text = f"{type(member).__name__} {origin}"
        members.append(f"{name} = {text}")
    return members


def describe_packages():
    """Return the settings and the random numbers of packages."""
    settings = {}
    loaded = sys.modules.get
    random = loaded("random")
    if random is not None:
        settings["random numbers"] = [digest(repr(random.getstate()).encode())]
    numpy = loaded("numpy")
    if numpy is not None and "numpy.random" in sys.modules:
        state = numpy.random.get_state(legacy=False)
        settings["numpy random numbers"] = [describe_state(state)]
    if numpy is not None:
        options = [repr(sort_values(numpy.get_printoptions().items(), key=str))]
        settings["numpy print options"] = options
        settings["numpy error handling"] = [repr(numpy.geterr())]
    torch = loaded("torch")
    if torch is not None:
        generator = torch.get_rng_state().numpy().tobytes()
        settings["torch random numbers"] = [digest(generator)]
        settings["torch settings"] = [
            repr(torch.get_default_dtype()),
            repr(torch.get_num_threads()),
            repr(torch.is_grad_enabled()),
        ]
    matplotlib = loaded("matplotlib")
    if matplotlib is not None:
        parameters = dict.items(matplotlib.rcParams)
        # IPython sets `interactive` after the cell that imports pyplot.
        settings["matplotlib settings"] = [
            f"{key} = {item!r}" for key, item in parameters if key != "interactive"
        ]
    pyplot = loaded("matplotlib.pyplot")
    if pyplot is not None:
        settings["matplotlib figures"] = [repr(pyplot.get_fignums())]
    pandas_config = loaded("pandas._config.config")
    if pandas_config is not None:
        options = flatten(pandas_config._global_config)
        settings["pandas options"] = [
            f"{key} = {text}" for key, text in options.items()
        ]
    sklearn = loaded("sklearn")
    if sklearn is not None:
        settings["sklearn configuration"] = [
            repr(sort_values(sklearn.get_config().items()))
        ]
    return settings


def describe_process():
    """Return the settings of the process and of the standard library."""
    settings = {}
    loaded = sys.modules.get
    settings["environment variables"] = [
        f"{name} = {text}"
        for name, text in sort_values(os.environ.items())
        if not FOREIGN_VARIABLES.fullmatch(name)
    ]
    settings["working directory"] = [os.getcwd()]
    # Packages add filters for their own categories when they are imported.
    settings["warning filters"] = [
        repr(each)
        for each in warnings.filters
        if each[2].__module__ in ("builtins", "__main__")
    ]
    settings["sys.path"] = list(map(str, sys.path))
    settings["recursion limit"] = [repr(sys.getrecursionlimit())]
    settings["standard output"] = [get_type_name(sys.stdout), get_type_name(sys.stderr)]
    settings["garbage collector"] = [repr(gc.isenabled())]
    if loaded("logging") is not None:
        logging = loaded("logging")
        loggers = [logging.getLogger()]
        loggers += [
            each
            for each in logging.Logger.manager.loggerDict.values()
            if isinstance(each, logging.Logger) and (each.handlers or each.level)
        ]
        settings["logging settings"] = sort_values(map(describe_logger, loggers))
    if loaded("decimal") is not None:
        settings["decimal context"] = [repr(loaded("decimal").getcontext())]
    if loaded("socket") is not None:
        settings["socket timeout"] = [repr(loaded("socket").getdefaulttimeout())]
    if loaded("time") is not None:
        settings["time zone"] = [repr(loaded("time").tzname)]
    settings["signal handlers"] = describe_signal_handlers()
    settings["running threads"] = [f"{count_user_threads()} threads"]
    return settings


def describe_settings(shell, folder):
    """Return the state outside the namespace: settings, random numbers, modules."""
    settings = {**describe_packages(), **describe_process()}
    loaded = sys.modules.get
    settings["IPython settings"] = describe_shell(shell)
    for name in PATCHED_MODULES:
        if loaded(name) is not None:
            settings[f"module {name}"] = describe_members(loaded(name))
    for module_name, name in PATCHED_CLASSES:
        owner = getattr(loaded(module_name), name, None)
        if owner is not None:
            settings[f"class {module_name}.{name}"] = describe_members(owner)
    for name, module in sort_values(sys.modules.items(), key=str):
        is_module = isinstance(module, types.ModuleType)
        if not is_module or name.startswith(("_stepper", "_ip", "__")):
            continue
        if is_user_module(module, folder):
            description = Description(folder)
            settings[f"module {name}"] = description.describe_root(name, module)
    return {
        name: [ADDRESS.sub("ADDRESS", line).replace(folder, "FOLDER") for line in lines]
        for name, lines in settings.items()
    }


def describe_signal_handlers():
    """Return the signals with a handler of the user."""
    import signal

    lines = []
    for number in sort_values(signal.valid_signals()):
        handler = signal.getsignal(number)
        if (
            getattr(handler, "__module__", "") == "__main__"
            or handler == signal.SIG_IGN
        ):
            lines.append(f"{number!r} = {getattr(handler, '__qualname__', handler)}")
    return lines


def count_user_threads():
    """Return how many threads run a function of the user."""
    threading = sys.modules["threading"]
    targets = [getattr(each, "_target", None) for each in threading.enumerate()]
    return sum(getattr(target, "__module__", "") == "__main__" for target in targets)


def describe_shell(shell):
    """Return what cells can change in IPython."""
    magics = [
        f"{kind} {name}"
        for kind, table in shell.magics_manager.magics.items()
        for name, function in table.items()
        if getattr(function, "__module__", "") == "__main__"
    ]
    callbacks = [
        f"{event} {callback.__qualname__}"
        for event, functions in shell.events.callbacks.items()
        for callback in functions
        if getattr(callback, "__module__", "") == "__main__"
    ]
    return [
        *sort_values(magics),
        *sort_values(callbacks),
        f"extensions {sort_values(shell.extension_manager.loaded)}",
        f"precision {shell.display_formatter.formatters['text/plain'].float_precision!r}",
        f"interactivity {shell.ast_node_interactivity}",
    ]


def is_user_variable(name, value):
    """Return whether a name of the namespace belongs to the user."""
    if IPYTHON_NAMES.fullmatch(name):
        return name == "__annotations__"
    if name == "open":
        return "IPython" not in getattr(value, "__module__", "")
    return True


def describe_names():
    """Return the descriptions of all names, and the aliases."""
    description = Description(FOLDER)
    names = {}
    for name, value in sort_values(NAMESPACE.items(), key=lambda item: item[0]):
        if is_user_variable(name, value):
            try:
                names[name] = description.describe_root(name, value)
            except Exception as error:
                names[name] = [f"{name}: not described: {type(error).__name__} {error}"]
    return {"names": names, "aliases": description.format_aliases()}


def write_state(shell, path, folder):
    """Write the description of the kernel's state to a file."""
    global NAMESPACE, FOLDER, CONTEXT
    NAMESPACE = shell.user_ns
    FOLDER = folder
    CONTEXT = contextvars.copy_context()
    limit = sys.getrecursionlimit()
    settings = describe_settings(shell, folder)
    sys.setrecursionlimit(max(limit, 20_000))
    try:
        document = describe_names()
    finally:
        sys.setrecursionlimit(limit)
    document["settings"] = settings
    with open(path, "w", encoding="utf-8") as stream:
        json.dump(document, stream)
