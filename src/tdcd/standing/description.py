"""What a person has to know of a job to decide, in plain words."""

from collections.abc import Sequence

from tdcd.config import Config
from tdcd.core.words import counted, one_line
from tdcd.runtime.certificates.check import when
from tdcd.standing.facts import Facts, Reads
from tdcd.standing.jobs import JobState
from tdcd.standing.policy import Policy

Lines = list[tuple[str, str]]
MOST_SHOWN = 1 << 20
"""Letters of a value: more than can come of a shared file, so that nothing that people decide by is cut off."""
NOT_DELETED = "backups, and what partners and people were given of it before, are not deleted"


def describe(state: JobState, newcomers: Sequence[str] = ()) -> Lines:
    """What a job does, each with its heading; texts of the proposer cannot look like further lines.

    Args:
        newcomers: the parties that join by it.
    """
    return [(heading, one_line(words, MOST_SHOWN)) for heading, words in _described(state, newcomers)]


def _described(state: JobState, newcomers: Sequence[str]) -> Lines:
    offer, config = state.offer, state.job.config
    lines = [
        ("job", state.name),
        ("proposed by", f"{offer.proposer}, contact {offer.contact or 'not given'}"),
        ("purpose", offer.purpose or "not given"),
        ("must begin by", when(offer.expires)),
        ("steps", ", ".join(offer.steps)),
        *([("about", f"job {offer.of}")] if offer.of is not None and offer.kind in ("predict", "delete") else []),
        *(
            [("known ids", f"those of job {offer.of}, not compared again")]
            if offer.of and offer.kind == "train"
            else []
        ),
    ]
    if offer.kind == "join":
        return [*lines, *_joining(state, newcomers)]
    if offer.kind == "delete":
        return [*lines, ("deletes", f"at every party the folder of that job, run and model in it; {NOT_DELETED}")]
    if offer.kind == "audit":
        return [*lines, *_audit(state), _protection(config)]
    return [
        *lines,
        *(_prediction(state) if offer.kind == "predict" else _training(state)),
        _protection(config),
    ]


def _joining(state: JobState, newcomers: Sequence[str]) -> Lines:
    job, lines = state.job, []
    for hub, silo in zip(job.hubs, job.config.silos, strict=True):
        if hub in newcomers:
            lines.append(("joins", f"silo {silo.name}: {hub} at {silo.hub}, clients {', '.join(silo.client_names)}"))
        else:
            lines += [("joins", party) for party in job.clients(job.silo_index(silo.name)) if party in newcomers]
    whole = "every entry of it, of before, too; what later jobs send it, those say"
    return [*lines, ("who gets the log", f"they: {whole}")]


def _training(state: JobState) -> Lines:
    config, steps = state.job.config, state.offer.steps
    labels, is_encrypted = config.federation.labels, config.federation.protect_labels == "encrypt"
    if labels is None:
        words = "all silos have them"
    elif is_encrypted:
        words = f"only silo {labels} has them; its slopes are sent encrypted"
    else:
        words = f"only silo {labels} has them, and its slopes are sent as they are, which reveals {_labels(config)}"
    samples = []
    if config.data.samples == "all":
        samples = [("samples", f"all with a label, also those that some silos lack; {_numbers(config)}")]
    return [
        *(("columns", f"{silo.name}: {Reads.of(config, silo).in_words()}") for silo in config.silos),
        ("levels", f"of categories with fewer than {config.data.rare} rows in a silo become 'other'"),
        ("labels", words),
        *samples,
        ("leaves a client", _leaves_client(config)),
        ("leaves a hub", _leaves_hub(config) + "; blinded ids, to find those that all have" * ("align" in steps)),
        *([] if config.train.start is None else [("starts from", _start(config.train.start))]),
        ("rounds", f"{config.train.rounds:,}"),
        (
            "who gets the model",
            "every hub all blocks"
            if config.federation.share_model
            else f"every hub its own silo's block, of {counted(len(config.silos), 'silo')}",
        ),
    ]


def _start(former: str) -> str:
    return f"the model of job {former}; silos that were not in it begin anew"


