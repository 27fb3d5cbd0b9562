"""Transcripts: what one party gets to see of the samples, in one mode."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdcd.audit.attacks import scores_from_slopes, uncorrected
from tdcd.audit.recording import FLOAT_NOISE, Floats, Recording
from tdcd.core.objective import Tree
from tdcd.core.round import Round
from tdcd.federation.silos import Federation

UNREADABLE = 1e-3
"""Scores that rounding of the slopes changes by more than this are left out."""


RECEIVED = {"poisson": "the slope of the loss and the expected count", "huber": "the residual"}
"""What parties without labels receive, if it is not the slope of the loss alone."""


@dataclass(frozen=True, eq=False)
class Transcript:
    """What a party sees that bears on one silo's columns and on the labels."""

    party: str
    sees: str
    """In words."""
    rows: NDArray[np.intp]
    """Which of the recorded samples it sees anything of."""
    phi: Floats
    """``[rows, T, C]``: of the silo, or a sum that it is part of; nan where it saw nothing."""
    noise: Floats
    """``[T]``: the deviation of rounding in it, and of noise that was added."""
    summed: tuple[int, ...]
    """The silos whose phi that is the sum of."""
    blocks: list[Tree] | None = None
    """The silo's block at each moment, if the party knows it."""
    slopes: Floats | None = None
    """``[rows, T, W]``: of the loss, or what is sent in their place, if that is what the party gets."""


def of_own_hub(recording: Recording, federation: Federation, silo: int) -> Transcript:
    """A hub gets phi of its clients' rows, and knows the block that it gave them.

    A hub that sees only the sum of its clients' blocks knows that block too: it is the sum.
    """
    return Transcript(
        f"hub.{federation.silos[silo].name}",
        "phi of each of its clients' rows, and the block that it comes from",
        np.arange(len(recording.rows)),
        recording.to_hub[silo],
        recording.noise[silo],
        (silo,),
        recording.blocks[silo],
    )


def of_hub(
    recording: Recording, federation: Federation, flows: Round, observer: int, silo: int, loss: str
) -> Transcript:
    """Another hub: it gets this silo's phi, or the sum of all others', or slopes."""
    name, everything = f"hub.{federation.silos[observer].name}", np.arange(len(recording.rows))
    if flows.scored_at(observer) != observer:
        return _from_slopes(recording, federation, observer, everything, loss, name)
    if flows.summed_phi is not None:
        others = _others(federation, observer)
        summed = np.sum([recording.between[other] for other in others], axis=0)
        sees = (
            f"the sum of the phi of {_listed(federation, others)}, for every sample of a minibatch and at evaluations"
        )
        return Transcript(name, sees, everything, summed, _noise(recording, others), others)
    sees = f"phi of {federation.silos[silo].name}, for every sample of a minibatch and at evaluations"
    return Transcript(name, sees, everything, recording.between[silo], recording.noise_between[silo], (silo,))


def of_client(recording: Recording, federation: Federation, flows: Round, observer: int, loss: str) -> Transcript:
    """A silo's largest client: it gets the sum of the others' phi for its rows, or slopes for them."""
    home = federation.silos[observer]
    client = int(np.argmax(home.rows_held))
    rows = np.flatnonzero(home.owner()[recording.rows] == client)
    name = f"client.{home.name}.{home.clients[client]}"
    if flows.scored_at(observer) != observer:
        return _from_slopes(recording, federation, observer, rows, loss, name)
    others = _others(federation, observer)
    is_single = len(others) == 1
    sees = f"{'phi' if is_single else 'the sum of the phi'} of {_listed(federation, others)}, for its own rows"
    return Transcript(name, sees, rows, recording.to_clients[observer][rows], _noise(recording, others), others)


def _from_slopes(
    recording: Recording,
    federation: Federation,
    observer: int,
    rows: NDArray[np.intp],
    loss: str,
    name: str,
) -> Transcript:
    """Slopes give the scores away, and less the party's own phi those are the sum of the others' phi."""
    if recording.gradients[observer]:
        sent = recording.to_clients[observer][rows]
        sees = "the slope of the loss, encrypted"
        return Transcript(name, sees, rows, sent, recording.noise[observer], (observer,), slopes=sent)
    slopes = uncorrected(recording.to_clients[observer][rows], loss, recording.response)
    others = _others(federation, observer)
    own = recording.to_hub[observer][rows]
    scores, errors = scores_from_slopes(slopes, loss, FLOAT_NOISE / 2)
    scores[errors > UNREADABLE] = np.nan
    if loss == "softmax":
        own = own - own.mean(axis=-1, keepdims=True)
    whose = "every sample of a minibatch" if name.startswith("hub.") else "its own rows"
    received = RECEIVED.get(loss, "the slope of the loss")
    sees = f"{received}, for {whose}; from it follows the sum of the phi of {_listed(federation, others)}"
    seen = ~np.isnan(scores)
    squares = np.sum(np.where(seen, errors, 0) ** 2, axis=(0, 2)) / np.maximum(seen.sum(axis=(0, 2)), 1)
    return Transcript(name, sees, rows, scores - own, np.sqrt(squares), others, slopes=slopes)


def _others(federation: Federation, observer: int) -> tuple[int, ...]:
    return tuple(silo for silo in range(federation.num_silos) if silo != observer)


def _noise(recording: Recording, silos: tuple[int, ...]) -> Floats:
    summed: Floats = np.sqrt(np.sum([recording.noise_between[silo] ** 2 for silo in silos], axis=0))
    return summed


def _listed(federation: Federation, silos: tuple[int, ...]) -> str:
    names = [federation.silos[silo].name for silo in silos]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
