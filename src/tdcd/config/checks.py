"""What is wrong between keys of a configuration that are right by themselves: weights and masks, too."""

from collections.abc import Sequence

from tdcd.config.errors import clashing
from tdcd.config.schema import Config, DataSection, ExchangeSection, ModelSection, SiloSection
from tdcd.core.knowledge import IN_FULL, THIS_ROUND
from tdcd.core.losses import LOSSES, needs_labels
from tdcd.core.losses.huber import DELTA
from tdcd.core.randomized import problem_with
from tdcd.core.words import counted, there_are


def cross_checks(config: Config) -> list[str]:
    """What is wrong between keys that are right by themselves."""
    federation, problems = config.federation, []
    for key, value in (("federation.clients", federation.clients), ("model.block", config.model.block)):
        if isinstance(value, list) and len(value) != config.num_silos:
            entries = counted(len(value), "entry", "entries")
            problems.append(f"{key} = {value}: has {entries}, but {there_are(config.num_silos, 'silo')}")
    problems += _silo_checks(config)
    if "torch" in config.block_names and config.model.module is None:
        problems.append("model.module: is missing; a torch block needs 'package.module:function'")
    problems += _encoding_checks(config) + _sample_checks(config)
    if federation.aligned and len(set(config.client_counts)) > 1:
        counts = config.client_counts
        problems.append(f"federation.aligned = true: silos that split rows alike have as many clients, not {counts}")
    if federation.sizes is not None and federation.rows == "dirichlet":
        problems.append("federation.sizes: rows = 'dirichlet' draws the shard sizes itself; leave sizes out")
    if (config.train.algorithm == "local-sgd") != (config.train.silo is not None):
        problems.append("train.silo: give it with algorithm = 'local-sgd', which trains that silo alone, and only then")
    problems += [
        f"network.slower: there is no silo '{name}'; there are {', '.join(config.silo_names)}"
        for name in config.network.slower
        if name not in config.silo_names
    ]
    if config.model.loss != "huber" and config.model.huber_delta != DELTA:
        problems.append(
            f"model.huber_delta = {config.model.huber_delta:g}: goes with model.loss = 'huber'; leave it out"
        )
    for key, head in (("head_units", "hidden"), ("head_rank", "pairs")):
        value = getattr(config.model, key)
        if config.model.head != head and value != ModelSection.model_fields[key].default:
            problems.append(f"model.{key} = {value}: goes with model.head = {head!r}; leave it out")
    family = _family_checks(config) + _label_checks(config) + _epsilon_checks(config)
    return problems + family + weight_problems(config) + protection_problems(config)


def _encoding_checks(config: Config) -> list[str]:
    """What is wrong with how amounts become features."""
    encoding, bins, source = config.model.encoding, config.model.bins, config.data.source
    given = {
        f"model.encoding = {encoding!r}": encoding in ("bins", "piecewise"),
        f"model.bins = {bins}": bins is not None,
    }
    if source != "files":
        return [
            f"{key}: goes with data.source = 'files', not {source!r}, whose features are ready; leave it out"
            for key, is_given in given.items()
            if is_given
        ]
    if encoding == "standard" and bins is not None:
        return [f"model.bins = {bins}: goes with model.encoding = 'bins' or 'piecewise', not 'standard'; leave one out"]
    return []


def _sample_checks(config: Config) -> list[str]:
    """What is wrong with samples that only some silos know."""
    data, train = config.data, config.train
    if data.samples == "common":
        is_given = data.standin != DataSection.model_fields["standin"].default
        given = f"data.standin = {data.standin!r}"
        return [f"{given}: goes with data.samples = 'all'; leave it out"] if is_given else []
    where = "data.samples = 'all'"
    if data.source != "files":
        return [f"{where}: goes with data.source = 'files', whose rows have ids, not {data.source!r}; leave it out"]
    labelled = [silo for silo in config.silos if silo.label is not None]
    weight = next((silo.weight for silo in config.silos if silo.weight is not None), None)
    clashes = [
        (data.align, "data.align = true", "that keeps to the ids that all silos have"),
        (train.algorithm != "tdcd", f"train.algorithm = {train.algorithm!r}", "baselines train on common samples"),
        (config.evaluate.alone, "evaluate.alone = true", "a silo alone would train on other samples"),
        (
            weight is not None and len(labelled) > 1,
            f"weight = {weight!r}",
            "where several silos have labels, a sample may lack the one that weighs it",
        ),
        (config.federation.aligned, "federation.aligned = true", "silos that lack rows split them in their own way"),
    ]
    return clashing(where, clashes)


