"""Words for values: the same in every process, and different if the values are."""

import subprocess
import sys
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np
import optax
import pytest

from tdcd.core.family.optimizers import ClientOptimizer
from tdcd.training.description import identity, unknown_in

RATE = 0.5


@dataclass(frozen=True)
class Shape:
    kind: str
    parts: tuple = ()


class Plain:
    def __init__(self, factor):
        self.factor = factor

    def times(self, step):
        return self.factor * step


class Slotted:
    __slots__ = ("factor",)


def power(rate):
    def factor(step):
        return rate**step

    return factor


def itself():
    def again(step):
        return again(step - 1) if step else 0

    return again


PAIRS = {
    "numbers": (1, 1.0),
    "fields": (Shape("mlp"), Shape("cnn")),
    "inside": (Shape("x", (1, [2])), Shape("x", (1, [3]))),
    "mappings": ({"a": 1}, {"a": 2}),
    "attributes": (Plain(0.5), Plain(0.2)),
    "methods": (Plain(0.5).times, Plain(0.2).times),
    "arguments": (partial(power, 2), partial(power, 3)),
    "closures": (power(0.5), power(0.2)),
    "code": (lambda step: step + 1, lambda step: step + 2),
    "names": (lambda step: np.sin(2 * step), lambda step: np.cos(2 * step)),
    "defaults": (lambda step, rate=0.5: rate, lambda step, rate=0.2: rate),
    "compiled": (jax.jit(power(0.5)), jax.jit(power(0.2))),
    "arrays": (np.arange(3.0), np.arange(3.0) + 1),
    "types of arrays": (np.zeros(2, np.float32), np.zeros(1, np.float64)),
    "arrays of objects": (np.array([None, 1]), np.array([None, 2])),
    "keys": (jax.random.key(0), jax.random.key(1)),
    "sets": ({"a", "b"}, {"a", "c"}),
    "optimisers": (optax.sgd(0.1, momentum=0.9), optax.sgd(0.1, momentum=0.8)),
    "schedules": (
        ClientOptimizer(factor=optax.linear_schedule(1.0, 0.0, 10)),
        ClientOptimizer(factor=optax.linear_schedule(1.0, 0.0, 11)),
    ),
}


@pytest.mark.parametrize("what", PAIRS)
def test_different_values_have_different_words(what):
    one, other = (identity(value) for value in PAIRS[what])
    assert one != other
    assert " at 0x" not in one
    assert not unknown_in(one)


def test_a_function_counts_with_what_it_reads_from_its_module(monkeypatch):
    read = lambda step: RATE * step  # noqa: E731
    before = identity(read)
    assert before == identity(read)
    monkeypatch.setitem(globals(), "RATE", 0.2)
    assert identity(read) != before


def test_a_function_may_be_a_part_of_itself():
    assert "again=itself" in identity(itself())
    assert identity(itself()) == identity(itself())


@pytest.mark.parametrize("value", [object(), Slotted(), np.random.default_rng(0)], ids=["bare", "slots", "generator"])
def test_what_cannot_be_distinguished_is_reported_as_unknown(value):
    assert unknown_in(identity(Shape("x", (value,)))).rpartition(".")[2] == type(value).__name__


def test_other_processes_find_the_same_words():
    code = (
        "import optax; from tdcd.training.description import identity\n"
        "print(identity((optax.adamw(optax.cosine_decay_schedule(1.0, 9)), lambda x: x in {'a', 'b', 'c', 'd'})))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
