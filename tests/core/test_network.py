"""The network model against a hand-computed round, its laws, and the ledger's bytes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.ledgers import ledger as ledger_of
from tdcd.config import ConfigError, check_config
from tdcd.core.ledger import by_link
from tdcd.core.network import INSIDE, PRESETS, Link, Network, preset
from tdcd.core.pace import seconds_per_round, silo_works

pytestmark = pytest.mark.quick

links = st.builds(Link, st.floats(0, 1), st.floats(1, 1e9))
networks = st.builds(Network, links, links)
silos = st.lists(
    st.tuples(st.integers(1, 1000), st.lists(st.integers(1, 50), min_size=1, max_size=4)), min_size=1, max_size=4
)


@st.composite
def rounds(draw):
    """The figures of some round."""
    parameters, clients = zip(*draw(silos), strict=True)
    return {
        "parameters": list(parameters),
        "shares": [max(rows) / sum(rows) for rows in clients],
        "inside": draw(st.integers(1, 40000)),
        "between": draw(st.integers(1, 40000)),
        "itemsize": draw(st.sampled_from([4, 8])),
        "phi_seconds": draw(st.floats(0, 1)),
        "step_seconds": draw(st.floats(0, 1)),
        "local_steps": draw(st.integers(1, 20)),
    }


def round_seconds(network, *, parameters, inside, between, itemsize, **figures):
    """What a round takes where everybody is in step and as fast."""
    ledger = ledger_of(parameters, [1] * len(parameters), inside, between, itemsize)
    return seconds_per_round(silo_works(network, ledger, **figures))


def test_a_round_by_hand():
    network = Network(Link(0.01, 1000), Link(0.1, 500))
    found = round_seconds(
        network,
        parameters=[100, 10],
        shares=[0.75, 0.5],
        inside=400,
        between=100,
        itemsize=4,
        phi_seconds=0.02,
        step_seconds=0.003,
        local_steps=5,
    )
    # Silo 1 is the slower one: 400 bytes of block, and three quarters of 400 bytes of phi for its larger
    # client. Between hubs phi is encoded in 100 bytes.
    block_down, phi_up = 0.01 + 0.4, 0.01 + 0.3
    exchange = 0.1 + 100 / 500
    others_down, block_up = 0.01 + 0.3, 0.01 + 0.4
    assert found == pytest.approx(block_down + 0.02 + phi_up + exchange + others_down + 5 * 0.003 + block_up)


def test_one_silo_alone_sends_blocks_only():
    network = Network(Link(0.01, 1000), Link(7, 1))
    figures = {"inside": 36, "between": 36, "itemsize": 4, "phi_seconds": 3.0, "step_seconds": 0.5, "local_steps": 2}
    assert round_seconds(network, parameters=[100], shares=[0.7], **figures) == pytest.approx(2 * 0.41 + 1)


@given(networks, rounds())
def test_time_is_the_network_plus_the_computing(network, figures):
    no_computing = figures | {"phi_seconds": 0.0, "step_seconds": 0.0}
    computing = round_seconds(Network(INSIDE, INSIDE), **figures)
    phi = figures["phi_seconds"] if len(figures["parameters"]) > 1 else 0
    assert computing == pytest.approx(phi + figures["local_steps"] * figures["step_seconds"])
    assert round_seconds(network, **figures) == pytest.approx(round_seconds(network, **no_computing) + computing)


@given(networks, rounds(), st.floats(0, 1), st.integers(0, 100))
def test_nothing_gets_faster_by_more_of_anything(network, figures, more, extra):
    before = round_seconds(network, **figures) * (1 - 1e-9)
    slow = [Link(link.latency_s + more, link.bytes_per_s / (1 + more)) for link in vars(network).values()]
    assert round_seconds(Network(*slow), **figures) >= before
    for name in ("inside", "between", "local_steps"):
        assert round_seconds(network, **figures | {name: figures[name] + extra}) >= before
    wider = [count + extra for count in figures["parameters"]]
    assert round_seconds(network, **figures | {"parameters": wider}) >= before
    one_more = {"parameters": [*figures["parameters"], 1 + extra], "shares": [*figures["shares"], 0.75]}
    assert round_seconds(network, **figures | one_more) >= before


@given(st.integers(1, 5), st.integers(1, 100), st.integers(1, 100), st.integers(1, 5))
def test_a_silo_with_one_client_takes_as_long_as_its_ledger_has_bytes(num_silos, parameters, samples, outputs):
    """At one byte a second and no latency, each silo's time is its part of what the ledger counts."""
    one = Link(0, 1)
    figures = {"inside": samples * outputs * 4, "between": samples * outputs * 4, "itemsize": 4}
    traffic = by_link(ledger_of([parameters] * num_silos, [1] * num_silos, **figures).after(1), "bytes")
    idle = {"phi_seconds": 0.0, "step_seconds": 0.0, "local_steps": 1}
    found = round_seconds(
        Network(one, one), parameters=[parameters] * num_silos, shares=[1.0] * num_silos, **figures, **idle
    )
    assert found == pytest.approx(traffic.total / num_silos)


def test_presets_by_name():
    assert preset("wan") == PRESETS["wan"]
    assert str(preset("wan").hub_hub) == "30 ms, 100 Mbit/s"
    assert preset("mobile").hub_hub == preset("wan").hub_hub
    with pytest.raises(ValueError, match="there is no network 'wann'; there are lan, wan, mobile"):
        preset("wann")


@pytest.mark.parametrize(
    ("latency", "speed", "message"),
    [(-1, 1, "latency must be a number of at least 0, not -1"), (0, 0, "bandwidth must be more than 0, not 0")],
)
def test_impossible_links_are_refused(latency, speed, message):
    with pytest.raises(ValueError, match=message):
        Link(latency, speed)
    with pytest.raises(ValueError, match="latency"):
        Link(math.inf, 1)


def test_the_configuration_checks_its_links():
    with pytest.raises(ConfigError) as caught:
        check_config({"network": {"preset": "wann", "client_hub": {"latncy_ms": 3.0, "mbit_s": 0.0}, "hub_hub": 3}})
    assert caught.value.problems == [
        "network.preset = 'wann': must be 'lan', 'wan' or 'mobile'",
        "network.client_hub.latency_ms: is missing",
        "network.client_hub.mbit_s = 0.0: must be greater than 0",
        "network.client_hub.latncy_ms: there is no such key; did you mean 'latency_ms'?",
        "network.hub_hub = 3: must be a table of keys",
    ]


def test_silos_may_be_slower_and_a_wrong_name_or_figure_is_refused():
    named = {"silos": [{"name": "lab"}, {"name": "bank"}]}
    assert check_config(named | {"network": {"slower": {"lab": 4}}}).network.slower == {"lab": 4.0}
    assert check_config({"network": {"slower": {"silo2": 1.5}}}).network.slower == {"silo2": 1.5}
    with pytest.raises(ConfigError) as caught:
        check_config(named | {"network": {"slower": {"labb": 4.0}}})
    assert caught.value.problems == ["network.slower: there is no silo 'labb'; there are lab, bank"]
    with pytest.raises(ConfigError) as caught:
        check_config(named | {"network": {"slower": {"lab": 0.25}}})
    assert caught.value.problems == ["network.slower = {'lab': 0.25}: must be greater than or equal to 1"]
    with pytest.raises(ConfigError) as caught:
        check_config(named | {"network": {"slower": 4}})
    assert caught.value.problems == ["network.slower = 4: must be a table of keys"]