def _label_checks(config: Config) -> list[str]:
    """What is wrong with labels at one silo."""
    silo, names, train = config.federation.labels, config.silo_names, config.train
    if silo is None:
        return []
    where = f"federation.labels = {silo!r}"
    if silo not in names:
        return [f"{where}: there is no such silo; there are {', '.join(names)}"]
    if len(names) == 1:
        return [f"{where}: there is no other silo; leave it out"]
    if train.algorithm != "tdcd":
        return [f"{where}: goes with train.algorithm = 'tdcd', not {train.algorithm!r}; leave it out"]
    clashes = [
        (train.overlap > 0, f"train.overlap = {train.overlap}", THIS_ROUND),
        (config.exchange.phi_bits < 32, f"exchange.phi_bits = {config.exchange.phi_bits}", IN_FULL),
        (config.evaluate.stratify, "evaluate.stratify = true", "which samples are held out would reveal labels"),
    ]
    loss = config.model.loss
    if loss is not None and loss in LOSSES and (problem := needs_labels(LOSSES[loss])):
        return [f"{where}: {problem}; leave it out"]
    clashes += [
        (
            section.label is not None and section.name != silo,
            f"silo '{section.name}': label = {section.label!r}",
            "it has none",
        )
        for section in config.silos
    ]
    clashes += [
        (section.period > 1, f"silo '{section.name}': period = {section.period}", THIS_ROUND)
        for section in config.silos
    ]
    return clashing(where, clashes)


def _epsilon_checks(config: Config) -> list[str]:
    """What is wrong with randomised labels."""
    epsilon, classes = config.federation.label_epsilon, config.federation.label_classes
    given = f"federation.label_classes = {classes}"
    if epsilon is None:
        return [f"{given}: goes with federation.label_epsilon; leave it out"] if classes else []
    where, problems = f"federation.label_epsilon = {epsilon:g}", []
    if problem := problem_with(epsilon):
        problems.append(f"{where}: {problem}")
    loss = config.model.loss
    if loss is not None and loss in LOSSES and LOSSES[loss].corrected is None:
        problems.append(
            f"{where}: randomised response needs classes, and model.loss = {loss!r} predicts amounts; leave it out"
        )
    if config.data.source != "files":
        return problems + ([f"{given}: goes with data.source = 'files'; leave it out"] if classes else [])
    if classes is None:
        problems.append(
            "federation.label_classes: is missing; a client must know every class before it randomises a label, and "
            'cannot ask others for theirs: write them all, such as label_classes = ["no", "yes"]'
        )
    elif repeated := _repeated([str(name) for name in classes]):
        problems.append(f"{given}: has {repeated[0]!r} twice")
    return problems


