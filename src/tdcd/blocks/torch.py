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
from jax.experimental.buffer_callback import ExecutionContext, buffer_callback
from numpy.typing import NDArray

from tdcd.core.objective import Tree
from tdcd.core.words import counted

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class TorchBlock:
    """A silo's part of the model written in PyTorch.

    JAX calls the module and its backward pass client by client, on the CPU only: convenient, and slower than a block
    written in JAX. The module runs in evaluation mode, so that dropout does nothing. It may hold no state besides its
    trainable parameters, since hubs average those and nothing else: buffers (batch normalisation's running statistics)
    and frozen parameters are refused. Like every block it must work row by row, and its last layer, the silo's slice
    of the shared classifier, should have no bias.

    Attributes:
        make: builds the module, which maps ``[rows, *feature_shape]`` to ``[rows, C]``. It is called several times and
            must build the same module each time, except for the random initial values of its parameters.

    .. code-block:: python

        TorchBlock(lambda: nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 1, bias=False)))
    """

    make: "Callable[[], nn.Module]"

    def __post_init__(self) -> None:
        """Say at once if PyTorch is missing."""
        _torch()

    def init(self, key: Array, feature_shape: tuple[int, ...], num_outputs: int) -> Tree:
        """The parameters, by name, of a module made with PyTorch's generator seeded from ``key``."""
        module = _Module(self.make, seed=int(jax.random.bits(key)))
        outputs = module.outputs(feature_shape)
        if outputs != (num_outputs,):
            raise ValueError(
                f"the module maps a sample of shape {feature_shape} to {outputs}, but the task needs ({num_outputs},): "
                f"give its last layer {counted(num_outputs, 'output')}"
            )
        return {name: jnp.array(value) for name, value in module.start().items()}

    def phi(self, block: Tree, features: Array) -> Array:
        """The module's outputs ``[rows, C]``, differentiable with respect to both arguments."""
        if jax.default_backend() != "cpu":
            raise RuntimeError(f"TorchBlock runs on the CPU, not on {jax.default_backend()}: set JAX_PLATFORMS=cpu")
        module = _Module(self.make, seed=0)
        shape = (features.shape[0], *module.outputs(features.shape[1:]))

        @jax.custom_vjp
        def call(block: Tree, features: Array) -> Any:
            return _on_host(module.forward, jnp.empty(shape, features.dtype), block, features)

        def backward(inputs: tuple[Tree, Array], slopes: Array) -> Any:
            return _on_host(module.backward, inputs, *inputs, slopes)

        call.defvjp(lambda *inputs: (call(*inputs), inputs), backward)
        scores: Array = call(block, features)
        return scores


class _Module:
    """A module as pure functions from NumPy arrays to NumPy arrays."""

    def __init__(self, make: "Callable[[], nn.Module]", seed: int) -> None:
        torch = _torch()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._module: Any = make().eval()
        # A call puts its parameters into the module while it runs, and JAX may run two calls at once.
        self._lock = Lock()
        for name, _ in self._module.named_buffers():
            raise ValueError(
                f"the module has a buffer '{name}', which hubs would not average: use layers without buffers, "
                "for example GroupNorm instead of BatchNorm"
            )
        for name, value in self._module.named_parameters():
            if not value.requires_grad:
                raise ValueError(f"the module's parameter '{name}' is frozen, but a block trains all its parameters")

    def start(self) -> dict[str, NDArray[Any]]:
        """The values that the parameters were made with."""
        return {name: value.detach().numpy() for name, value in self._module.named_parameters()}

    def outputs(self, feature_shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape to which one sample is mapped."""
        torch = _torch()
        try:
            with torch.no_grad():
                return tuple(self._module(torch.zeros(1, *feature_shape)).shape[1:])
        except RuntimeError as error:
            layers = (getattr(layer, "in_features", None) for layer in self._module.modules())
            width = next((found for found in layers if found is not None), None)
            if len(feature_shape) == 1 and width not in (None, *feature_shape):
                raise ValueError(
                    f"the module takes {counted(width, 'feature')}, but the silo has {feature_shape[0]}: give its "
                    f"first layer {counted(feature_shape[0], 'input')}"
                ) from None
            raise ValueError(f"the module does not take a sample of shape {feature_shape}: {error}") from None

    def forward(self, block: Tree, features: NDArray[Any]) -> Any:
        torch = _torch()
        weights = {name: torch.tensor(value) for name, value in block.items()}
        with torch.no_grad(), self._lock:
            return torch.func.functional_call(self._module, weights, torch.tensor(features)).numpy()

    def backward(self, block: Tree, features: NDArray[Any], slopes: NDArray[Any]) -> tuple[Tree, Any]:
        """The gradients of the sum of ``slopes`` times the outputs."""
        torch = _torch()
        weights = {name: torch.tensor(value, requires_grad=True) for name, value in block.items()}
        inputs = torch.tensor(features, requires_grad=True)
        with torch.enable_grad(), self._lock:
            outputs = torch.func.functional_call(self._module, weights, inputs)
            sources = [*weights.values(), inputs]
            gradients = torch.autograd.grad(outputs, sources, torch.tensor(slopes), materialize_grads=True)
        *of_weights, of_inputs = (gradient.numpy() for gradient in gradients)
        return dict(zip(weights, of_weights, strict=True)), of_inputs


def _on_host(function: Callable[..., Any], result: Any, *arguments: Any) -> Any:
    """``function`` of NumPy arrays, called from a compiled program; ``result`` has the shapes of what it returns.

    ``jax.pure_callback`` does not work here: it copies arguments on a thread pool whose last thread may be waiting in
    the callback, and turns float64 to float32 on threads where x64 was not enabled.
    """

    def fill(_: ExecutionContext, outputs: Tree, *inputs: Tree) -> None:
        values = function(*jax.tree.map(np.asarray, inputs))
        for buffer, value in zip(jax.tree.leaves(outputs), jax.tree.leaves(values), strict=True):
            np.asarray(buffer)[...] = value

    return buffer_callback(fill, result, vmap_method="sequential")(*arguments)


def _torch() -> Any:
    try:
        return import_module("torch")
    except ImportError as error:
        raise ImportError("TorchBlock needs PyTorch: pip install 'tdcd[torch]'") from error
