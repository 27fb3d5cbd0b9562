"""docs/draws.md says how everything is drawn: its code, its test vectors and the package agree."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tdcd.core.codecs.codec import Sending, seed_words
from tdcd.core.family.dropout import SiloDropout
from tdcd.core.family.participation import RandomClients
from tdcd.core.schedule import batch_ids
from tdcd.data.table import holdout_mask

pytestmark = pytest.mark.quick

PAGE = (Path(__file__).parents[1] / "docs" / "draws.md").read_text(encoding="utf-8")
VECTORS = json.loads(re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)[1])


@pytest.fixture(scope="module")
def page():
    """The functions of the page, which import nothing."""
    names = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        assert "import" not in code
        exec(code, names)
    return names


@pytest.mark.parametrize("given", VECTORS["minibatches"])
def test_minibatches(given, page):
    seed, round_index, num_samples, size, count, ids = given.values()
    assert page["minibatches"](seed, round_index, num_samples, size, count) == ids
    ours = batch_ids(seed, [round_index], num_samples=num_samples, batch_size=size, local_steps=count)
    assert ours[0].tolist() == ids


@pytest.mark.parametrize("given", VECTORS["permuted minibatches"])
def test_permuted_minibatches(given, page):
    seed, round_index, num_samples, size, count, ids = given.values()
    assert page["permuted_minibatches"](seed, round_index, num_samples, size, count) == ids
    sizes = {"num_samples": num_samples, "batch_size": size, "local_steps": count}
    assert batch_ids(seed, [round_index], **sizes, draws="permutation")[0].tolist() == ids


def test_many_minibatches_of_all_sizes(page):
    for seed, (num_samples, size) in enumerate([(1, 1), (4, 1), (7, 7), (64, 16), (65, 17), (4096, 1024)]):
        ours = batch_ids(seed, range(3), num_samples=num_samples, batch_size=size, local_steps=2)
        theirs = [page["minibatches"](seed, round_index, num_samples, size, 2) for round_index in range(3)]
        assert ours.tolist() == theirs


@pytest.mark.parametrize("given", VECTORS["participation"])
def test_participation(given, page):
    seed, round_index, silo, num_clients, fraction, answer = given.values()
    assert page["answering"](seed, round_index, silo, num_clients, fraction) == answer
    ours = RandomClients(fraction).answering(seed, round_index, silo, num_clients)
    assert np.flatnonzero(ours).tolist() == answer


@pytest.mark.slow
@pytest.mark.parametrize("given", VECTORS["silo dropout"])
def test_silo_dropout(given, page):
    seed, round_index, silo, (count, size), rate, dropped = given.values()
    assert page["dropped"](seed, round_index, silo, count * size, rate) == dropped
    kept = SiloDropout(rate).kept(Sending(seed_words(seed), round_index, silo, (count, size, 1)))
    assert np.flatnonzero(~np.asarray(kept)).tolist() == dropped


@pytest.mark.slow
@pytest.mark.parametrize("given", VECTORS["dither"])
def test_dither(given, page):
    seed, round_index, silo, stream, shape, dither = given.values()
    assert page["dither"](seed, round_index, silo, stream, np.prod(shape)) == dither
    ours = Sending(seed_words(seed), round_index, silo, tuple(shape), stream).dither()
    assert np.asarray(ours).ravel().tolist() == dither


@pytest.mark.parametrize("given", VECTORS["permutation"])
def test_permutations(given, page):
    numbers, size, order = given.values()
    assert page["permutation"](numbers, size) == order
    assert np.random.default_rng(numbers).permutation(size).tolist() == order


@pytest.mark.parametrize("given", VECTORS["held out"])
def test_held_out_samples(given, page):
    seed, total, fraction, held_out = given.values()
    assert sorted(page["permutation"]((seed, 1000), total)[: round(fraction * total)]) == held_out
    assert np.flatnonzero(holdout_mask(total, fraction, seed)).tolist() == held_out