def _family_checks(config: Config) -> list[str]:
    """What is wrong with overlapped rounds, slow silos and few bits."""
    train, slow = config.train, [silo for silo in config.silos if silo.period > 1]
    overlap = f"train.overlap = {train.overlap}"
    periods = [f"silo '{silo.name}': period = {silo.period}" for silo in slow]
    late = ([overlap] if train.overlap else []) + periods
    dropout = [f"train.silo_dropout = {train.silo_dropout}"] if train.silo_dropout else []
    problems = [
        f"{key}: goes with train.algorithm = 'tdcd', not {train.algorithm!r}; leave it out"
        for key in late + dropout + config.exchange.changed
        if train.algorithm != "tdcd"
    ]
    if slow and len(slow) == len(config.silos):
        problems.append(
            "silos: every silo has a period above 1, and at least one must step in every round; leave it out at the "
            "fastest, and give the others how many times slower they are"
        )
    if config.exchange.phi_bits < 32 and config.num_silos == 1:
        problems.append(f"exchange.phi_bits = {config.exchange.phi_bits}: one silo alone sends no phi; leave it out")
    if train.overlap and config.num_silos == 1:
        problems.append(f"{overlap}: one silo alone waits for no other; leave it out")
    elif 0 < train.rounds <= train.overlap:
        problems.append(
            f"{overlap}: with train.rounds = {train.rounds} no silo would ever see a step of another; a few rounds, "
            "such as 1 or 2, hide the time that messages take"
        )
    problems += [
        f"{period}: with train.rounds = {train.rounds} it would never deliver an update; give more rounds"
        for period, silo in zip(periods, slow, strict=True)
        if 0 < train.rounds < silo.period
    ]
    if train.silo_dropout and config.num_silos == 1:
        problems.append(f"train.silo_dropout = {train.silo_dropout}: one silo alone cannot be missing; leave it out")
    if config.exchange.phi_bits == 4 and config.dtype == "float64":
        problems.append(
            "exchange.phi_bits = 4: dtype = 'float64' asks for 16 digits, and 4 bits keep one; use float32, or "
            "phi_bits = 32"
        )
    some = train.participation if train.participation < 1 else None
    away = {"federation.client_grace_s": config.federation.client_grace_s, "train.participation": some}
    problems += [
        f"{late[0]}: does not go with {key} = {value}, since a client that is away has sent phi of later rounds; leave "
        "one of them out"
        for key, value in away.items()
        if late and value is not None
    ]
    return problems


def _silo_checks(config: Config) -> list[str]:
    """What is wrong with ``[[silos]]``."""
    if not config.silos:
        return ["silos: data.source = 'files' needs [[silos]] with tables"] if config.data.source == "files" else []
    problems = [
        f"federation.{key} = {value}: leave it out, since [[silos]] says who there is"
        for key, value in (("silos", config.federation.silos), ("clients", config.federation.clients))
        if value is not None
    ]
    if config.data.source == "files" and config.data.rows is not None:
        problems.append(f"data.rows = {config.data.rows}: leave it out, since files are read whole")
    closed = [silo.name for silo in config.silos if not silo.accept_hubs]
    if len(closed) > 1:
        problems.append(
            f"silos '{closed[0]}' and '{closed[1]}': accept_hubs = false in both, but one of two hubs has to be "
            "dialled: let the port of one be opened for the other hubs"
        )
    problems += [f"silos: two silos are called '{name}'" for name in _repeated([silo.name for silo in config.silos])]
    named = [silo.features is not None for silo in config.silos]
    if any(named) and not all(named) and config.data.source != "files":
        problems.append("silos: name the features of every silo, or of none to have the columns dealt out")
    for silo in config.silos:
        where = f"silo '{silo.name}'"
        problems += [f"{where}: two clients are called '{name}'" for name in _repeated(silo.client_names)]
        if silo.client and silo.clients is not None:
            problems.append(f"{where}: give clients, or a list of [[silos.client]], not both")
        if config.data.source != "files" and (silo.table or silo.client):
            problems.append(f"{where}: tables go with data.source = 'files', not {config.data.source!r}")
        if config.data.source != "files" and silo.ignore:
            problems.append(f"{where}: ignore goes with data.source = 'files', not {config.data.source!r}")
        used = {silo.id, silo.label, silo.weight, *(silo.features or ()), *silo.categorical}
        twice = [name for name in silo.ignore if name in used]
        problems += [f"{where}: column '{name}' is under ignore and elsewhere: remove one of the two" for name in twice]
        problems += _key_problems(config, silo, where)
        if silo.table and silo.client:
            problems.append(f"{where}: give one table, or one for each of [[silos.client]], not both")
    return problems


