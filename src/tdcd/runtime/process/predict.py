"""Predictions across the federation: every hub scores its own columns, and only those scores travel.

If one silo alone has labels, scores go to its hub only, since it alone knows what their sums mean.
"""

from collections.abc import Callable, Collection
from pathlib import Path

from tdcd.config.losses import chosen_loss
from tdcd.core.stopping import Interrupted
from tdcd.federation.party_names import hub_of
from tdcd.prediction.missing import check_without
from tdcd.prediction.model import Model
from tdcd.prediction.scores import SiloScores
from tdcd.records.files import read_json
from tdcd.records.run_folder import RunFolder
from tdcd.runtime.process.dialogue import converse
from tdcd.runtime.process.party import PartySection, keys_of, open_transport, read_job, secret_of
from tdcd.runtime.process.predict_hub import MaskedPredictHub, ModelOf, PredictHub


def predict_with_peers(
    federation: Path,
    silo: str,
    run: Path,
    data: Path,
    own: PartySection,
    *,
    watch: Callable[[list[str]], None] = lambda missing: None,
    should_stop: Callable[[], bool] = lambda: False,
    allow_missing: bool = False,
    without: Collection[str] = (),
    allow_code: bool = False,
) -> tuple[Model, dict[str, SiloScores]]:
    """This silo's model; its scores of the samples in ``data``, and those of the other silos for the same ids, by silo.

    Every hub gives this command at the same time, with its own table and run folder. No block and no feature leaves
    its silo: a peer gets the scores of the samples that it has too, and keyed digests of the other ids. If one silo
    alone has labels, the others get this silo's scores only, which went to that one. Where sums are masked, the sum
    over the others is told as the first of them.

    Args:
        without: silos whose hubs are missing; all others give the same.
        allow_code: import code that only the run folder names; what the federation's file names was asked for.
    """
    job = read_job(federation)
    index = job.silo_index(silo)
    check_without(job.config.silo_names, without, [silo])
    is_masked = job.config.exchange.protect == "mask"
    if is_masked and allow_missing:
        raise ValueError(
            "--allow-missing does not go with exchange.protect = 'mask': the sum for an id that a silo lacks would be "
            "of fewer silos, which may be one; leave such ids out with --common"
        )
    if is_masked and without:
        raise ValueError(
            f"--without {next(iter(without))} does not go with exchange.protect = 'mask': the sum would be of fewer "
            "silos, which may be one; wait for its hub"
        )
    if job.config.federation.labels in without:
        raise ValueError(f"without '{job.config.federation.labels}': it alone has labels, and predicts")
    # Blocks and loss of the file that was given: a run folder may be somebody else's.
    files = RunFolder(run).model
    # The code of a block of another silo is imported only if its part of the model is here, and needed only then.
    blocks = [job.block(one if files.file(name).is_file() else index) for one, name in enumerate(job.config.silo_names)]
    model = Model.load(run, blocks, chosen_loss(job.config.model), allow_code=allow_code)
    mine = job, index, secret_of(job, own), model.silo_scores(silo, data), _model_of(run)
    hub = PredictHub(*mine, [hub_of(one) for one in without])
    if is_masked:
        hub = MaskedPredictHub(*mine, keys_of(job, job.hubs[index], own))
    with open_transport(job, hub.name, list(hub.partners), own, "predict") as transport:
        outcome = converse(hub, transport, watch, should_stop)
    if outcome.status == "interrupted":
        raise Interrupted("Interrupted; nothing was written.")
    if outcome.status != "finished":
        raise ValueError(f"{outcome.status}: {outcome.reason}")
    return model, {silo: hub.own, **{peer.removeprefix("hub."): part for peer, part in hub.scores().items()}}


def _model_of(run: Path) -> ModelOf:
    """Which training a run folder's block is of: the hubs' own name of it, where there is one."""
    path = run / "hub.json"
    about = read_json(path) if path.exists() else {}
    return ModelOf(about.get("run"), about.get("status"))
