"""Samples that only some silos know: Q = 1 is central SGD on the joined table with absent parts."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.problems import SPLITS, Problem, Shape, arrays, distance, examples, random_block, split_rows
from tdcd.blocks import Ensemble, Linear, Mlp
from tdcd.blocks.absent import Absent, smaller, without_stand_ins
from tdcd.blocks.base import with_head
from tdcd.blocks.start import start_block
from tdcd.core.codecs.codec import Sending, seed_words
from tdcd.core.family.dropout import SiloDropout
from tdcd.core.family.heads import Hidden, Pairs
from tdcd.core.family.labels import LabelsAt
from tdcd.core.objective import Objective
from tdcd.core.schedule import batch_ids
from tdcd.core.settings import Settings
from tdcd.core.variant import Variant
from tdcd.federation.missing_rows import with_stand_ins
from tdcd.federation.silos import Federation, Terms

TOLERANCE = 1e-12
MOVED = 1e-2
ROUNDS = 5
L2 = 0.2
THREE = Shape(clients=(2, 1, 3), columns=(3, 2, 2), local_steps=1, num_samples=40)
seeds = st.integers(0, 2**31)


def lacking(
    shape,
    objective,
    seed,
    split="unequal",
    label_silo=None,
    standin="function",
    share=0.5,
    dropout=None,
    whole_silo=None,
    **changes,
):
    """A problem whose silos lack about half of the rows each; the label silo has them all. And who has what, [N, M]."""
    problem = Problem.draw(shape, objective, seed, split, **changes)
    rng, labels = np.random.default_rng(seed + 1), problem.federation.labels
    names = [silo.name for silo in problem.federation.silos]
    present = rng.random((len(names), len(labels))) < share
    for silo in {label_silo, whole_silo} - {None}:
        present[silo] = True
    present[rng.integers(len(names)), ~present.any(axis=0)] = True
    for own, clients in zip(present, shape.clients, strict=True):
        own[rng.choice(len(labels), clients, replace=False)] = True
    silos = []
    for silo, has in zip(problem.federation.silos, present, strict=True):
        known = np.flatnonzero(has)
        rows = tuple(known[part] for part in split_rows(split, labels[known], silo.num_clients, rng))
        own = replace(silo, rows=rows)
        if dropout is not None and dropout.intercept == len(silos):
            own.features[:, -1] = 1
            own = replace(own, columns=tuple(f"x{place}" for place in range(own.feature_shape[0] - 1)))
        silos.append(own)
    terms = Terms(None if label_silo is None else names[label_silo], samples="all", standin=standin)
    whole = Federation(tuple(silos), labels, terms=terms)
    federation, blocks = with_stand_ins(whole, shape.models(), drops_silos=dropout is not None)
    width = objective.phi_width(problem.objective.num_outputs([labels]))
    start = [
        random_block(with_head(block, objective.combine), silo.feature_shape[0], width, rng)
        for block, silo in zip(blocks, federation.silos, strict=True)
    ]
    return replace(problem, federation=federation, blocks=blocks, start=start), whole, present


def joined_sums(blocks, whole, problem, present, label_silo, ids, kept=None, dropout=None):
    """What the scores are made of: who has the row speaks, and one silo's stand-ins speak for the others.

    A silo that is dropped from a sample, one that is not in ``kept`` ``[N, B]``, is one that lacks it.
    """
    total, count = 0.0, len(whole.silos)
    labelled = range(count) if label_silo is None else [label_silo]
    first = np.argmax(present, axis=0) if label_silo is None else np.full(present.shape[1], label_silo)
    here = jnp.asarray(present)[:, ids] & (True if kept is None else jnp.asarray(kept))
    standin = problem.federation.terms.standin
    for index, (model, block, silo) in enumerate(zip(problem.blocks, blocks, whole.silos, strict=True)):
        x, has, own = jnp.asarray(silo.features)[ids], here[index][:, None], without_stand_ins(model)
        earlier = [other for other in labelled if other < index]
        speaks = (here[index] & (index in labelled) & ~here[np.array(earlier, int)].any(axis=0))[:, None]
        absent = [
            other
            for other in range(count)
            if standin != "none"
            and other != index
            and ((~present[other] & present[index] & (first == index)).any() if kept is None else index in labelled)
        ]
        if dropout is not None and dropout.intercept == index and present[index].all():
            # Of a silo that has all samples, the column of ones stays.
            x, has = jnp.where(has, x, jnp.arange(x.shape[1]) == x.shape[1] - 1), jnp.ones_like(has)
        if type(own) is Linear:
            width = x.shape[1]
            # The ones are behind the marks.
            ones = int(dropout is not None and dropout.intercept == index)
            weight, features = block["weight"], x
            parts = jnp.concatenate([weight[: width - ones], weight[len(weight) - ones :]])
            spoken = has * (x @ parts)
            parts, x, width = weight, features[:, : width - ones], width - ones
            size = 1 + width * (standin == "function")
            others = [parts[width + place * size :][:size] for place in range(len(absent))]
            others = [each[0] + (x @ each[1:] if standin == "function" else 0) for each in others]
        else:
            plain = model is own
            spoken = has * own.phi(block if plain else block["main"], x)
            others = [] if plain else block["stand_ins"]
            others = [smaller(own).phi(each, x) if standin == "function" else each for each in others]
        for other, each in zip(absent, others, strict=True):
            spoken = spoken + (speaks & ~here[other][:, None]) * each
        total = total + problem.objective.combine.phi(spoken)
    return total


def kept_in(dropout, round_index, seed, count, size):
    """``[N, B]``: from which samples of a round which silos are not dropped."""
    sendings = [Sending(seed_words(seed), np.int32(round_index), silo, (1, size, 1)) for silo in range(count)]
    return np.stack([np.asarray(dropout.kept(sending))[0] for sending in sendings])


def central(problem, whole, present, label_silo, num_rounds, dropout=None):
    """Minibatch SGD on the joined table, by differentiation of its loss."""
    chosen, objective, blocks = problem.settings, problem.objective, problem.start
    labels = whole.labels

    # As one program: every operation on its own would be another one.
    @jax.jit
    @jax.grad
    def slopes_of(blocks, ids, kept):
        total = joined_sums(blocks, whole, problem, present, label_silo, ids, kept, dropout)
        squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(blocks))
        return jnp.mean(objective.losses(total, jnp.asarray(labels)[ids])) + objective.l2 / 2 * squares

    with jax.enable_x64(True):
        for round_index in range(num_rounds):
            ids = batch_ids(
                chosen.seed,
                [round_index],
                num_samples=len(labels),
                batch_size=chosen.batch_size,
                local_steps=1,
                minibatches=chosen.minibatches,
            )[0, 0]
            kept = None
            if dropout is not None:
                kept = kept_in(dropout, round_index, chosen.seed, len(whole.silos), len(ids))
            slopes = slopes_of(blocks, ids, kept)
            blocks = jax.tree.map(lambda leaf, slope: leaf - chosen.step_size * np.asarray(slope), blocks, slopes)
        return arrays(blocks)


def check(
    shape,
    objective,
    seed,
    split="unequal",
    label_silo=None,
    standin="function",
    share=0.5,
    dropout=None,
    whole_silo=None,
):
    with jax.enable_x64(True):
        problem, whole, present = lacking(
            shape, objective, seed, split, label_silo, standin, share, dropout, whole_silo
        )
    parts = {} if label_silo is None else {"knowledge": LabelsAt(label_silo)}
    variant = Variant(**parts, **({} if dropout is None else {"dropout": dropout}))
    simulated = problem.simulate(ROUNDS, variant=variant)
    assert distance(simulated, arrays(problem.start)) > MOVED
    assert distance(simulated, central(problem, whole, present, label_silo, ROUNDS, dropout)) < TOLERANCE


@examples(8)
@given(seed=seeds, split=st.sampled_from(SPLITS), label_silo=st.sampled_from([None, 0, 2]))
@example(seed=1, split="unequal", label_silo=None)
def test_one_local_step_is_central_sgd_with_absent_parts(seed, split, label_silo):
    check(THREE, Objective("logistic", L2), seed, split, label_silo)


@examples(4)
@given(seed=seeds)
@example(seed=7)
def test_for_any_number_of_silos_and_clients_and_any_pattern(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 5))
    clients, columns = rng.integers(1, 4, (2, count)).tolist()
    blocks = tuple(Linear() if is_linear else Mlp((3,)) for is_linear in rng.random(count) < 0.7)
    shape = Shape(tuple(clients), tuple(columns), int(rng.integers(25, 60)), local_steps=1, blocks=blocks)
    label_silo = None if rng.random() < 0.5 else int(rng.integers(count))
    loss, split = str(rng.choice(["squared", "logistic", "softmax"])), str(rng.choice(SPLITS))
    check(shape, Objective(loss, L2), seed, split, label_silo, share=float(rng.uniform(0.1, 0.95)))


@pytest.mark.parametrize("head", [Hidden(2), Pairs(2)])
@pytest.mark.parametrize("label_silo", [None, 1])
def test_heads(head, label_silo):
    shape = replace(THREE, blocks=(Mlp((4,)), Linear(), Linear()))
    check(shape, Objective("logistic", L2, combine=head), seed=6, label_silo=label_silo)


@pytest.mark.parametrize(("loss", "label_silo"), [("huber", None), ("poisson", 1)])
def test_other_losses(loss, label_silo):
    check(THREE, Objective(loss, L2), seed=9, label_silo=label_silo)


@pytest.mark.parametrize("standin", ["function", "constant", "none"])
@pytest.mark.parametrize("label_silo", [None, 1])
def test_networks_and_every_kind_of_stand_in(standin, label_silo):
    shape = replace(THREE, blocks=(Mlp((4,)), Linear(), Mlp((3,))))
    check(shape, Objective("squared", L2), seed=5, label_silo=label_silo, standin=standin)


@pytest.mark.parametrize(("label_silo", "intercept"), [(None, None), (0, 0), (1, 0)])
def test_a_silo_that_is_dropped_is_one_that_lacks_the_row(label_silo, intercept):
    shape = replace(THREE, blocks=(Linear(), Mlp((3,)), Linear()))
    check(shape, Objective("logistic", L2), 11, "unequal", label_silo, dropout=SiloDropout(0.4, intercept))


def test_rows_that_are_sent_to_the_device_are_computed_alike():
    with jax.enable_x64(True):
        problem, _, _ = lacking(THREE, Objective("squared", L2), seed=5, dropout=SiloDropout(0.4))
        variant = Variant(dropout=SiloDropout(0.4))
        ours = [problem.simulation("clients", keep, variant) for keep in ("device", "host")]
        blocks = [arrays(each.advance(each.state_of(problem.start), 0, ROUNDS)) for each in ours]
    assert distance(*blocks) == 0


@pytest.mark.parametrize(("standin", "seed"), [("constant", 2), ("function", 4)])
def test_the_column_of_ones_of_a_silo_that_has_all_samples_stays(standin, seed):
    shape = replace(THREE, blocks=(Mlp((3,)), Linear(), Linear()))
    dropout = SiloDropout(0.3, 0)
    check(shape, Objective("squared", L2), seed, standin=standin, dropout=dropout, whole_silo=0)


def test_with_nothing_missing_silo_dropout_changes_nothing():
    problem = Problem.draw(THREE, Objective("logistic", L2), seed=4)
    marked, blocks = with_stand_ins(
        replace(problem.federation, terms=Terms(samples="all")), problem.blocks, drops_silos=True
    )
    variant = Variant(dropout=SiloDropout(0.4))
    ours = replace(problem, federation=marked, blocks=blocks).simulate(3, variant=variant)
    assert distance(ours, problem.simulate(3, variant=variant)) == 0


def test_classes():
    check(THREE, Objective("softmax", L2), seed=8)


def test_the_full_engine_takes_the_same_steps():
    with jax.enable_x64(True):
        problem, _, _ = lacking(THREE, Objective("squared", L2), seed=3, minibatches="full")
    assert distance(problem.simulate(ROUNDS, "full"), problem.simulate(ROUNDS, "clients")) < TOLERANCE


def test_the_grouped_engine_is_refused():
    with jax.enable_x64(True):
        problem, _, _ = lacking(THREE, Objective("squared", L2), seed=3)
    with pytest.raises(ValueError, match="samples that every silo has"):
        problem.simulate(1, "grouped")


def test_with_nothing_missing_nothing_changes():
    problem = Problem.draw(THREE, Objective("logistic", L2), seed=4)
    federation = replace(problem.federation, terms=Terms(samples="all"))
    marked, blocks = with_stand_ins(federation, problem.blocks)
    assert marked is federation
    assert blocks == problem.blocks
    assert distance(replace(problem, federation=marked).simulate(3), problem.simulate(3)) == 0


@pytest.mark.parametrize(
    "block", [Linear(), Mlp((4,)), Ensemble((4, 4), members=2)], ids=lambda block: type(block).__name__
)
def test_training_begins_as_without_stand_ins(block):
    absent = Absent(("shop", "lab"), lacks_rows=False, is_linear=type(block) is Linear)
    rng = np.random.default_rng(0)
    rows, lacking = rng.standard_normal((6, 3), np.float32), rng.random((6, 2)) < 0.5
    marked = absent.marked(rows, lacking, num_ones=0)
    settings = Settings(batch_size=2, local_steps=1, step_size=0.1)
    started = start_block(absent.block(block, 0), settings, 0, marked.shape[1:], 1)
    alone = start_block(block, settings, 0, rows.shape[1:], 1)
    before, after = block.phi(alone, rows), absent.block(block, 0).phi(started, marked)
    # It is no saddle point: stand-ins move with the first step.
    slopes = jax.grad(lambda own: absent.block(block, 0).phi(own, marked).sum())(jax.tree.map(jnp.asarray, started))
    assert np.array_equal(before, after)
    of_stand_ins = slopes["weight"][3:] if absent.is_linear else slopes["stand_ins"]
    assert max(abs(leaf).max() for leaf in jax.tree.leaves(of_stand_ins)) > 0