def _key_problems(config: Config, silo: SiloSection, where: str) -> list[str]:
    """What is wrong with rows that are not one per sample."""
    given = {name: getattr(silo, name) for name in ("aggregate", "key", "link") if getattr(silo, name) is not None}
    if config.data.source != "files":
        return [
            f"{where}: {name} = {value!r} goes with data.source = 'files', not {config.data.source!r}"
            for name, value in given.items()
        ]
    problems = [f"{where}: aggregate has '{name}' twice: remove one" for name in _repeated(silo.aggregate or ())]
    if (silo.key is None) != (silo.link is None):
        lacking, there = ("link", "key") if silo.link is None else ("key", "link")
        problems.append(f"{where}: {there} = {given[there]!r} goes with {lacking}: give both, or neither")
    used = {silo.id, silo.label, silo.weight, *(silo.features or ()), *silo.categorical, *silo.ignore}
    if silo.key in used - {None}:
        problems.append(f"{where}: column '{silo.key}' is the key and something else: remove one of the two")
    return problems


def _repeated(names: Sequence[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def weight_keys(config: Config) -> list[str]:
    """The keys by which samples do not all weigh the same, with their values."""
    given = config.train.class_weights
    columns = [
        f"silo '{section.name}': weight = {section.weight!r}" for section in config.silos if section.weight is not None
    ]
    return [f"train.class_weights = {given!r}"] * (given is not None) + columns


def weight_problems(config: Config) -> list[str]:
    """What is wrong with ``train.class_weights`` and with ``weight`` under ``[[silos]]``."""
    given, keys, engine = config.train.class_weights, weight_keys(config), config.train.engine
    problems = _column_problems(config)
    for where in keys:
        is_other = engine in ("grouped", "flat")
        problems += clashing(where, [(is_other, f"train.engine = {engine!r}", "it gives all samples the same weight")])
    loss, epsilon = config.model.loss, config.federation.label_epsilon
    for where in keys[: given is not None]:
        clashes = [
            (
                loss is not None and loss in LOSSES and LOSSES[loss].target == "amount",
                f"model.loss = {loss!r}",
                "it predicts amounts",
            ),
            (epsilon is not None, f"federation.label_epsilon = {epsilon}", "no party knows a sample's true class"),
        ]
        problems += clashing(where, clashes)
    return problems


def _column_problems(config: Config) -> list[str]:
    problems, is_weighted = [], any(section.weight is not None for section in config.silos)
    for section in config.silos:
        where = f"silo '{section.name}'"
        if is_weighted and section.label is not None and section.weight is None:
            problems.append(f"{where}: weight is missing; give it in every silo that has a label, as another one does")
        if section.weight is None:
            continue
        if config.data.source != "files":
            problems.append(f"{where}: weight goes with data.source = 'files', not {config.data.source!r}")
        if section.label is None:
            problems.append(
                f"{where}: weight = {section.weight!r} goes with label; name both in the silo that has the labels"
            )
        if section.weight in (section.id, section.label, *(section.features or ()), *section.categorical):
            problems.append(
                f"{where}: column '{section.weight}' is the weight and something else: remove one of the two"
            )
    return problems


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
    if config.federation.protect_labels == "encrypt":
        problems += _encryption_problems(config)
    problems += _noise_problems(config)
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
            f"{where}: besides federation.labels = {labels!r} there is one silo, so the sum that its hub gets would be "
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


def _noise_problems(config: Config) -> list[str]:
    exchange, plain = config.exchange, ExchangeSection()
    problems = _block_noise_problems(config)
    if exchange.epsilon is None:
        keys = ("delta", "clip") if exchange.block_epsilon is None else ("clip",)
        return problems + [
            f"exchange.{key} = {getattr(exchange, key):g}: goes with exchange.epsilon; leave it out"
            for key in keys
            if getattr(exchange, key) != getattr(plain, key)
        ]
    where = f"exchange.epsilon = {exchange.epsilon:g}"
    if config.num_silos == 1:
        return [*problems, f"{where}: one silo alone sends no phi; leave it out"]
    few, late = exchange.phi_bits < 32, config.model.head == "pairs"
    clashes = [
        (few, f"exchange.phi_bits = {exchange.phi_bits}", "few bits of numbers with noise are noise in few bits"),
        (exchange.protect == "mask", "exchange.protect = 'mask'", "masks are of numbers in fixed point, without noise"),
        (config.federation.protect_labels == "encrypt", "federation.protect_labels = 'encrypt'", "it takes exact phi"),
        (late, f"model.head = {config.model.head!r}", "it needs the exact length of phi"),
    ]
    return problems + clashing(where, clashes)


def _block_noise_problems(config: Config) -> list[str]:
    exchange, plain, grace = config.exchange, ExchangeSection(), config.federation.client_grace_s
    if exchange.block_epsilon is None:
        clip = exchange.block_clip
        given = f"exchange.block_clip = {clip:g}: goes with exchange.block_epsilon; leave it out"
        return [given] if clip != plain.block_clip else []
    where = f"exchange.block_epsilon = {exchange.block_epsilon:g}"
    if not exchange.protect_blocks:
        return [f"{where}: goes with exchange.protect_blocks = true, so that a hub sees only the sum; set it"]
    alone = "each of two sums of a round would be a message, and the smaller one has less noise"
    return clashing(where, [(grace is not None, f"federation.client_grace_s = {grace}", alone)])


def _encryption_problems(config: Config) -> list[str]:
    # Imported where it is asked for.
    from tdcd.core.codecs.encrypted import DEGREE  # noqa: PLC0415
    from tdcd.core.family.encrypted import EVERYBODY, IN_THE_CLEAR, ONE_GRADIENT  # noqa: PLC0415

    federation, model, train, exchange = config.federation, config.model, config.train, config.exchange
    where = "federation.protect_labels = 'encrypt'"
    if federation.labels is None:
        return [f"{where}: goes with federation.labels, the silo that alone has labels; name it, or leave this out"]
    problems = []
    if {*config.block_names} != {"linear"}:
        problems.append(
            f"model.block = {model.block!r}: {where} multiplies encrypted slopes; set model.block = 'linear'"
        )
    if train.local_steps not in ("auto", 1):
        problems.append(
            f"train.local_steps = {train.local_steps}: {where} exchanges one gradient per round; set "
            "train.local_steps = 1, or train.step_size = 'auto'"
        )
    if train.batch_size != "auto" and train.batch_size > DEGREE:
        problems.append(f"train.batch_size = {train.batch_size}: {where} takes {DEGREE} samples at most; lower it")
    if train.minibatches == "full":
        problems.append(
            f"train.minibatches = 'full': {where} is of minibatches; set train.batch_size, {DEGREE} at most"
        )
    weights = weight_keys(config)
    clashes = [
        (model.head != "sum", f"model.head = {model.head!r}", "encrypted slopes are of sums of phi"),
        (train.optimizer != "sgd", f"train.optimizer = {train.optimizer!r}", ONE_GRADIENT),
        (train.schedule != "constant", f"train.schedule = {train.schedule!r}", ONE_GRADIENT),
        (train.clip is not None, f"train.clip = {train.clip}", ONE_GRADIENT),
        (train.gradient != "unbiased", f"train.gradient = {train.gradient!r}", "no client's gradient is seen"),
        (train.participation < 1, f"train.participation = {train.participation}", EVERYBODY),
        (federation.client_grace_s is not None, f"federation.client_grace_s = {federation.client_grace_s}", EVERYBODY),
        (train.silo_dropout > 0, f"train.silo_dropout = {train.silo_dropout}", EVERYBODY),
        (bool(weights), " and ".join(weights), "encrypted slopes are of samples that weigh the same"),
        (exchange.protect != "none", f"exchange.protect = {exchange.protect!r}", IN_THE_CLEAR),
        (exchange.protect_blocks, "exchange.protect_blocks = true", IN_THE_CLEAR),
        (exchange.block_bits < 32, f"exchange.block_bits = {exchange.block_bits}", IN_THE_CLEAR),
        (config.data.samples != "common", f"data.samples = {config.data.samples!r}", EVERYBODY),
        (train.variant is not None, f"train.variant = {train.variant!r}", "it takes the place of this key"),
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
