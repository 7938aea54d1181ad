"""Snapshots of torch's tensors on the CPU, and of its random number generators."""

from __future__ import annotations

import sys
from typing import Any

from stepper.kernels.in_kernel.undo.object_snapshots import (
    BYTE_SECONDS,
    Row,
    UnprotectedError,
    is_equal,
)


def take_tensor(value: Any) -> Any:
    content = value.detach().clone()
    return content, value.requires_grad, value.grad if value.is_leaf else None


def list_tensor_children(state: Any) -> Any:
    return [state[2]]


def list_current_children(value: Any) -> Any:
    """Return the tensor whose memory a view uses, and the gradient of a tensor."""
    return [value._base, value.grad if value.is_leaf else None]


def get_bytes(tensor: Any) -> Any:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(sys.modules["torch"].uint8)


def is_same_tensor(value: Any, state: Any) -> bool:
    content, requires_grad, gradient = state
    if value.dtype != content.dtype or value.shape != content.shape:
        return False
    if value.requires_grad != requires_grad:
        return False
    if value.is_leaf and value.grad is not gradient:
        return False
    return bool(sys.modules["torch"].equal(get_bytes(value), get_bytes(content)))


def restore_tensor(value: Any, state: Any) -> None:
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
    torch = sys.modules["torch"]
    if value.device.type != "cpu" or value.layout is not torch.strided:
        raise UnprotectedError(f"tensor on {value.device.type}")
    if value.is_quantized:
        raise UnprotectedError("quantized tensor")
    size = value.numel() * value.element_size()
    return size * BYTE_SECONDS, size


def sample_tensor(value: Any) -> Any:
    return value._version, value.data_ptr(), tuple(value.shape)


def take_generator(value: Any) -> Any:
    return value.get_state().tolist()


def restore_generator(value: Any, state: Any) -> None:
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
    is_same=is_equal(take_generator),
    restore=restore_generator,
)
