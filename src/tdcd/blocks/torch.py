"""A PyTorch module as a block: its exported graph, run by JAX. Needs the extra ``tdcd[torch]``.

PyTorch is needed to build the module and to export it, once per shape of samples. From then on the block is a function
of JAX like any other: compiled, mapped over clients, differentiated, on any device.
"""

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tdcd.blocks.operators import ELEMENTWISE, NAMES, OTHERS, SPATIAL, UnsupportedError
from tdcd.core.objective import Tree
from tdcd.core.words import counted

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class TorchBlock:
    """A silo's part of the model written in PyTorch.

    The module runs in evaluation mode, so that dropout does nothing. What hubs average and clients train are its
    trainable parameters. Buffers and frozen parameters are constants, and must be the same whenever the module is
    made; batch normalisation that would take its statistics from a client's rows is refused. Like every block it must
    work row by row, and its last layer, the silo's slice of the shared classifier, should have no bias.

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
        seed = int(jax.random.bits(key))
        module = _made(self.make, seed)
        again = _constants(_made(self.make, seed ^ 1))
        for name, value in _constants(module).items():
            if not np.array_equal(value, again[name]):
                raise ValueError(
                    f"the module's '{name}' is not trained, and has other values whenever the module is made: "
                    "parties would not have the same model. Draw it from a generator with a fixed seed, or load it"
                )
        outputs = _outputs(module, feature_shape)
        if outputs != (num_outputs,):
            raise ValueError(
                f"the module maps a sample of shape {feature_shape} to {outputs}, but the task needs ({num_outputs},): "
                f"give its last layer {counted(num_outputs, 'output')}"
            )
        parameters = {name: jnp.array(value) for name, value in _trained(module).items()}
        # Whatever cannot be exported, or has no counterpart in JAX, is refused here.
        samples = jax.ShapeDtypeStruct((2, *feature_shape), jnp.float32)  # type: ignore[no-untyped-call]
        jax.eval_shape(self.phi, parameters, samples)
        return parameters

    def phi(self, block: Tree, features: Array) -> Array:
        """The module's outputs ``[rows, C]``."""
        dtype = jnp.result_type(*jax.tree.leaves(block))
        return _program(self.make, features.shape[1:], dtype.name).run(block, features.astype(dtype))

    def module(self, block: Tree) -> "nn.Module":
        """The module with a block's parameters, in evaluation mode: from here on, all is PyTorch."""
        torch, module = _torch(), _made(self.make, 0)
        state = {name: torch.from_numpy(np.array(value)) for name, value in block.items()}
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if parameter.requires_grad:
                    parameter.copy_(state[name])
        made: nn.Module = module
        return made


_LOCK = RLock()
"""PyTorch seeds and traces by state that all threads share."""


def _made(make: "Callable[[], nn.Module]", seed: int) -> Any:
    """The module, in evaluation mode."""
    torch = _torch()
    with _LOCK, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module: Any = make()
    for name, layer in module.named_modules():
        if not isinstance(layer, torch.nn.modules.batchnorm._BatchNorm):
            continue
        if layer.training or layer.running_mean is None:
            kind = type(layer).__name__
            raise ValueError(
                f"the module's layer '{name}' is {kind}, whose statistics would be those of one client's rows: use "
                f"layers that treat every row alike, for example GroupNorm, or keep the statistics that it has by "
                f"{kind}.eval() where the module is made"
            )
    if not _trained(module):
        raise ValueError("the module has no parameters to train: all of them are frozen, or there are none")
    return module.cpu().eval()


def _trained(module: Any) -> dict[str, NDArray[Any]]:
    """What is trained: the parameters that are not frozen."""
    return {name: value.detach().numpy() for name, value in module.named_parameters() if value.requires_grad}


