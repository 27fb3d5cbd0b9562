"""PyTorch's operators in JAX: what a module's exported graph is made of.

Every function has the arguments of the ATen operator of its name. Gradients are PyTorch's, also where there is a
choice: at the corner of a ReLU, among equal numbers under a maximum, at the ends of a clamp.

Images are ``[rows, channels, height, width]`` in PyTorch. The operators of :data:`SPATIAL` get and give them as
``[rows, height, width, channels]``, in which convolutions are products of matrices, and those of :data:`ELEMENTWISE`
keep that layout. So a network of convolutions transposes its images once, not in every layer.
"""

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tdcd.blocks.convolution import convolve, pool


class UnsupportedError(ValueError):
    """An operator with arguments that have no counterpart here."""


# Products.


def linear(rows: Array, weight: Array, bias: Array | None = None) -> Array:
    """``rows weight' + bias``."""
    scores = rows @ weight.T
    return scores if bias is None else scores + bias


def addmm(bias: Array, rows: Array, weight: Array, beta: float = 1, alpha: float = 1) -> Array:
    """``beta bias + alpha rows weight``, also of batches of matrices."""
    return beta * bias + alpha * (rows @ weight)


def einsum(equation: str, operands: Sequence[Array], path: Any = None) -> Array:
    """A sum of products."""
    return jnp.einsum(equation, *operands)