def _audit(state: JobState) -> Lines:
    config, proposer = state.job.config, state.offer.proposer
    return [
        *(("columns", f"{silo.name}: {Reads.of(config, silo).in_words()}") for silo in config.silos),
        (
            "audits",
            "every client attacks its own rows, at its own site; random numbers stand in for other silos' columns",
        ),
        ("leaves a client", "how much each attack recovered, to its hub: a number per attack, no row and no phi"),
        ("leaves a hub", f"the same of the client that fared worst, to {proposer}"),
        ("who gets the report", f"{proposer}; every client the page about its own rows"),
    ]


def _prediction(state: JobState) -> Lines:
    config = state.job.config
    read = (f"{silo.name}: {Reads.of(config, silo).for_prediction().in_words()}" for silo in config.silos)
    phi = "masked phi, of which the others learn the sum" if config.exchange.protect == "mask" else "phi"
    return [
        *(("columns", f"{words}, of new rows") for words in read),
        ("leaves a client", "ids and phi of its new rows, to its hub"),
        ("leaves a hub", f"blinded ids, and {phi} of new rows that others have too, to those who get predictions"),
        ("who gets predictions", ", ".join(state.offer.to)),
        ("kept by them", f"predictions; and phi, from which they may answer until {when(state.offer.expires)}"),
    ]


def _labels(config: Config) -> str:
    epsilon = config.federation.label_epsilon
    return "the labels" if epsilon is None else f"labels randomised with epsilon {epsilon:g}"


def _numbers(config: Config) -> str:
    if config.federation.labels is not None:
        return "its hub learns which of its samples each silo has"
    return "hubs learn which silo has which sample, by number, and its label"


def _leaves_client(config: Config) -> str:
    words = ["ids", f"{_labels(config)} where the silo has them"]
    words += ["weights"] * any(silo.weight for silo in config.silos)
    is_binned = config.model.chosen_encoding != "standard"
    words.append("counts and sketches of columns" if is_binned else "sums and counts of columns")
    words += ["mean products of columns"] * (config.train.is_automatic and "linear" in config.block_names)
    words.append("phi")
    if config.federation.protect_labels == "encrypt":
        words.append("encrypted gradients where labels are not")
    words.append("blocks of which the hub learns the sum only" if config.exchange.protect_blocks else "blocks")
    return ", ".join(words)


def _leaves_hub(config: Config) -> str:
    holder = config.federation.labels
    phi = "phi under masks, of which others learn the sum only" if config.exchange.protect == "mask" else "phi"
    if holder is None:
        return phi
    slopes = "encrypted slopes" if config.federation.protect_labels == "encrypt" else f"slopes of {_labels(config)}"
    return f"{phi}, to the hub of {holder}; from there {slopes}"


def _protection(config: Config) -> tuple[str, str]:
    exchange, federation = config.exchange, config.federation
    is_whole = exchange.protect == "mask" and exchange.protect_blocks
    words = [
        f"exchange.protect = {exchange.protect!r}",
        f"exchange.protect_blocks = {str(exchange.protect_blocks).lower()}",
        f"exchange.epsilon = {exchange.epsilon} (noise on phi)",
        f"exchange.block_epsilon = {exchange.block_epsilon} (noise on blocks)",
        f"federation.label_epsilon = {federation.label_epsilon}",
        f"federation.protect_labels = {federation.protect_labels!r}",
    ]
    return "protection", "; ".join(words + ["some numbers are sent as they are"] * (not is_whole))


def epsilon_in_words(policy: Policy | None, facts: Facts) -> Lines:
    """What a job asks of the own silo's labels, and what is left of this month's; nothing if it does not use them."""
    if not facts.has_labels:
        return []
    if facts.label_epsilon is None:
        return [("epsilon", "the labels of your silo are not randomised")]
    asked = "nothing more, the same labels were drawn before" if not facts.epsilon_asked else f"{facts.epsilon_asked:g}"
    words = f"asks for {asked}; {facts.epsilon_spent:g} spent in 30 days"
    if policy is not None and policy.epsilon_per_month is not None:
        left = max(0.0, policy.epsilon_per_month - facts.epsilon_spent)
        words += f", {left:g} of {policy.epsilon_per_month:g} left"
    return [("epsilon", words)]
