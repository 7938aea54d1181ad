"""What a value is, in a few words: type, shape, dtype, length, a short value; of a frame the columns that stand out."""

from __future__ import annotations

import datetime
import types

from stepper.diagnosis.inside.onspot import written, zone
from stepper.kernel.inside.base import (
    class_names,
    classes_of,
    guarded,
    is_a,
    is_pandas,
    lengths,
    name_of,
    of_library,
    one_of,
    short,
    top_module,
)

CELLS, COLUMNS, VALUE = 2_000_000, 400, 60
PLAIN = (int, float, bool, complex)
CALLABLE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodDescriptorType,
            types.ClassMethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
            staticmethod, classmethod)  # fmt: skip


def describe(value):
    kind = type(value)
    fact = {"type": short(name_of(kind), 60)}
    if value is None:
        return {"type": "None"}
    if one_of(kind, PLAIN):
        return {**fact, "value": short(repr(value), VALUE)}
    base = next((base for base in classes_of(kind) if one_of(base, lengths)), None)
    if base is not None:
        fact["len"] = base.__len__(value)
        guarded(inside, value, kind, fact)
    elif of_library(value):
        guarded(of_data, value, kind, fact)
    else:
        text = guarded(written, value)
        if text is not None:
            fact["value"] = text
        if kind is datetime.datetime and text is not None:
            fact["zone"] = zone(value)
    return fact


def inside(value, kind, fact):
    if kind is str or kind is bytes:
        if len(value) <= VALUE:
            fact["value"] = short(repr(value), VALUE)
    elif one_of(kind, (list, tuple)) and value:
        kinds = sorted({short(name_of(type(one)), 40) for one in value[:1000]})
        fact["of"] = kinds[:4]
        sizes = {type(one).__len__(one) for one in value[:1000] if one_of(type(one), (list, tuple, str, dict))}
        if sizes and len(sizes) <= 4 and "str" not in kinds:
            fact["lengths"] = sorted(sizes)
        if kinds in (["int"], ["str"], ["float"]) and len(value) <= 8:
            fact["value"] = short(repr(value), VALUE)
    elif is_a(value, dict):
        fact["keys"] = [short(repr(key), 40) for key in list(dict.keys(value))[:20] if one_of(type(key), (str, int))]


def of_data(value, kind, fact):
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        fact["shape"] = [int(n) for n in shape]
    dtype = getattr(value, "dtype", None)
    if dtype is not None:
        fact["dtype"] = short(str(dtype), 40)
        if shape == () and top_module(kind) == "numpy":
            fact["value"] = short(str(value), VALUE)
        fields = getattr(dtype, "names", None)
        if isinstance(fields, tuple):
            fact["fields"] = [short(str(one), 40) for one in fields[:40]]
    names = class_names(kind)
    cells = 1
    for n in fact.get("shape", ()):
        cells *= n
    if cells > CELLS:
        return
    if is_pandas(value, "DataFrame") and value.shape[1] <= COLUMNS:
        frame(value, fact)
    elif is_pandas(value, "Index") and len(value) <= 40:
        fact["labels"] = [short(repr(one), 40) for one in value.tolist() if one_of(type(one), (str, int))]
    elif is_pandas(value, "Series"):
        if str(value.dtype) in ("object", "str", "string") and len(value):
            first = value.iloc[0]
            fact["first"] = short(repr(first), 40) if type(first) is str else ""
        count = int(value.isna().sum())
        if count:
            fact["nan"] = count
    elif "numpy.ndarray" in names and value.dtype.kind == "f":
        import numpy

        bad = int(cells - numpy.isfinite(value).sum())
        if bad:
            fact["nan"] = bad
            if value.ndim == 2:
                per = (~numpy.isfinite(value)).sum(axis=0)
                fact["nan_columns"] = [[str(n), int(per[n])] for n in per.nonzero()[0][:6]]


def frame(value, fact):
    count = value.isna().sum()
    fact["nan_columns"] = [[short(str(name), 40), int(n)] for name, n in count[count > 0].items()][:6]
    kinds = [(short(str(name), 40), str(dtype)) for name, dtype in value.dtypes.items()]
    fact["text_columns"] = [[name, dtype] for name, dtype in kinds if dtype in ("object", "str", "string", "category")][
        :6
    ]
    fact["columns"] = [name for name, _ in kinds][:30]


def is_data(value):
    """Whether it is worth naming as an operand: no module, function or class."""
    return not is_a(value, (types.ModuleType, type)) and not callable_kind(type(value))


def callable_kind(kind):
    return one_of(kind, CALLABLE) or (
        name_of(kind) in ("ufunc", "_ArrayFunctionDispatcher") and top_module(kind) == "numpy"
    )