def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Array:
    """Attention; a query that may see nothing gets zeros."""
    if dropout_p:
        raise UnsupportedError("dropout in evaluation mode")
    if enable_gqa:
        key, value = (jnp.repeat(part, query.shape[-3] // part.shape[-3], axis=-3) for part in (key, value))
    scores = query @ jnp.swapaxes(key, -1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    seen: Array | None = None
    if is_causal:
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    elif attn_mask is not None and attn_mask.dtype == bool:
        seen = attn_mask
    elif attn_mask is not None:
        scores, seen = scores + attn_mask, attn_mask != -jnp.inf
    if seen is None:
        return jax.nn.softmax(scores, axis=-1) @ value
    shares = jax.nn.softmax(jnp.where(seen, scores, _limits(scores).min), axis=-1)
    return jnp.where(seen, shares, 0) @ value


def embedding(weight: Array, indices: Array, padding_idx: int = -1, *_: Any) -> Array:
    """Rows of a table; the gradient of the row ``padding_idx`` is zero."""
    if padding_idx >= 0:
        weight = jnp.where((jnp.arange(len(weight)) == padding_idx)[:, None], jax.lax.stop_gradient(weight), weight)
    # PyTorch refuses an index that the table does not have. JAX would take another row without a word.
    return weight.at[jnp.where(indices < 0, len(weight), indices)].get(mode="fill", fill_value=jnp.nan)


def _limits(array: Array) -> Any:
    return jnp.finfo(array.dtype)  # type: ignore[no-untyped-call]


# Images, channels last.


def convolution(
    images: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] | str = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Array:
    """Convolution over any number of axes as products of unfolded images with the weights.

    Every client has its own weights. Mapped over clients these are batched matrix products, whereas
    ``lax.conv_general_dilated`` becomes a grouped convolution, which is several times slower.

    Args:
        images: ``[rows, *places, inputs]``.
        weight: ``[outputs, inputs / groups, *kernel]``.
    """
    axes, kernel = images.ndim - 2, weight.shape[2:]
    stride, dilation = _each(stride, axes), _each(dilation, axes)
    images = jnp.pad(images, [(0, 0), *_margins(padding, kernel, dilation), (0, 0)])
    weight = jnp.moveaxis(weight, (0, 1), (-1, -2))
    if groups == 1 and axes == 2 and {*stride, *dilation} == {1} and math.prod(kernel) > 1:
        convolved = convolve(images, weight)
    else:
        taps = _taps(images, kernel, stride, dilation)
        inputs, outputs = weight.shape[-2:]
        if groups == 1:
            unfolded = jnp.concatenate(taps, axis=-1)
            rows = unfolded.reshape(-1, unfolded.shape[-1]) @ weight.reshape(-1, outputs)
        elif inputs == 1 and outputs == groups:
            by_tap = [tap * own for tap, own in zip(taps, weight.reshape(-1, outputs), strict=True)]
            rows = sum(by_tap[1:], start=by_tap[0])
        else:
            unfolded = jnp.stack([tap.reshape(-1, groups, inputs) for tap in taps], axis=2)
            unfolded = unfolded.reshape(-1, groups, len(taps) * inputs)
            own = weight.reshape(-1, groups, outputs // groups)
            rows = jnp.einsum("rgi,igo->rgo", unfolded, own)
        convolved = rows.reshape(*taps[0].shape[:-1], outputs)
    return convolved if bias is None else convolved + bias


def any_convolution(
    images: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Array:
    """``aten.convolution``, which may be a transposed one."""
    if transposed:
        raise UnsupportedError("a transposed convolution")
    return convolution(images, weight, bias, stride, padding, dilation, groups)


def max_pool(
    images: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Array:
    """The largest of every window; its gradient goes to the first of equal ones."""
    axes = images.ndim - 2
    kernel, padding, dilation = _each(kernel_size, axes), _each(padding, axes), _each(dilation, axes)
    stride = _each(stride or kernel, axes)
    if ceil_mode:
        raise UnsupportedError("ceil_mode=True")
    if kernel == stride == (2, 2) and {*padding} == {0} and {*dilation} == {1}:
        return pool(images)
    margins = [(0, 0), *((margin, margin) for margin in padding), (0, 0)]
    images = jnp.pad(images, margins, constant_values=-jnp.inf)
    return _first_largest(_taps(images, kernel, stride, dilation))


def avg_pool(
    images: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    """The mean of every window."""
    axes = images.ndim - 2
    kernel, padding = _each(kernel_size, axes), _each(padding, axes)
    stride = _each(stride or kernel, axes)
    if ceil_mode:
        raise UnsupportedError("ceil_mode=True")

    def sums(array: Array) -> Array:
        padded = jnp.pad(array, [(0, 0), *((margin, margin) for margin in padding), (0, 0)])
        taps = _taps(padded, kernel, stride, (1,) * axes)
        return sum(taps[1:], start=taps[0])

    if divisor_override is None and not count_include_pad:
        return sums(images) / sums(jnp.ones((1, *images.shape[1:-1], 1), images.dtype))
    return sums(images) / (divisor_override or math.prod(kernel))


def adaptive_avg_pool(images: Array, output_size: Sequence[int]) -> Array:
    """The means of as many windows as there shall be outputs."""
    for axis, size in enumerate(_each(output_size, images.ndim - 2), start=1):
        windows = _windows(images.shape[axis], size)
        parts = [images.take(jnp.arange(begin, end), axis).mean(axis, keepdims=True) for begin, end in windows]
        images = parts[0] if size == 1 else jnp.concatenate(parts, axis)
    return images


def adaptive_max_pool(images: Array, output_size: Sequence[int]) -> tuple[Array, None]:
    """The largest of as many windows as there shall be outputs; where they were has no use in a score."""
    rows = []
    windows = [
        _windows(size, n) for size, n in zip(images.shape[1:-1], _each(output_size, images.ndim - 2), strict=True)
    ]
    for window in product(*windows):
        pixels = product(*(range(begin, end) for begin, end in window))
        rows.append(_first_largest([images[(slice(None), *pixel)] for pixel in pixels]))
    pooled = jnp.stack(rows, axis=1)
    return pooled.reshape(len(images), *(len(window) for window in windows), images.shape[-1]), None


def group_norm(
    images: Array, num_groups: int, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5, *_: Any
) -> Array:
    """Standardised over the places and channels of a group, row by row."""
    grouped = images.reshape(len(images), -1, num_groups, images.shape[-1] // num_groups)
    centred = grouped - grouped.mean((1, 3), keepdims=True)
    scaled = centred * jax.lax.rsqrt(jnp.square(centred).mean((1, 3), keepdims=True) + eps)
    return _affine(scaled.reshape(images.shape), weight, bias)


def batch_norm(
    images: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    training: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Array:
    """Scaled by statistics that do not change."""
    if training or running_mean is None or running_var is None:
        raise UnsupportedError("statistics of the rows of a call, which would be those of one client")
    return _affine((images - running_mean) * jax.lax.rsqrt(running_var + eps), weight, bias)


def fixed_batch_norm(
    images: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: float,
    eps: float,
) -> tuple[Array, None]:
    """:func:`batch_norm` as exporting writes it; the statistics of the rows are not asked for."""
    return batch_norm(images, weight, bias, running_mean, running_var, False, momentum, eps), None


def instance_norm(
    images: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Array:
    """Standardised over the places of a channel, row by row."""
    if use_input_stats:
        return group_norm(images, images.shape[-1], weight, bias, eps)
    return batch_norm(images, weight, bias, running_mean, running_var, False, momentum, eps)


def _affine(array: Array, weight: Array | None, bias: Array | None) -> Array:
    array = array if weight is None else array * weight
    return array if bias is None else array + bias


def _each(sizes: Sequence[int] | int, length: int) -> tuple[int, ...]:
    """A size per axis; one stands for all."""
    sizes = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    return sizes * length if len(sizes) == 1 else sizes


def _margins(padding: Sequence[int] | str, kernel: Sequence[int], dilation: Sequence[int]) -> list[tuple[int, int]]:
    if padding == "valid":
        return [(0, 0)] * len(kernel)
    if padding == "same":
        spare = [step * (size - 1) for size, step in zip(kernel, dilation, strict=True)]
        return [(size // 2, size - size // 2) for size in spare]
    return [(int(size), int(size)) for size in _each(padding, len(kernel))]  # type: ignore[arg-type]


def _taps(images: Array, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> list[Array]:
    """Per place of the kernel, the pixels that it meets: ``[rows, *places, channels]`` each."""
    sizes = images.shape[1:-1]
    places = [
        (size - step * (taps - 1) - 1) // skip + 1
        for size, taps, skip, step in zip(sizes, kernel, stride, dilation, strict=True)
    ]
    pixels = []
    for tap in product(*map(range, kernel)):
        begins = [step * index for index, step in zip(tap, dilation, strict=True)]
        ends = [begin + skip * (count - 1) + 1 for begin, skip, count in zip(begins, stride, places, strict=True)]
        pixels.append(jax.lax.slice(images, (0, *begins, 0), (len(images), *ends, images.shape[-1]), (1, *stride, 1)))
    return pixels


def _first_largest(parts: Sequence[Array]) -> Array:
    """The largest of arrays, place by place; the gradient goes to the first of equal ones."""
    largest = parts[0]
    for part in parts[1:]:
        largest = jnp.where(largest >= part, largest, part)
    return largest


def _windows(size: int, outputs: int) -> list[tuple[int, int]]:
    return [(index * size // outputs, -(-(index + 1) * size // outputs)) for index in range(outputs)]


# Other normalisations.


def layer_norm(
    array: Array,
    normalized_shape: Sequence[int],
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Array:
    """Standardised over the last axes."""
    axes = tuple(range(-len(normalized_shape), 0))
    centred = array - array.mean(axes, keepdims=True)
    return _affine(centred * jax.lax.rsqrt(jnp.square(centred).mean(axes, keepdims=True) + eps), weight, bias)


def rms_norm(
    array: Array, normalized_shape: Sequence[int], weight: Array | None = None, eps: float | None = None
) -> Array:
    """Divided by the root of the mean square over the last axes."""
    axes = tuple(range(-len(normalized_shape), 0))
    eps = float(_limits(array).eps) if eps is None else eps
    return _affine(array * jax.lax.rsqrt(jnp.square(array).mean(axes, keepdims=True) + eps), weight, None)


# Activations.


def clamp(array: Array, min: Any = None, max: Any = None) -> Array:
    """Cut off at both ends, where the slope is still one."""
    if min is not None:
        array = jnp.where(array >= min, array, min)
    return array if max is None else jnp.where(array <= max, array, max)


def hardtanh(array: Array, min_val: float = -1.0, max_val: float = 1.0) -> Array:
    """Cut off at both ends, where the slope is zero."""
    return jnp.where(array <= min_val, min_val, jnp.where(array >= max_val, max_val, array))


def leaky_relu(array: Array, negative_slope: float = 0.01) -> Array:
    """Another slope below zero."""
    return jnp.where(array > 0, array, array * negative_slope)


def prelu(array: Array, weight: Array) -> Array:
    """A slope below zero that is learned, one for all or one per channel."""
    shape = (1, -1, *[1] * (array.ndim - 2)) if array.ndim > 1 else (-1,)
    return jnp.where(array > 0, array, array * weight.reshape(shape))


def elu(array: Array, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Array:
    """Exponential below zero."""
    below = jnp.where(array > 0, 0, array)
    return scale * jnp.where(array > 0, array, alpha * jnp.expm1(below * input_scale))


def celu(array: Array, alpha: float = 1.0) -> Array:
    """ELU with a slope of one at zero for every alpha."""
    return elu(array, alpha, 1.0, 1 / alpha)


def selu(array: Array) -> Array:
    """ELU that keeps mean and variance."""
    return elu(array, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


def softplus(array: Array, beta: float = 1.0, threshold: float = 20.0) -> Array:
    """A smooth ReLU; linear beyond the threshold."""
    is_far = array * beta > threshold
    return jnp.where(is_far, array, jnp.log1p(jnp.exp(jnp.where(is_far, 0, array) * beta)) / beta)


def gelu(array: Array, approximate: str = "none") -> Array:
    """The array times the normal distribution's probability below it."""
    return jax.nn.gelu(array, approximate=approximate == "tanh")


def hardsigmoid(array: Array) -> Array:
    """A sigmoid of three straight lines."""
    return jnp.where(array <= -3, 0, jnp.where(array >= 3, 1, array / 6 + 0.5))


def hardswish(array: Array) -> Array:
    """The array times its hard sigmoid."""
    return jnp.where(array <= -3, 0, jnp.where(array >= 3, array, array * (array / 6 + 0.5)))


def softmax(array: Array, dim: int, *_: Any, dtype: Any = None) -> Array:
    """Shares that add up to one."""
    return jax.nn.softmax(array if dtype is None else array.astype(dtype), axis=dim)


def log_softmax(array: Array, dim: int, *_: Any, dtype: Any = None) -> Array:
    """The logarithms of shares that add up to one."""
    return jax.nn.log_softmax(array if dtype is None else array.astype(dtype), axis=dim)


def dropout(array: Array, p: float, train: bool) -> Array:
    """Nothing, in evaluation mode."""
    if train and p:
        raise UnsupportedError("dropout in evaluation mode")
    return array


# Arithmetic.


def add(array: Any, other: Any, alpha: float = 1) -> Any:
    """A sum."""
    return array + (other if alpha == 1 else alpha * other)


def sub(array: Any, other: Any, alpha: float = 1) -> Any:
    """A difference."""
    return array - (other if alpha == 1 else alpha * other)


def div(array: Any, other: Any, rounding_mode: str | None = None) -> Any:
    """A quotient."""
    if rounding_mode is None:
        return jnp.true_divide(array, other)
    return jnp.floor_divide(array, other) if rounding_mode == "floor" else jnp.trunc(jnp.true_divide(array, other))


def absolute(array: Array) -> Array:
    """Without the sign; the slope is zero at zero."""
    return array * jax.lax.stop_gradient(jnp.sign(array))


def where(condition: Array, array: Any, other: Any) -> Array:
    """A choice, place by place."""
    return jnp.where(condition, array, other)


def masked_fill(array: Array, mask: Array, value: Any) -> Array:
    """A value where the mask is true."""
    return jnp.where(mask, value, array)


def convert(array: Array, dtype: Any = None, *_: Any) -> Array:
    """The same numbers in another type; real numbers lose what is behind the point."""
    return array if dtype is None else array.astype(dtype)


# Sums and their kind.


def _over(dim: Any) -> Any:
    return (
        None
        if dim is None or (not isinstance(dim, int) and len(dim) == 0)
        else (dim if isinstance(dim, int) else tuple(dim))
    )


def sum_(array: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Array:
    """A sum over axes."""
    return jnp.sum(array, _over(dim), keepdims=keepdim, dtype=dtype)


def mean(array: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Array:
    """A mean over axes."""
    return jnp.mean(array, _over(dim), keepdims=keepdim, dtype=dtype)


def prod(array: Array, dim: int | None = None, keepdim: bool = False, dtype: Any = None) -> Array:
    """A product over an axis."""
    return jnp.prod(array, dim, keepdims=keepdim, dtype=dtype)


def var(array: Array, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Array:
    """A variance; ``correction`` was called ``unbiased`` once."""
    return jnp.var(array, _over(dim), ddof=1 if correction is None else int(correction), keepdims=keepdim)


def std(array: Array, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Array:
    """The root of a variance."""
    return jnp.sqrt(var(array, dim, correction, keepdim))


def amax(array: Array, dim: Any = (), keepdim: bool = False) -> Array:
    """The largest; its gradient is shared by equal ones."""
    return jnp.max(array, _over(dim), keepdims=keepdim)


def amin(array: Array, dim: Any = (), keepdim: bool = False) -> Array:
    """The smallest; its gradient is shared by equal ones."""
    return jnp.min(array, _over(dim), keepdims=keepdim)


def max_(array: Array, dim: Any = None, keepdim: bool = False) -> Any:
    """The largest of all; or along an axis, with where it was."""
    return jnp.max(array) if dim is None else _chosen(array, jnp.argmax(array, dim, keepdims=True), dim, keepdim)


def min_(array: Array, dim: Any = None, keepdim: bool = False) -> Any:
    """The smallest of all; or along an axis, with where it was."""
    return jnp.min(array) if dim is None else _chosen(array, jnp.argmin(array, dim, keepdims=True), dim, keepdim)


def _chosen(array: Array, index: Array, dim: int, keepdim: bool) -> tuple[Array, Array]:
    largest = jnp.take_along_axis(array, index, dim)
    return (largest, index) if keepdim else (largest.squeeze(dim), index.squeeze(dim))


def norm(array: Array, ord: float = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Array:
    """The length of vectors, whose slope is zero at zero."""
    if ord != 2:
        raise UnsupportedError(f"a norm of order {ord:g}")
    squares = jnp.sum(jnp.square(array), _over(dim), keepdims=keepdim)
    return jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1)), 0)


def logsumexp(array: Array, dim: Any, keepdim: bool = False) -> Array:
    """The logarithm of a sum of exponentials."""
    return jax.nn.logsumexp(array, _over(dim), keepdims=keepdim)


def any_(array: Array, dim: Any = None, keepdim: bool = False) -> Array:
    """Whether there is something else than zero."""
    return jnp.any(array, _over(dim), keepdims=keepdim)


def all_(array: Array, dim: Any = None, keepdim: bool = False) -> Array:
    """Whether there is nothing that is zero."""
    return jnp.all(array, _over(dim), keepdims=keepdim)


def argmax(array: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    """Where the largest is."""
    return jnp.argmax(array, dim, keepdims=keepdim)


def argmin(array: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    """Where the smallest is."""
    return jnp.argmin(array, dim, keepdims=keepdim)


# Shapes and places.


def view(array: Array, shape: Sequence[int]) -> Array:
    """The same numbers in another shape."""
    return array.reshape(tuple(shape))


def flatten(array: Array, start_dim: int = 0, end_dim: int = -1) -> Array:
    """Some axes as one."""
    begin, end = start_dim % max(array.ndim, 1), end_dim % max(array.ndim, 1)
    return array.reshape(*array.shape[:begin], math.prod(array.shape[begin : end + 1]), *array.shape[end + 1 :])


def unflatten(array: Array, dim: int, sizes: Sequence[int]) -> Array:
    """One axis as several."""
    dim %= array.ndim
    known = math.prod(size for size in sizes if size != -1)
    sizes = [array.shape[dim] // known if size == -1 else size for size in sizes]
    return array.reshape(*array.shape[:dim], *sizes, *array.shape[dim + 1 :])


def permute(array: Array, dims: Sequence[int]) -> Array:
    """The axes in another order."""
    return jnp.transpose(array, tuple(dims))


def transpose(array: Array, dim0: int, dim1: int) -> Array:
    """Two axes for each other."""
    return jnp.swapaxes(array, dim0, dim1)


def expand(array: Array, size: Sequence[int]) -> Array:
    """Repeated without a copy; -1 leaves an axis as it is."""
    own = (*[1] * (len(size) - array.ndim), *array.shape)
    return jnp.broadcast_to(array, [have if want == -1 else want for have, want in zip(own, size, strict=True)])


def squeeze(array: Array, dim: Any = None) -> Array:
    """Without axes of length one."""
    chosen = range(array.ndim) if dim is None else ((dim,) if isinstance(dim, int) else dim)
    return array.squeeze(tuple(axis for axis in chosen if array.shape[axis] == 1))


def cat(arrays: Sequence[Array], dim: int = 0) -> Array:
    """One after the other; PyTorch leaves out empty vectors."""
    return jnp.concatenate([array for array in arrays if array.shape != (0,)], axis=dim)


def stack(arrays: Sequence[Array], dim: int = 0) -> Array:
    """Along a new axis."""
    return jnp.stack(list(arrays), axis=dim)


def split(array: Array, split_size: int | Sequence[int], dim: int = 0) -> list[Array]:
    """Parts of a size, or of these sizes."""
    length = array.shape[dim]
    sizes = [split_size] * -(-length // split_size) if isinstance(split_size, int) else split_size
    begins = [sum(sizes[:index]) for index in range(len(sizes))]
    return [
        jax.lax.slice_in_dim(array, begin, min(begin + size, length), axis=dim)
        for begin, size in zip(begins, sizes, strict=True)
    ]


def chunk(array: Array, chunks: int, dim: int = 0) -> list[Array]:
    """So many parts, the last of which may be smaller."""
    return split(array, max(1, -(-array.shape[dim] // chunks)), dim)


def unbind(array: Array, dim: int = 0) -> list[Array]:
    """Every place along an axis."""
    return [jax.lax.index_in_dim(array, index, dim, keepdims=False) for index in range(array.shape[dim])]


def slice_(array: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    """Some places along an axis."""
    index: list[Any] = [slice(None)] * array.ndim
    index[dim] = slice(start, end, step)
    return array[tuple(index)]


def slice_scatter(
    array: Array, part: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    """Other numbers at some places along an axis."""
    index: list[Any] = [slice(None)] * array.ndim
    index[dim] = slice(start, end, step)
    return array.at[tuple(index)].set(part)


def select(array: Array, dim: int, index: int) -> Array:
    """One place along an axis."""
    return jax.lax.index_in_dim(array, index, dim, keepdims=False)


def select_scatter(array: Array, part: Array, dim: int, index: int) -> Array:
    """Other numbers at one place along an axis."""
    place: list[Any] = [slice(None)] * array.ndim
    place[dim] = index
    return array.at[tuple(place)].set(part)


def index_(array: Array, indices: Sequence[Array | None]) -> Array:
    """Places by arrays of indices."""
    if any(index is not None and index.dtype == bool for index in indices):
        raise UnsupportedError("a choice of places whose number depends on the data")
    # An index that is too large gives what is not a number, where PyTorch stops.
    return array.at[tuple(slice(None) if index is None else index for index in indices)].get(mode="fill")


def index_select(array: Array, dim: int, index: Array) -> Array:
    """Places along an axis by an array of indices."""
    return index_(array, [*[None] * (dim % array.ndim), index])


def gather(array: Array, dim: int, index: Array) -> Array:
    """A place along an axis for each of the others."""
    grid = list(jnp.meshgrid(*(jnp.arange(size) for size in index.shape), indexing="ij"))
    grid[dim] = index
    return array.at[tuple(grid)].get(mode="fill")


def pad(array: Array, sizes: Sequence[int], value: float = 0) -> Array:
    """Zeros, or another number, around; sizes count from the last axis, and negative ones cut off."""
    pairs = [(sizes[index], sizes[index + 1], 0) for index in range(0, len(sizes), 2)][::-1]
    return jax.lax.pad(array, jnp.asarray(value, array.dtype), [(0, 0, 0)] * (array.ndim - len(pairs)) + pairs)


def mirrored_pad(array: Array, sizes: Sequence[int], mode: str) -> Array:
    """The array's own numbers around it."""
    pairs = [(sizes[index], sizes[index + 1]) for index in range(0, len(sizes), 2)][::-1]
    return jnp.pad(array, [(0, 0)] * (array.ndim - len(pairs)) + pairs, mode=mode)


def repeat(array: Array, repeats: Sequence[int]) -> Array:
    """The whole array several times along every axis."""
    return jnp.tile(array, tuple(repeats))


def roll(array: Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> Array:
    """Moved along axes, around the end."""
    return jnp.roll(array, tuple(shifts), tuple(dims) or None)


def flip(array: Array, dims: Sequence[int]) -> Array:
    """Backwards along axes."""
    return jnp.flip(array, tuple(dims))


def cumsum(array: Array, dim: int, dtype: Any = None) -> Array:
    """Sums of all up to each."""
    return jnp.cumsum(array, dim, dtype=dtype)


def tril(array: Array, diagonal: int = 0) -> Array:
    """The lower triangle."""
    return jnp.tril(array, diagonal)


def triu(array: Array, diagonal: int = 0) -> Array:
    """The upper triangle."""
    return jnp.triu(array, diagonal)


# New arrays.


def full(size: Sequence[int], value: Any, dtype: Any = None) -> Array:
    """One number everywhere."""
    return jnp.full(tuple(size), value, dtype)


def full_like(array: Array, value: Any, dtype: Any = None) -> Array:
    """One number everywhere, in the shape of another array."""
    return jnp.full(array.shape, value, array.dtype if dtype is None else dtype)


def arange(start: Any, end: Any = None, step: Any = 1, dtype: Any = None) -> Array:
    """Numbers in steps."""
    return jnp.arange(start, end, step, dtype=dtype)


def _whole(array: Array, *_: Any) -> Array:
    return array


Function = Callable[..., Any]

ELEMENTWISE: dict[str, Function] = {
    "abs": absolute,
    "acos": jnp.arccos,
    "add": add,
    "asin": jnp.arcsin,
    "atan": jnp.arctan,
    "atan2": jnp.arctan2,
    "bitwise_and": jnp.bitwise_and,
    "bitwise_not": jnp.bitwise_not,
    "bitwise_or": jnp.bitwise_or,
    "bitwise_xor": jnp.bitwise_xor,
    "ceil": jnp.ceil,
    "celu": celu,
    "clamp": clamp,
    "clamp_max": lambda array, max: clamp(array, None, max),
    "clamp_min": clamp,
    "clone": _whole,
    "contiguous": _whole,
    "copy": lambda array, other: jnp.broadcast_to(other, array.shape),
    "cos": jnp.cos,
    "cosh": jnp.cosh,
    "detach": jax.lax.stop_gradient,
    "div": div,
    "dropout": dropout,
    "elu": elu,
    "eq": jnp.equal,
    "erf": jax.lax.erf,
    "exp": jnp.exp,
    "expm1": jnp.expm1,
    "feature_dropout": dropout,
    "floor": jnp.floor,
    "ge": jnp.greater_equal,
    "gelu": gelu,
    "gt": jnp.greater,
    "hardsigmoid": hardsigmoid,
    "hardswish": hardswish,
    "hardtanh": hardtanh,
    "isinf": jnp.isinf,
    "isnan": jnp.isnan,
    "le": jnp.less_equal,
    "leaky_relu": leaky_relu,
    "lift_fresh_copy": _whole,
    "log": jnp.log,
    "log10": jnp.log10,
    "log1p": jnp.log1p,
    "log2": jnp.log2,
    "log_sigmoid": jax.nn.log_sigmoid,
    "logical_and": jnp.logical_and,
    "logical_not": jnp.logical_not,
    "logical_or": jnp.logical_or,
    "logical_xor": jnp.logical_xor,
    "lt": jnp.less,
    "masked_fill": masked_fill,
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
    "mish": lambda array: array * jnp.tanh(softplus(array)),
    "mul": jnp.multiply,
    "ne": jnp.not_equal,
    "neg": jnp.negative,
    "pow": jnp.power,
    "reciprocal": jnp.reciprocal,
    "relu": jax.nn.relu,
    "relu6": lambda array: hardtanh(array, 0.0, 6.0),
    "remainder": jnp.remainder,
    "round": jnp.round,
    "rsqrt": jax.lax.rsqrt,
    "rsub": lambda array, other, alpha=1: sub(other, array, alpha),
    "selu": selu,
    "sigmoid": jax.nn.sigmoid,
    "sign": jnp.sign,
    "silu": jax.nn.silu,
    "sin": jnp.sin,
    "sinh": jnp.sinh,
    "softplus": softplus,
    "sqrt": jnp.sqrt,
    "square": jnp.square,
    "sub": sub,
    "tan": jnp.tan,
    "tanh": jnp.tanh,
    "threshold": lambda array, threshold, value: jnp.where(array <= threshold, value, array),
    "to": convert,
    "_to_copy": convert,
    "trunc": jnp.trunc,
    "where": where,
}
"""Operators that work place by place, whatever the layout."""

SPATIAL: dict[str, Function] = {
    "_native_batch_norm_legit_no_training": fixed_batch_norm,
    "adaptive_avg_pool1d": adaptive_avg_pool,
    "adaptive_avg_pool2d": adaptive_avg_pool,
    "adaptive_max_pool1d": adaptive_max_pool,
    "adaptive_max_pool2d": adaptive_max_pool,
    "avg_pool1d": avg_pool,
    "avg_pool2d": avg_pool,
    "batch_norm": batch_norm,
    "conv1d": convolution,
    "conv2d": convolution,
    "conv3d": convolution,
    "convolution": any_convolution,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
    "max_pool1d": max_pool,
    "max_pool2d": max_pool,
}
"""Operators whose first argument and result are images with channels last."""

OTHERS: dict[str, Function] = {
    "_log_softmax": log_softmax,
    "_softmax": softmax,
    "addmm": addmm,
    "all": all_,
    "amax": amax,
    "amin": amin,
    "any": any_,
    "arange": arange,
    "argmax": argmax,
    "argmin": argmin,
    "baddbmm": addmm,
    "bmm": operator.matmul,
    "cat": cat,
    "chunk": chunk,
    "constant_pad_nd": pad,
    "cumsum": cumsum,
    "einsum": einsum,
    "embedding": embedding,
    "expand": expand,
    "flatten": flatten,
    "flip": flip,
    "full": full,
    "full_like": full_like,
    "gather": gather,
    "index": index_,
    "index_select": index_select,
    "layer_norm": layer_norm,
    "linalg_vector_norm": norm,
    "linear": linear,
    "log_softmax": log_softmax,
    "logsumexp": logsumexp,
    "matmul": operator.matmul,
    "max": max_,
    "mean": mean,
    "min": min_,
    "mm": operator.matmul,
    "ones": lambda size, dtype=None: full(size, 1, dtype),
    "ones_like": lambda array, dtype=None: full_like(array, 1, dtype),
    "permute": permute,
    "prelu": prelu,
    "prod": prod,
    "reflection_pad1d": partial(mirrored_pad, mode="reflect"),
    "reflection_pad2d": partial(mirrored_pad, mode="reflect"),
    "repeat": repeat,
    "replication_pad1d": partial(mirrored_pad, mode="edge"),
    "replication_pad2d": partial(mirrored_pad, mode="edge"),
    "reshape": view,
    "rms_norm": rms_norm,
    "roll": roll,
    "scalar_tensor": lambda value, dtype=None: jnp.asarray(value, dtype),
    "scaled_dot_product_attention": scaled_dot_product_attention,
    "select": select,
    "select_scatter": select_scatter,
    "slice": slice_,
    "slice_scatter": slice_scatter,
    "softmax": softmax,
    "split": split,
    "split_with_sizes": split,
    "squeeze": squeeze,
    "stack": stack,
    "std": std,
    "sum": sum_,
    "sym_size": lambda array, dim: array.shape[dim],
    "t": lambda array: array.T,
    "transpose": transpose,
    "tril": tril,
    "triu": triu,
    "unbind": unbind,
    "unflatten": unflatten,
    "unsqueeze": jnp.expand_dims,
    "var": var,
    "view": view,
    "zeros": lambda size, dtype=None: full(size, 0, dtype),
    "zeros_like": lambda array, dtype=None: full_like(array, 0, dtype),
}
"""Operators that see arrays as PyTorch lays them out."""

NAMES = frozenset({*ELEMENTWISE, *SPATIAL, *OTHERS})
"""Every operator that has a counterpart here."""
