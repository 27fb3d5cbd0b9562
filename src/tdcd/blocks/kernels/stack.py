"""A client's convolution layers one after another, and their gradient."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from tdcd.blocks.convolution import plain_layers
from tdcd.blocks.kernels import first, later
from tdcd.blocks.kernels.geometry import Layer, layers_of
from tdcd.blocks.kernels.tiles import OFF, Halves, largest, reshaped, scale_for, scaled
from tdcd.core.objective import Tree


class Kept(NamedTuple):
    """What a layer's gradient needs of its forward pass."""

    images: Halves
    """The layer's input, scaled."""
    scale: Array
    """Of its input."""
    weight: Halves
    """Scaled, in the form that its kernels take."""
    weight_bound: Array
    """Its largest magnitude."""
    codes: Array


@partial(jax.jit, static_argnames=("halves", "interpret"))
def convolve_layers(
    convolutions: list[Tree], images: Array, count: Array, *, halves: int = 1, interpret: bool = False
) -> Array:
    """All layers' output ``[P, height, width, channels]``, for images ``[P, height, width, 1]``.

    The output of images from ``count`` on is finite, and else anything. It is a compiled function of its own, since
    tracing kernels takes a while.

    Args:
        convolutions: of each layer ``weight`` ``[height, width, inputs, outputs]`` and ``bias`` ``[outputs]``.
        count: how many of the P images there are.
        halves: float16 numbers that make up one; one is as exact as TF32, and two nearly as float32.
        interpret: run the kernels on any processor, slowly.
    """
    return _convolve(convolutions, images, count, halves, interpret)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _convolve(convolutions: list[Tree], images: Array, count: Array, halves: int, interpret: bool) -> Array:
    return _forward(convolutions, images, count, halves, interpret, keep=False)[0]


def _forward(
    convolutions: list[Tree], images: Array, count: Array, halves: int, interpret: bool, *, keep: bool
) -> tuple[Array, list[Kept]]:
    layers, counted = layers_of(convolutions, images), jnp.asarray(count, jnp.int32).reshape(1)
    bound = largest(images)
    scale = scale_for(bound)
    now, kept = reshaped(scaled(images, scale, halves), -1), []
    for number, (layer, convolution) in enumerate(zip(layers, convolutions, strict=True)):
        kernel, weight, last = later if number else first, convolution["weight"], number == len(layers) - 1
        weight_bound = largest(weight)
        weight_scale = scale_for(weight_bound)
        factor = scaled(weight, weight_scale, halves)
        factor = reshaped(factor, -1, layer.outputs) if number else first.shifted(factor, layer)
        # No activation is larger than this.
        bound = bound * _most(weight, towards=3) + largest(convolution["bias"])
        next_scale = jnp.ones_like(scale) if last else scale_for(bound)
        active, codes = kernel.forward(
            now,
            factor,
            convolution["bias"],
            jnp.stack([1 / scale * (1 / weight_scale), next_scale]),
            counted,
            layer=layer,
            last=last,
            codes=keep,
            interpret=interpret,
        )
        kept += [Kept(now, scale, factor, weight_bound, code) for code in codes]
        now, scale = active, next_scale
    return now[0].reshape(len(images), *layers[-1].pooled, layers[-1].outputs), kept


def _forward_and_keep(
    convolutions: list[Tree], images: Array, count: Array, halves: int, interpret: bool
) -> tuple[Array, tuple[Any, ...]]:
    active, kept = _forward(convolutions, images, count, halves, interpret, keep=True)
    return active, (convolutions, images, count, kept)


def _backward(halves: int, interpret: bool, residuals: tuple[Any, ...], slopes: Array) -> tuple[Any, ...]:
    convolutions, images, count, kept = residuals
    layers, counted = layers_of(convolutions, images), jnp.asarray(count, jnp.int32).reshape(1)
    gradients: list[Tree] = []
    bound = largest(slopes)
    scale = scale_for(bound)
    now = reshaped(scaled(slopes, scale, halves), -1, layers[-1].outputs)
    for layer, stored, convolution in zip(layers[:0:-1], kept[:0:-1], convolutions[:0:-1], strict=True):
        weight_scale = scale_for(stored.weight_bound)
        spread, bias = _spread(now, stored.codes, count, layer)
        weight = later.weight_slopes(stored.images, spread, counted, layer=layer, interpret=interpret)
        weight = weight.reshape(layer.kernel_height, layer.kernel_width, layer.inputs, layer.outputs)
        gradients.append({"weight": weight * (1 / scale * (1 / stored.scale)), "bias": bias / scale})
        bound = bound * _most(convolution["weight"], towards=2)
        next_scale = scale_for(bound)
        factor = (next_scale * (1 / scale) * (1 / weight_scale)).reshape(1)
        now = later.input_slopes(spread, stored.weight, factor, counted, layer=layer, interpret=interpret)
        scale = next_scale
    (layer, *_), (stored, *_) = layers, kept
    parts = first.weight_slopes(stored.images, now, stored.codes, counted, layer=layer, interpret=interpret)
    weight, bias = first.shifted_back(parts, layer)
    gradients.append({"weight": weight * (1 / scale * (1 / stored.scale)), "bias": bias / scale})
    return gradients[::-1], _image_slopes(convolutions, images, slopes), None


def _most(weight: Array, towards: int) -> Array:
    """How many times larger than all factors a sum over weights can be, of all sums along the axis ``towards``.

    All weights as large as the largest would be a far looser bound, and cost bits in every further layer.
    """
    return jnp.max(jnp.sum(jnp.abs(weight), axis=tuple(axis for axis in range(4) if axis != towards)))


def _spread(slopes: Halves, codes: Array, count: Array, layer: Layer) -> tuple[Halves, Array]:
    """Slopes ``[P * pixels, outputs]`` at the place that was the largest, ``[P * 4 pixels, outputs]``; and their sums.

    A pass over memory of its own, since both kernels that need it would read codes and slopes for every tap.
    """
    height, width = layer.pooled
    shape = (layer.rows, height, 1, width, 1, layer.outputs)
    codes = codes.reshape(shape)
    real = (jnp.arange(layer.rows) < count).reshape(-1, *[1] * 5) & (codes < OFF)
    kept = [jnp.where(real, half, 0) for half in reshaped(slopes, *shape)]
    places = jnp.arange(4, dtype=codes.dtype).reshape(2, 1, 2, 1)
    spread = tuple(jnp.where(codes == places, half, 0).reshape(-1, layer.outputs) for half in kept)
    return spread, jnp.sum(sum(half.astype(jnp.float32) for half in kept), axis=(0, 1, 2, 3, 4))


def _image_slopes(convolutions: list[Tree], images: Array, slopes: Array) -> Array:
    """They are rarely asked for, so plain operations do; where they are not, the compiler leaves them out."""
    image_slopes: Array = jax.vjp(lambda images: plain_layers(convolutions, images), images)[1](slopes)[0]
    return image_slopes


_convolve.defvjp(_forward_and_keep, _backward)