def _constants(module: Any) -> dict[str, NDArray[Any]]:
    """What stays: buffers and frozen parameters."""
    frozen = {name: value.detach().numpy() for name, value in module.named_parameters() if not value.requires_grad}
    return frozen | {name: value.detach().numpy() for name, value in module.named_buffers()}


def _outputs(module: Any, feature_shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape to which one sample is mapped."""
    torch = _torch()
    try:
        with torch.no_grad():
            scores = module(torch.zeros(1, *feature_shape))
    except RuntimeError as error:
        layers = (getattr(layer, "in_features", None) for layer in module.modules())
        width = next((width for width in layers if width is not None), None)
        if len(feature_shape) == 1 and width not in (None, *feature_shape):
            raise ValueError(
                f"the module takes {counted(width, 'feature')}, but the silo has {feature_shape[0]}: give its "
                f"first layer {counted(feature_shape[0], 'input')}"
            ) from None
        raise ValueError(f"the module does not take a sample of shape {feature_shape}: {error}") from None
    if not isinstance(scores, torch.Tensor):
        raise ValueError(f"the module returns a {type(scores).__name__}, not an array of scores")
    return tuple(scores.shape[1:])


class _ExportedProgram(NamedTuple):
    """A module's graph of operators, and the arrays in it that are not trained."""

    graph: Any
    """Of ``torch.fx``."""
    inputs: Mapping[str, str]
    """Parameters, buffers and constants by the names of the graph's inputs; the features are no part of it."""
    constants: Mapping[str, NDArray[Any]]

    def run(self, block: Tree, features: Array) -> Array:
        """The graph over JAX arrays, operator by operator; under ``jit`` this happens once."""
        values: dict[Any, Any] = {}
        for node in self.graph.nodes:
            if node.op == "placeholder":
                name = self.inputs.get(node.name)
                source = block if name in block else self.constants
                values[node] = features if name is None else _plain(source[name])
            elif node.op == "output":
                scores: Array = _logical(values[node.args[0][0]])
                return scores
            else:
                values[node] = _applied(node, values)
        raise AssertionError("a graph ends with an output")


class _ChannelsLast(NamedTuple):
    """An array that PyTorch sees as ``[rows, channels, *places]``, laid out as ``[rows, *places, channels]``."""

    array: Array


def _logical(value: Any) -> Any:
    """An array as PyTorch sees it."""
    return jnp.moveaxis(value.array, -1, 1) if isinstance(value, _ChannelsLast) else value


def _bare(value: Any) -> Any:
    return value.array if isinstance(value, _ChannelsLast) else value


def _channels_last(value: Any) -> Any:
    return value.array if isinstance(value, _ChannelsLast) else jnp.moveaxis(value, 1, -1)


def _applied(node: Any, values: Mapping[Any, Any]) -> Any:
    """What a node of the graph gives."""
    node_type = type(node)

    def value_of(argument: Any) -> Any:
        if isinstance(argument, node_type):
            return values[argument]
        if isinstance(argument, list | tuple):
            return [value_of(part) for part in argument]
        return _plain(argument)

    arguments = [value_of(argument) for argument in node.args]
    options = {name: value_of(value) for name, value in node.kwargs.items() if name not in _WITHOUT_MEANING}
    name = _operator_name(node.target)
    if name in _CHECKS:
        return None
    if name is None:
        return node.target(*arguments)
    try:
        result = _called(name, arguments, options)
    except UnsupportedError as error:
        raise ValueError(f"{_place(node)} has {error}, which has no counterpart in JAX here") from None
    return _as_recorded(node, result)


_WITHOUT_MEANING = {"layout", "device", "pin_memory", "memory_format", "non_blocking", "implicit", "copy"}
"""Arguments that say where numbers are, not what they are."""
_CHECKS = {"_assert_tensor_metadata", "sym_constrain_range", "sym_constrain_range_for_size"}
"""Operators that only check what exporting has settled."""
_AS_ANOTHER = {
    "max.other",
    "min.other",
    "max.unary_out",
    "var.default",
    "std.default",
    "where.default",
    "softmax.Dimname",
}
"""Forms of an operator whose arguments mean something else: PyTorch writes them as other operators."""


def _called(name: str, arguments: list[Any], options: dict[str, Any]) -> Any:
    if name in ELEMENTWISE:
        values = [*arguments, *options.values()]
        images = [value.array for value in values if isinstance(value, _ChannelsLast)]
        others = [value for value in values if isinstance(value, Array) and value.ndim]
        if images and not others and len({image.ndim for image in images}) == 1:
            options = {name: _bare(value) for name, value in options.items()}
            return _ChannelsLast(ELEMENTWISE[name](*map(_bare, arguments), **options))
    elif name in SPATIAL:
        first, *rest = arguments
        last = _channels_last(first)
        rank = int(name[-2]) if name[-1] == "d" else None
        if rank is not None and last.ndim != rank + 2:
            raise UnsupportedError(f"images of shape {last.shape}, without an axis of rows,")
        result = SPATIAL[name](last, *map(_logical, rest), **options)
        return [_ChannelsLast(result[0])] if isinstance(result, tuple) else _ChannelsLast(result)
    function = ELEMENTWISE.get(name) or OTHERS[name]
    plain = [[_logical(part) for part in value] if isinstance(value, list) else _logical(value) for value in arguments]
    return function(*plain, **{name: _logical(value) for name, value in options.items()})


def _as_recorded(node: Any, result: Any) -> Any:
    """The result in the type that PyTorch gives it; its shape must be PyTorch's, too."""
    recorded = node.meta.get("val")
    if isinstance(result, list | tuple) and not isinstance(result, _ChannelsLast):
        return [_typed(node, part, own) for part, own in zip(result, recorded, strict=False)]
    return _typed(node, result, recorded)


def _typed(node: Any, result: Any, recorded: Any) -> Any:
    if not hasattr(recorded, "dtype"):
        return result
    dtype = _dtype(recorded.dtype)
    if isinstance(result, _ChannelsLast):
        result = _ChannelsLast(result.array.astype(dtype))
        shape = (result.array.shape[0], result.array.shape[-1], *result.array.shape[1:-1])
    else:
        result = jnp.asarray(result, dtype)
        shape = result.shape
    wanted = [size if isinstance(size, int) else None for size in recorded.shape]
    fits = len(shape) == len(wanted) and all(want in (None, have) for want, have in zip(wanted, shape, strict=True))
    assert fits, f"{_place(node)} gives {shape} here and {tuple(wanted)} in PyTorch"
    return result


def _plain(value: Any) -> Any:
    """PyTorch's types as JAX's, arrays as JAX's, and all else as it is."""
    if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        return _dtype(value)
    return jnp.asarray(value) if isinstance(value, np.ndarray) else value


def _dtype(dtype: Any) -> Any:
    """With 32 bits for 64, where JAX has no more."""
    name = str(dtype).removeprefix("torch.")
    return jnp.dtype(name if jnp.result_type(float) == jnp.float64 else name.replace("64", "32"))


def _operator_name(target: Any) -> str | None:
    """An ATen operator's name without its form; None for Python's own operators, on sizes and on tuples."""
    if getattr(target, "__module__", "") in ("_operator", "math"):
        return None
    name: str = target.name() if hasattr(target, "name") else str(target)
    return name.removeprefix("aten::").partition(".")[0]


def _is_known(target: Any) -> bool:
    name = _operator_name(target)
    if name is None or name in _CHECKS:
        return True
    return name in NAMES and str(target).startswith("aten.") and str(target).removeprefix("aten.") not in _AS_ANOTHER


@lru_cache(maxsize=64)
def _program(make: "Callable[[], nn.Module]", feature_shape: tuple[int, ...], dtype: str) -> _ExportedProgram:
    """The module's graph for samples of a shape and numbers of a type."""
    torch = _torch()
    with _LOCK, warnings.catch_warnings():
        # Of PyTorch's own parts.
        warnings.simplefilter("ignore")
        module = _made(make, 0).to(getattr(torch, dtype))
        exported = _exported(module, torch.zeros(3, *feature_shape, dtype=getattr(torch, dtype)))
        table = torch.export.default_decompositions()
        for operator in [*table]:
            if _is_known(operator):
                table.pop(operator)
        exported = exported.run_decompositions(table)
        signature = exported.graph_signature
        if changed := [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]:
            raise ValueError(
                f"the module changes '{changed[0]}' when it is called: a block is a function of parameters and features"
            )
        for node in exported.graph.nodes:
            if node.op == "call_function" and not _is_known(node.target):
                raise ValueError(
                    f"{_place(node)} has no counterpart in JAX here: write it with other operators, listed in "
                    "docs/pytorch.md, or write the block in JAX, as in examples/own_block.py"
                )
        # Parameters that layers share have one name in the block, and several in the graph.
        first = {id(value): name for name, value in reversed([*module.named_parameters()])}
        shared = {name: first[id(value)] for name, value in module.named_parameters(remove_duplicate=False)}
        inputs = {
            **{name: shared[target] for name, target in signature.inputs_to_parameters.items()},
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        constants = {
            name: value.detach().numpy() for name, value in exported.constants.items() if hasattr(value, "detach")
        }
        return _ExportedProgram(exported.graph, inputs, {**constants, **_constants(module)})


def _exported(module: Any, features: Any) -> Any:
    torch = _torch()
    try:
        exported = torch.export.export(
            module, (features,), dynamic_shapes=({0: torch.export.Dim("rows")},), strict=False
        )
    except Exception as error:
        words = str(error)
        if "data-dependent" in words:
            *_, (file, line) = [("", ""), *re.findall(r'File "([^"]+)", line (\d+), in', words)]
            where = f" ({file}, line {line})" if file else ""
            raise ValueError(
                f"the module decides by the values of its features what to do{where}: a block does the same for every "
                "row; choose by torch.where"
            ) from None
        if "Constraints violated" in words:
            raise ValueError(
                "the module works only for some numbers of rows: a block takes any number and treats every row alike. "
                "Write x.shape[0] for len(x), which PyTorch takes as fixed"
            ) from None
        raise ValueError(f"the module cannot be exported by torch.export: {words.strip().splitlines()[0]}") from None
    _keep_stops(exported.graph_module, torch)
    return exported


def _keep_stops(graph_module: Any, torch: Any) -> None:
    """Gradients stop at what was computed under ``torch.no_grad``: decomposing would forget that."""
    for node in [*graph_module.graph.nodes]:
        if str(node.target) != "wrap_with_set_grad_enabled" or node.args[0]:
            continue
        for part in [*node.users]:
            with graph_module.graph.inserting_after(part):
                stopped = graph_module.graph.call_function(torch.ops.aten.detach.default, (part,))
            stopped.meta = dict(part.meta)
            part.replace_all_uses_with(stopped, delete_user_cb=lambda user, own=stopped: user is not own)
    graph_module.recompile()


def _place(node: Any) -> str:
    """An operator with the layer and the line that it comes from."""
    layers = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values() if path]
    lines = re.findall(r'File "([^"]+)", line (\d+), in', node.meta.get("stack_trace") or "")
    lines = [line for line in lines if "/torch/nn/" not in line[0]] or lines
    where = [f"layer '{layer}'" for layer in layers[-1:]] + [f"{file}, line {line}" for file, line in lines[-1:]]
    return f"the module's operator {node.target}" + (f" ({'; '.join(where)})" if where else "")


def _torch() -> Any:
    try:
        return import_module("torch")
    except ImportError as error:
        raise ImportError("TorchBlock needs PyTorch: pip install 'tdcd[torch]'") from error
