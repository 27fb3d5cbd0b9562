import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import gammaln

from support.examples import num_examples
from tdcd.core.schedule import batch_ids
from tdcd.federation.placement import Padding, Placer, holders, place, place_alike

pytestmark = pytest.mark.quick


def draw(seed, num_samples, num_clients, batch_size, num_rounds=3, local_steps=2, lacking=0.0):
    """Minibatches, and an owner for each sample, or -1 for a share of them; every client owns one."""
    rng = np.random.default_rng(seed)
    owner = rng.permutation(np.concatenate([np.arange(num_clients), rng.integers(0, num_clients, num_samples)]))
    owner = owner[: max(num_samples, num_clients)].astype(np.int32)
    owner[rng.random(len(owner)) < lacking] = -1
    owner[rng.permutation(len(owner))[:num_clients]] = np.arange(num_clients)
    ids = batch_ids(
        seed, range(num_rounds), num_samples=len(owner), batch_size=min(batch_size, len(owner)), local_steps=local_steps
    )
    return ids, owner


problems = st.builds(
    draw,
    seed=st.integers(0, 2**31),
    num_samples=st.integers(1, 60),
    num_clients=st.integers(1, 7) | st.integers(15, 20),
    batch_size=st.integers(1, 40),
    lacking=st.sampled_from([0.0, 0.3, 0.9]),
)


@num_examples(60)
@given(problems, st.integers(0, 3))
def test_positions_and_slots_undo_each_other(problem, spare):
    ids, owner = problem
    num_clients = owner.max() + 1
    counts = holders(ids, owner, num_clients)
    width = int(counts.max()) + spare
    positions, kept, rows, slots = place(ids, owner, counts, width)
    assert positions.shape == (len(ids), num_clients, ids.shape[1], width)
    assert kept.tolist() == counts.tolist()
    for r, e in np.ndindex(ids.shape[:2]):
        seen = []
        for k in range(num_clients):
            for p in range(width):
                if p < counts[r, k, e]:
                    position = positions[r, k, e, p]
                    assert owner[ids[r, e, position]] == k
                    assert rows[r, e, len(seen)] == ids[r, e, position]
                    assert slots[r, e, position] == len(seen)
                    seen.append(position)
                else:
                    assert positions[r, k, e, p] == 0
            # A client's rows keep the order of the minibatch.
            mine = positions[r, k, e, : counts[r, k, e]].tolist()
            assert mine == sorted(mine)
        # Samples that no client holds have no row.
        held = np.flatnonzero(owner[ids[r, e]] >= 0)
        assert sorted(seen) == held.tolist()
        assert (np.delete(slots[r, e], held) == ids.shape[2]).all()
        assert (rows[r, e, len(held) :] == 0).all()


@given(problems)
def test_holders_counts_each_clients_rows(problem):
    ids, owner = problem
    counts = holders(ids, owner, owner.max() + 1)
    for r, k, e in np.ndindex(counts.shape):
        assert counts[r, k, e] == sum(owner[sample] == k for sample in ids[r, e])


def chance_of_more(count, num_samples, held, batch_size):
    """That a minibatch has more than ``count`` of a client's rows: the tail of the hypergeometric distribution."""

    def log_ways(total, chosen):
        return gammaln(total + 1) - gammaln(chosen + 1) - gammaln(total - chosen + 1)

    more = np.arange(max(count + 1, held + batch_size - num_samples), min(held, batch_size) + 1)
    ways = log_ways(held, more) + log_ways(num_samples - held, batch_size - more)
    return np.exp(ways - log_ways(num_samples, batch_size)).sum()


