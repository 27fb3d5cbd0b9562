"""A PyTorch module as a block, unchanged. Needs the extra ``tdcd[torch]``."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tdcd.objective import Tree

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class TorchBlock:
    """A silo's part of the model written in PyTorch.

    JAX calls the module, and its backward pass, on the CPU, client by client: convenient, but much slower than a block
    written in JAX. The module runs in evaluation mode, so dropout does nothing. It may hold no state beside its
    trainable parameters, since hubs average those and nothing else: buffers (batch normalisation's running statistics)
    and frozen parameters are refused. Like every block it must work row by row, and its last layer, a slice of the
    shared classifier, should have no bias.

    Attributes:
        make: builds the module, which maps ``[rows, *feature_shape]`` to ``[rows, C]``. It is called several times and
            must build the same module each time, but for the random values its parameters start with.

    >>> from torch import nn  # doctest: +SKIP
    >>> TorchBlock(lambda: nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 1, bias=False)))  # doctest: +SKIP
    """

    make: "Callable[[], nn.Module]"

    def __post_init__(self) -> None:
        """Say so at once where PyTorch is missing."""
        _torch()

    def init(self, key: Array, feature_shape: tuple[int, ...], num_outputs: int) -> Tree:
        """The parameters of a module made with PyTorch's generator seeded from ``key``, by name."""
        module = _Module(self.make, seed=int(jax.random.bits(key)))
        outputs = module.outputs(feature_shape)
        if outputs != (num_outputs,):
            raise ValueError(
                f"the module maps a sample of shape {feature_shape} to {outputs}, but this task needs ({num_outputs},): "
                f"let its last layer have {num_outputs} outputs"
            )
        return {name: jnp.array(value.detach().numpy()) for name, value in module.parameters().items()}

    def phi(self, block: Tree, features: Array) -> Array:
        """The module's outputs ``[rows, C]``, differentiable with respect to both arguments."""
        module = _Module(self.make, seed=0)
        scores = jax.ShapeDtypeStruct((len(features), *module.outputs(features.shape[1:])), features.dtype)

        @jax.custom_vjp
        def call(block: Tree, features: Array) -> Array:
            return jax.pure_callback(module.forward, scores, block, features, vmap_method="sequential")

        def backward(inputs: tuple[Tree, Array], slopes: Array) -> tuple[Tree, Array]:
            return jax.pure_callback(module.backward, inputs, *inputs, slopes, vmap_method="sequential")

        call.defvjp(lambda *inputs: (call(*inputs), inputs), backward)
        return call(block, features)


class _Module:
    """A module as functions of its parameters and inputs, from NumPy arrays to NumPy arrays."""

    def __init__(self, make: "Callable[[], nn.Module]", seed: int) -> None:
        torch = _torch()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._module = make().eval()
        # functional_call puts the parameters into the module while it runs, and JAX may run two calls at once.
        self._lock = Lock()
        for name, _ in self._module.named_buffers():
            raise ValueError(
                f"the module has a buffer '{name}', which hubs do not average: use layers without buffers, "
                "for example GroupNorm for BatchNorm"
            )
        for name, value in self._module.named_parameters():
            if not value.requires_grad:
                raise ValueError(f"the module's parameter '{name}' is frozen: blocks train all their parameters")

    def parameters(self) -> "dict[str, nn.Parameter]":
        return dict(self._module.named_parameters())

    def outputs(self, feature_shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that one sample of zeros is mapped to."""
        torch = _torch()
        with torch.no_grad():
            return tuple(self._module(torch.zeros(1, *feature_shape)).shape[1:])

    def forward(self, block: Tree, features: Array) -> NDArray[Any]:
        torch = _torch()
        with torch.no_grad(), self._lock:
            weights = {name: _tensor(value) for name, value in block.items()}
            return torch.func.functional_call(self._module, weights, (_tensor(features),)).numpy()

    def backward(self, block: Tree, features: Array, slopes: Array) -> tuple[Tree, NDArray[Any]]:
        """The gradients of the sum of ``slopes`` times the outputs."""
        torch = _torch()
        weights = {name: _tensor(value).requires_grad_() for name, value in block.items()}
        inputs = _tensor(features).requires_grad_()
        with torch.enable_grad(), self._lock:
            scores = torch.func.functional_call(self._module, weights, (inputs,))
            gradients = torch.autograd.grad(
                scores, [*weights.values(), inputs], _tensor(slopes), materialize_grads=True
            )
        *of_weights, of_inputs = (gradient.numpy() for gradient in gradients)
        return dict(zip(weights, of_weights, strict=True)), of_inputs


def _tensor(array: Any) -> Any:
    return _torch().tensor(np.asarray(array))


def _torch() -> Any:
    try:
        return import_module("torch")
    except ImportError as error:
        raise ImportError("TorchBlock needs PyTorch: pip install 'tdcd[torch]'") from error
