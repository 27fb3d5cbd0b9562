"""Arrays and documents of a message, taken only if they are as expected."""

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.config import ConfigError, ModelSection
from tdcd.config.losses import named_loss
from tdcd.core.losses import Loss
from tdcd.runtime.messages.structure import Array, NamedArrays
from tdcd.runtime.messages.wire import RejectedMessage

LEAVES_OUT = "it leaves clients out, and federation.client_grace_s is not set"


def take(array: Array, name: str, dtype: Any, shape: Sequence[int | None]) -> NDArray[Any]:
    """The numbers of ``array``, if it has this dtype and shape (None fits any length) and they are all finite."""
    values = array.values
    if values.dtype != dtype or (values.shape != shape and not _fits(values.shape, shape)):
        wanted = f"{np.dtype(dtype)} {[*shape]}"
        raise RejectedMessage(f"'{name}' is {values.dtype} {[*values.shape]}, not {wanted}".replace("None", "any"))
    if not are_finite([values]):
        raise RejectedMessage(f"'{name}' has numbers that are not finite")
    return values


def take_all(
    arrays: NamedArrays, layout: Mapping[str, tuple[str, tuple[int, ...]]], others: Collection[str] = ()
) -> dict[str, NDArray[Any]]:
    """The same of every array of a layout, by name; there may be ``others``, but none besides."""
    taken = {}
    for name, (dtype, shape) in layout.items():
        if name not in arrays:
            raise RejectedMessage(f"it has no array '{name}'")
        taken[name] = take(arrays[name], name, dtype, shape)
    if len(arrays) > len(taken):
        for name in arrays:
            if name not in taken and name not in others:
                raise RejectedMessage(f"it has an array '{name}', which was not requested")
    return taken


def are_finite(arrays: Iterable[NDArray[Any]]) -> bool:
    """Whether arrays have no number that is not finite."""
    for values in arrays:
        # A sum of squares is not finite if a number is not; it is soon known, and seldom too large for finite ones.
        if values.dtype.kind == "f" and not math.isfinite(np.vdot(values, values)) and not np.isfinite(values).all():
            return False
    return True


def _fits(shape: tuple[int, ...], wanted: Sequence[int | None]) -> bool:
    return len(shape) == len(wanted) and all(w is None or w == s for w, s in zip(wanted, shape, strict=True))


def take_loss(name: str, model: ModelSection) -> Loss:
    """The loss of this name, if it comes with the package or the own configuration names it."""
    try:
        return named_loss(model, name)
    except ConfigError as error:
        raise RejectedMessage(f"'loss' is not known here: {error.problems[0]}") from None


def take_mask(array: Array, name: str, *shape: int) -> NDArray[np.bool_]:
    """One number per sample, or per sample and silo, 0 or 1."""
    mask = take(array, name, np.uint8, [*shape])
    if (mask > 1).any():
        raise RejectedMessage(f"'{name}' must be 0 or 1 for each sample")
    return mask.astype(np.bool_)


def take_weights(arrays: NamedArrays, dtype: str, shape: Sequence[int], wanted: bool) -> NDArray[Any] | None:
    """What samples weigh, numbers of at least 0; None if the configuration gives all the same weight."""
    if ("weights" not in arrays) == wanted:
        raise RejectedMessage(
            "it has no array 'weights'" if wanted else "'weights' are of samples that all weigh the same"
        )
    if not wanted:
        return None
    weights = take(arrays["weights"], "weights", dtype, shape)
    if (weights < 0).any():
        raise RejectedMessage("'weights' must be at least 0")
    return weights


def take_json(text: str, name: str) -> Any:
    """A document."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RejectedMessage(f"'{name}' is not JSON: {error}") from None