@pytest.mark.parametrize("num_samples", [60, 1000, 20000])
@pytest.mark.parametrize("clients", [1, 2, 5, 20, 50])
@pytest.mark.parametrize("share", [0.005, 0.05, 0.5, 1.0])
def test_the_usual_padding_is_rarely_exceeded_and_not_wasteful(num_samples, clients, share):
    owner = (np.arange(num_samples) * clients // num_samples).astype(np.int32)
    held, batch_size = np.bincount(owner).max(), max(1, round(share * num_samples))
    usual = Placer(owner, batch_size).usual
    assert chance_of_more(usual, num_samples, held, batch_size) < 1e-5
    mean = batch_size * held / num_samples
    deviation = np.sqrt(mean * (1 - held / num_samples) * (num_samples - batch_size) / (num_samples - 1))
    assert usual <= min(held, batch_size, mean + 4.5 * deviation + 8)


@num_examples(40)
@given(problems)
def test_paddings_fit_every_round_and_depend_on_that_round_alone(problem):
    ids, owner = problem
    placer = Placer(owner, ids.shape[2])
    counts = placer.count(ids)
    levels = placer.levels(counts)
    widths = np.array([placer.padding.width(level) for level in levels])
    assert widths.shape == (len(ids),)
    assert (widths >= counts.max(axis=(1, 2))).all()
    assert (widths >= placer.usual).all()
    assert (widths <= min(np.bincount(owner[owner >= 0]).max(), ids.shape[2])).all()
    for r in range(len(ids)):
        assert placer.levels(counts[r : r + 1])[0] == levels[r]


def test_a_round_beyond_the_usual_padding_gets_a_little_more():
    num_clients, held, batch_size = 10, 100, 200
    placer = Placer(np.repeat(np.arange(num_clients, dtype=np.int32), held), batch_size)
    counts = np.zeros((4, num_clients, 1), np.int32)
    counts[:, 3, 0] = placer.usual, placer.usual + 1, placer.usual + placer.usual // 4 + 1, held
    step = placer.usual // 4
    widths = [placer.padding.width(level) for level in placer.levels(counts)]
    assert widths == [placer.usual, placer.usual + step, placer.usual + 2 * step, held]
    crowd = np.arange(3 * held, 4 * held, dtype=np.int32)
    ids = np.concatenate([crowd, np.arange(100, dtype=np.int32)]).reshape(1, 1, batch_size)
    placed = placer.place(ids, placer.count(ids), held)
    assert placed.positions[0, 3, 0].tolist() == list(range(100))
    assert placed.rows[0, 0].tolist() == [*range(held), *crowd]
    assert placed.slots[0, 0].tolist() == [*range(held, 2 * held), *range(held)]


def test_silos_of_very_many_clients_are_placed_too():
    num_clients = (1 << 16) + 2
    owner = np.arange(num_clients, dtype=np.int32)
    ids = np.array([[[5, 1 << 16, 0]]], np.int32)
    counts = holders(ids, owner, num_clients)
    placed = place(ids, owner, counts, 1)
    assert placed.rows.tolist() == [[[0, 5, 1 << 16]]]
    assert placed.slots.tolist() == [[[1, 2, 0]]]


def test_prefixes_are_what_a_client_often_needs():
    """A few minibatches fit in the first, nearly all in the last."""
    num_clients, num_samples, batch_size = 20, 20_000, 1000
    owner = (np.arange(num_samples) % num_clients).astype(np.int32)
    placer = Placer(owner, batch_size)
    ids = batch_ids(3, range(200), num_samples=num_samples, batch_size=batch_size, local_steps=1)
    counts = placer.count(ids)[:, :, 0]
    prefixes = placer.padding.prefixes()
    assert list(prefixes) == sorted(set(prefixes))
    assert prefixes[-1] < placer.usual
    enough = [np.mean(counts <= size) for size in prefixes]
    assert 0.01 < enough[0] < 0.2
    assert 0.95 < enough[-1] < 1


@pytest.mark.parametrize("batch_size", [64, 640, 5000, 12_800])
@pytest.mark.parametrize("together", [1, 500, 2500])
def test_tight_paddings_have_room_for_whatever_is_drawn(batch_size, together):
    usual, tight = Padding(600, 60_000, batch_size), Padding(600, 60_000, batch_size)
    tight.tighten(together)
    for most in range(min(600, batch_size) + 1):
        for padding in (usual, tight):
            assert most <= padding.enough_for(most) == padding.width(int(padding.levels(np.array(most))))


def test_tight_paddings_hold_every_round_and_are_rarely_much_more_than_it_needs():
    num_samples, batch_size, local_steps = 6000, 640, 5
    owners = [(np.arange(num_samples) % clients).astype(np.int32) for clients in (10, 4, 1)]
    placers = [Placer(owner, batch_size) for owner in owners]
    for placer in placers:
        placer.padding.tighten(placer.num_clients * local_steps)
    ids = batch_ids(0, range(60), num_samples=num_samples, batch_size=batch_size, local_steps=local_steps)
    widths = []
    while len(ids):
        placements = place_alike([placers], ids[None])[0]
        for placer, placed in zip(placers, placements, strict=True):
            assert placed.counts.max() <= placed.positions.shape[3] <= placer.usual
        widths += [placements[0].positions.shape[3]] * len(placements[0].rows)
        ids = ids[len(placements[0].rows) :]
    assert len(widths) == 60
    assert 2 <= len(set(widths)) <= 4
    assert np.mean(widths) < placers[0].usual - 8


def test_silos_are_padded_to_the_level_that_one_of_them_needs():
    owners = [np.repeat(np.arange(clients, dtype=np.int32), 1000 // clients) for clients in (10, 5)]
    placers = [Placer(owner, 200) for owner in owners]
    crowd = np.concatenate([np.arange(100), np.arange(200, 1000, 8)]).astype(np.int32)
    placements = place_alike([placers], crowd[None, None, None])[0]
    level = int(placers[0].levels(placers[0].count(crowd[None, None]))[0])
    assert level > placers[1].levels(placers[1].count(crowd[None, None]))[0]
    assert [p.positions.shape[3] for p in placements] == [placer.padding.width(level) for placer in placers]
