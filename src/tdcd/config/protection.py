"""What is wrong with masks: where they would hide nothing, and what does not go with them."""

from tdcd.config.errors import clashing
from tdcd.config.schema import Config, ExchangeSection
from tdcd.core.words import counted

FEWEST = 3
"""Silos, or clients in a silo: with two, a sum less one's own part is the other's."""
FEWEST_LEFT = 2
"""Clients whose blocks are added up, when others are gone: the sum of one is its block."""


def protection_problems(config: Config) -> list[str]:
    """A sentence for each thing that is wrong."""
    exchange, problems = config.exchange, []
    if exchange.protect == "mask":
        problems += _mask_problems(config)
    if exchange.protect_blocks:
        problems += _block_problems(config)
    hides = exchange.protect == "mask" or exchange.protect_blocks
    if exchange.mask_range != ExchangeSection().mask_range and not hides:
        problems.append(
            f"exchange.mask_range = {exchange.mask_range:g}: goes with exchange.protect = 'mask' or protect_blocks = "
            "true; leave it out"
        )
    return problems


def _mask_problems(config: Config) -> list[str]:
    where, silos, labels = "exchange.protect = 'mask'", config.num_silos, config.federation.labels
    problems = []
    if silos < FEWEST and labels is None:
        problems.append(
            f"{where}: with {counted(silos, 'silo')} the sum of the other silos' phi is that of one, so masks would "
            f"hide nothing; it takes {FEWEST} silos, or leave it out"
        )
    elif silos < FEWEST:
        problems.append(
            f"{where}: beside federation.labels = {labels!r} there is one silo, so the sum that its hub gets would be "
            "that silo's phi; it takes two silos without labels, or leave it out"
        )
    clashes = [
        (
            config.exchange.phi_bits < 32,
            f"exchange.phi_bits = {config.exchange.phi_bits}",
            "masks take up all 32 bits",
        ),
        (
            config.federation.client_grace_s is not None,
            f"federation.client_grace_s = {config.federation.client_grace_s}",
            "samples that a silo leaves out would be in a sum of fewer silos, which may be one",
        ),
        (
            config.train.participation < 1,
            f"train.participation = {config.train.participation}",
            "samples that a silo leaves out would be in a sum of fewer silos, which may be one",
        ),
        (
            config.train.silo_dropout > 0,
            f"train.silo_dropout = {config.train.silo_dropout}",
            "a sample without the silos that are dropped would be in a sum of fewer silos, which may be one",
        ),
    ]
    return problems + clashing(where, clashes)


def _block_problems(config: Config) -> list[str]:
    where, problems = "exchange.protect_blocks = true", []
    few = [
        f"{name} ({count})"
        for name, count in zip(config.silo_names, config.client_counts, strict=False)
        if count < FEWEST
    ]
    if few:
        problems.append(
            f"{where}: every silo needs {FEWEST} clients, since of two each knows the other's block from the sum; "
            f"there are fewer at {', '.join(few)}"
        )
    clashes = [
        (
            config.exchange.block_bits < 32,
            f"exchange.block_bits = {config.exchange.block_bits}",
            "masks take up all 32 bits",
        ),
        (
            config.train.participation < 1,
            f"train.participation = {config.train.participation}",
            "the sum over the few that answer may be one client's block",
        ),
    ]
    return problems + clashing(where, clashes)
