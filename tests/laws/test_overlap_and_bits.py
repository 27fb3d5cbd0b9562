"""Overlapped rounds, slow silos and few bits: against the plain loops, in closed form, and bit for bit without them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import oracle
from support.problems import Problem, Shape, arrays, distance
from tdcd.blocks import Ensemble, Linear
from tdcd.core.codecs import codec
from tdcd.core.codecs.codec import BETWEEN_HUBS, BLOCKS, TO_CLIENTS, TO_HUB, Sending, half_open, seed_words
from tdcd.core.codecs.quantised import Quantised, QuantisedChange
from tdcd.core.family.dropout import SiloDropout
from tdcd.core.family.overlap import Overlap
from tdcd.core.objective import Objective
from tdcd.core.variant import Variant

SHAPE = Shape(
    clients=(3, 2),
    columns=(2, 3),
    num_samples=24,
    batch_size=6,
    local_steps=2,
    blocks=(Linear(), Ensemble((3,), 2, 0.0)),
)
ROUNDS, SEED, TOLERANCE = 6, 5, 1e-10
STREAMS = {"across": BETWEEN_HUBS, "down": TO_CLIENTS, "up": TO_HUB}


def in_bits(bits, numbers, dither):
    """A column in whole steps of 2a / (2^b - 2), number by number."""
    a = max((abs(number) for number in numbers), default=0.0)
    d = 2 * a / (2**bits - 2)
    return [d * (np.round(x / d + u) - u) if d else 0.0 for x, u in zip(numbers, dither, strict=True)]


def phi_in(bits, outputs):
    """What arrives of phi; the oracle shares with the package the draws of the dither, as it does the minibatches."""
    shape = (SHAPE.local_steps, SHAPE.batch_size, outputs)

    def sent(link, round_index, silo, places, phi):
        key = Sending(seed_words(SEED), round_index, silo, stream=STREAMS[link]).key
        dither = np.asarray(half_open(key, shape), np.float64).reshape(-1, outputs)[places]
        return np.array([in_bits(bits, *column) for column in zip(phi.T, dither.T, strict=True)]).T

    return sent


def change_in(bits):
    def sent(round_index, silo, client, before, after):
        key = Sending(seed_words(SEED), round_index, silo, stream=BLOCKS + client).key
        arrived = []
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            dither = np.asarray(half_open(jax.random.fold_in(key, index), old.shape), np.float64)
            columns = zip((new - old).T, dither.T, strict=True) if old.ndim > 1 else [(new - old, dither)]
            change = np.array([in_bits(bits, *column) for column in columns])
            arrived.append(old + (change.T if old.ndim > 1 else change[0]))
        return arrived

    return sent


@pytest.mark.parametrize(
    ("overlap", "periods", "phi_bits", "block_bits", "loss"),
    [
        (0, (3, 1), 32, 32, "squared"),
        (1, (), 4, 32, "softmax"),
        (2, (1, 4), 32, 8, "logistic"),
        (3, (3, 1), 8, 8, "squared"),
    ],
)
def test_any_overlap_period_and_bits_are_the_plain_loops(overlap, periods, phi_bits, block_bits, loss):
    problem = Problem.draw(SHAPE, Objective(loss, 0.1), SEED)
    few = {} if phi_bits == 32 else {"exchange": Quantised(phi_bits), "client_exchange": Quantised(phi_bits)}
    if block_bits == 8:
        few["block_exchange"] = QuantisedChange(8)
    variation = oracle.Variation(
        age=lambda silo, r: min(r, overlap),
        period=lambda silo: periods[silo] if periods else 1,
        **({} if phi_bits == 32 else {"sent": phi_in(phi_bits, 3 if loss == "softmax" else 1)}),
        **({} if block_bits == 32 else {"block_sent": change_in(8)}),
    )
    variant = Variant(timing=Overlap(overlap, periods), **few)
    assert distance(problem.simulate(ROUNDS, variant=variant), problem.solve(ROUNDS, variation)) < TOLERANCE


@pytest.mark.optimised
def test_without_them_nothing_changes():
    problem = Problem.draw(SHAPE, Objective("logistic", 0.1), SEED)
    same = Variant(timing=Overlap(0, (1, 1)))
    assert distance(problem.simulate(ROUNDS, variant=same), problem.simulate(ROUNDS)) == 0


@pytest.mark.parametrize("timing", [Overlap(1), Overlap(3), Overlap(0, (1, 4)), Overlap(2, (3, 1))], ids=str)
def test_every_overlap_and_period_reaches_the_ridge_solution(timing):
    shape = Shape(clients=(1, 1), columns=(2, 3), num_samples=24, batch_size=24, local_steps=1)
    problem = Problem.draw(shape, Objective("squared", 0.1), SEED, step_size=0.1, minibatches="full")
    whole = np.concatenate([silo.features for silo in problem.federation.silos], axis=1)
    gram = whole.T @ whole / len(whole) + 0.1 * np.eye(5)
    solution = np.linalg.solve(gram, whole.T @ problem.federation.labels / len(whole))
    found = problem.simulate(2000, variant=Variant(timing=timing))
    assert np.concatenate([block[0][:, 0] for block in found]) == pytest.approx(solution, abs=1e-9)


@pytest.mark.parametrize(("bits", "rows"), [(8, 7), (4, 8)])
def test_errors_are_within_half_a_width_and_zero_on_average(bits, rows):
    """Of rows of a client as of all; in NumPy's arrays; an odd number of them, none, and columns of zeros too."""
    quantised, shape = Quantised(bits), (5, 20, 3)
    rng = np.random.default_rng(0)
    errors = []
    for round_index in range(300):
        places = rng.choice(100, rows, replace=False)
        phi = rng.normal(size=(rows, 3)) * [1.0, 100.0, 0.0]
        sending = Sending(seed_words(1), round_index, 1, shape, TO_HUB, places)
        sent = quantised.encode(phi, sending)
        assert {name: (str(part.dtype), part.shape) for name, part in sent.items()} == quantised.layout(
            phi.shape, "float64"
        )
        decoded = quantised.decode(sent, sending)
        assert (decoded[:, 2] == 0).all()
        errors.append((decoded - phi)[:, :2] / sent["width"][:2])
    assert np.abs(errors).max() <= 0.5 + 1e-9
    assert abs(np.mean(errors)) < 5 * 12**-0.5 / np.size(errors) ** 0.5
    assert np.var(errors) == pytest.approx(1 / 12, rel=0.05)
    none = Sending(seed_words(1), 0, 1, shape, TO_HUB, np.zeros(0, int))
    assert quantised.decode(quantised.encode(np.zeros((0, 3)), none), none).shape == (0, 3)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("library", [np, jnp], ids=["NumPy", "JAX"])
