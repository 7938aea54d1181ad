"""Explanations of calls with wrong arguments.

An explanation shows the signature of the called function and the parameters that are
most similar to an unknown keyword argument.
"""

from __future__ import annotations

import ast
import re
import types
from typing import Any

from stepper.diagnosis.in_kernel.close_matches import find_close_names
from stepper.diagnosis.in_kernel.expression_values import UserFrame
from stepper.diagnosis.in_kernel.failing_values import Finding, make_finding
from stepper.diagnosis.in_kernel.key_and_attribute_errors import (
    find_first_finding,
    find_stored_attribute,
)
from stepper.kernels.in_kernel.exception_facts import get_message
from stepper.kernels.in_kernel.safe_inspect import is_a, shorten
from stepper.kernels.in_kernel.signatures import describe_callable

# Characters of a name or expression, and of a signature.
NAME_LIMIT = 80
SIGNATURE_LIMIT = 300
# Messages about the number or the names of arguments, not about their types.
SIGNATURE_WORDS = re.compile(
    r"signature|argument(?! \d)(?!.*not support)|positional|keyword"
)
UNEXPECTED = re.compile(r"unexpected keyword argument '([^']+)'")
FUNCTION_NAME = re.compile(r"([\w.<>]+)\(\)")


def explain_call_error(
    error: BaseException,
    user_frames: list[UserFrame],
) -> Finding | None:
    """Return a finding with the signature of a function called with wrong arguments.

    Return None if the message is not about the number or names of arguments, or if the
    function is unknown.
    """
    message = get_message(error)
    if not SIGNATURE_WORDS.search(message):
        return None
    called_names = list_called_names(message)
    unexpected_name = ""
    unexpected = UNEXPECTED.search(message)
    if unexpected:
        unexpected_name = unexpected[1]

    def select_calls(user_frame: UserFrame) -> list[Any]:
        """Return the calls of the function that the message names.

        If the message names none, return the call nearest to the failing expression.
        """
        calls = []
        for node in user_frame.nodes:
            if isinstance(node, ast.Call):
                calls.append(node)
        if not called_names:
            return calls[:1]
        return [call for call in calls if get_called_name(call) in called_names]

    def explain(
        node: Any,
        user_frame: UserFrame,
        caller: UserFrame | None,
    ) -> Finding | None:
        """Return a finding with the signature of a called function, or None."""
        function = find_function(node.func, user_frame)
        signature = describe_callable(function)
        if signature is None:
            return None
        expression = shorten(ast.unparse(node.func), NAME_LIMIT)
        sentence = expression + shorten(signature.text, SIGNATURE_LIMIT)
        if unexpected_name:
            names = signature.parameter_names
            sentence += describe_similar_parameters(unexpected_name, names)
        return make_finding(sentence)

    return find_first_finding(select_calls, user_frames, explain)


def list_called_names(message: str) -> list[str]:
    """Return the names by which the source may call the function of an error message.

    Return an empty list if the message does not name the function.
    """
    function_name = FUNCTION_NAME.match(message)
    if function_name is None:
        return []
    # For `Class.__init__`, the call has the name of the class.
    path = function_name[1].split(".")
    return path[-2:]


def describe_similar_parameters(name: str, parameters: list[str]) -> str:
    """Return a clause on the parameters similar to a name, or an empty string."""
    similar = find_close_names(name, parameters)
    if not similar:
        return ""
    short_name = shorten(name, NAME_LIMIT)
    alternatives = ", ".join(similar)
    return f"; closest to `{short_name}`: {alternatives}"


def get_called_name(call: ast.Call) -> str:
    """Return the name of the called function or method, or an empty string."""
    function = call.func
    identifier = getattr(function, "id", "")
    name = getattr(function, "attr", identifier)
    return str(name)


def find_function(node: Any, user_frame: UserFrame) -> Any:
    """Return the function or the bound method that an expression refers to.

    The expression is not evaluated. Raise CannotEval if a value in the expression is
    unknown. Return None if a class does not define the method.
    """
    if not isinstance(node, ast.Attribute):
        return user_frame.values[node]
    value = user_frame.values[node.value]
    if is_a(value, types.ModuleType):
        return user_frame.values[node]
    if is_a(value, type):
        return find_stored_attribute(value, node.attr)
    function = find_stored_attribute(type(value), node.attr)
    if type(function) is types.FunctionType:
        return types.MethodType(function, value)
    return function
