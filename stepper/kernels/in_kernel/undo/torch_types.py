"""Snapshots of torch's tensors on the CPU, and of its random number generators."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from stepper.kernels.in_kernel.undo.object_snapshots import (
    BYTE_SECONDS,
    Row,
    UnprotectedError,
    make_is_same,
)


class TensorState(NamedTuple):
    """A copy of a tensor's content, and whether gradients are computed for it.

    `gradient` is that of a leaf tensor, or None.
    """

    content: Any
    requires_grad: bool
    gradient: Any


def take_tensor(value: Any) -> TensorState:
    """Return the state of a tensor, with a copy of its content."""
    content = value.detach().clone()
    return TensorState(content, value.requires_grad, get_gradient(value))


def get_gradient(value: Any) -> Any:
    """Return the gradient of a tensor, or None if the tensor is not a leaf.

    torch warns of an access to the gradient of other tensors.
    """
    return value.grad if value.is_leaf else None


def list_tensor_children(state: TensorState) -> Any:
    """Return the gradient in the state of a tensor."""
    return [state.gradient]


def list_current_children(value: Any) -> Any:
    """Return the tensor whose memory a view uses, and the gradient of a tensor."""
    return [value._base, get_gradient(value)]


def get_bytes(tensor: Any) -> Any:
    """Return the content of a tensor as bytes, by which NaNs can be compared, too.

    The result is a flat tensor.
    """
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(sys.modules["torch"].uint8)


def is_same_tensor(value: Any, state: TensorState) -> bool:
    """Return whether a tensor has the content and the gradient of a state."""
    content, requires_grad, gradient = state
    if value.dtype != content.dtype or value.shape != content.shape:
        return False
    if value.requires_grad != requires_grad:
        return False
    if value.is_leaf and value.grad is not gradient:
        return False
    return bool(sys.modules["torch"].equal(get_bytes(value), get_bytes(content)))


def restore_tensor(value: Any, state: TensorState) -> None:
    """Restore the content, dtype, requires_grad and gradient of a tensor.

    The content is written into the same memory if the tensor has the former shape and
    dtype.
    """
    content, requires_grad, gradient = state
    data = value.data
    if data.shape == content.shape and data.dtype == content.dtype:
        data.copy_(content)
    else:
        value.data = content.clone()
    if value.requires_grad != requires_grad:
        value.requires_grad_(requires_grad)
    if value.is_leaf and value.grad is not gradient:
        value.grad = gradient


def measure_tensor(value: Any) -> Any:
    """Return the seconds and the bytes that a copy of a tensor costs.

    Raise UnprotectedError if the tensor is sparse or quantized, or not on the CPU.
    """
    torch = sys.modules["torch"]
    if value.device.type != "cpu":
        raise UnprotectedError(f"tensor on {value.device.type}")
    if value.layout is not torch.strided:
        raise UnprotectedError(f"{value.layout} tensor")
    if value.is_quantized:
        raise UnprotectedError("quantized tensor")
    size = value.numel() * value.element_size()
    return size * BYTE_SECONDS, size


def sample_tensor(value: Any) -> Any:
    """Return a fingerprint of a tensor: its version, its address and its shape."""
    return value._version, value.data_ptr(), tuple(value.shape)


def take_generator(value: Any) -> Any:
    """Return the state of a random generator as a list of bytes."""
    return value.get_state().tolist()


def restore_generator(value: Any, state: Any) -> None:
    """Set the state of a random generator."""
    torch = sys.modules["torch"]
    value.set_state(torch.tensor(state, dtype=torch.uint8))


TENSOR = Row(
    take=take_tensor,
    children=list_tensor_children,
    is_same=is_same_tensor,
    restore=restore_tensor,
    measure=measure_tensor,
    sample=sample_tensor,
    list_current=list_current_children,
)
GENERATOR = Row(
    take=take_generator,
    is_same=make_is_same(take_generator),
    restore=restore_generator,
)