def test_the_largest_number_of_a_column_keeps_its_sign(bits, library):
    """In single precision 127 and a dither close to 1/2 add up to 127.5."""
    phi = library.asarray(np.array([[1.0], [-1.0], [0.3], [1.0]], np.float32))
    drawn = library.full((1, 4, 1), np.float32(0.5 - 2**-25))
    sending = Sending(seed_words(0), 0, 0, (1, 4, 1), TO_HUB, np.arange(4), {TO_HUB: drawn})
    quantised = Quantised(bits)
    sent = quantised.encode(phi, sending)
    assert np.abs(np.asarray(quantised.decode(sent, sending) - phi)).max() <= 0.51 * float(sent["width"][0])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Overlap(-1), "rounds overlap by 0 or more"),
        (lambda: Overlap(0, (0, 1)), "periods are 1 or more"),
        (lambda: Quantised(16), "phi is quantised to 8 or 4 bits, not 16"),
        (lambda: QuantisedChange(4), "quantised to 8 bits, not 4"),
    ],
)
def test_values_that_nothing_could_follow_are_refused(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_periods_are_those_of_all_silos():
    with pytest.raises(ValueError, match="must have a period for each of the 2 silos"):
        Problem.draw(SHAPE, Objective("squared"), SEED).simulation(variant=Variant(timing=Overlap(0, (2, 1, 1))))


@pytest.mark.optimised
def test_state_continues_bit_for_bit_in_any_grouping_of_rounds():
    problem = Problem.draw(SHAPE, Objective("logistic"), SEED)
    few = {"exchange": Quantised(8), "client_exchange": Quantised(8), "block_exchange": QuantisedChange()}
    simulation = problem.simulation(variant=Variant(timing=Overlap(2, (3, 1)), **few))
    state = start = simulation.state_of(problem.start)
    for round_index in range(ROUNDS):
        state = simulation.advance(state, round_index, 1)
    assert distance(arrays(simulation.advance(start, 0, ROUNDS)), arrays(state)) == 0


def test_many_draws_are_made_silo_by_silo_and_are_the_same(monkeypatch):
    """In one program the draws of 16 silos need several times the memory of what they give."""

    def drawn():
        few = Variant(exchange=Quantised(8), client_exchange=Quantised(4), dropout=SiloDropout(0.5))
        shape = (3, 40, 2)
        return jax.jit(lambda at: few.drawn(seed_words(5), at, 4, shape))(np.int32(7))

    at_once = drawn()
    monkeypatch.setattr(codec, "DRAWN_AT_ONCE", 1)
    for ours, theirs in zip(at_once, drawn(), strict=True):
        assert len(ours) == 4
        assert ours.keys() == theirs.keys()
        assert all((np.asarray(ours[stream]) == np.asarray(theirs[stream])).all() for stream in ours)
