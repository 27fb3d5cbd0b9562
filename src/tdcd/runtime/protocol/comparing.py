"""What parties compare before they train together; the texts name both and what differs."""

from collections.abc import Mapping

from tdcd.config import ConfigError
from tdcd.config.losses import named_loss
from tdcd.core.visible import one_line
from tdcd.core.words import counted
from tdcd.runtime.protocol.job import Job
from tdcd.runtime.protocol.messages import Hello
from tdcd.runtime.protocol.sample_index import MOST_CLASSES, IncompatibleParties
from tdcd.runtime.protocol.structure import Setting

SHOWN = 200
"""Letters of a key or a value of another party that are shown."""


def compare_settings(party: str, theirs: Mapping[str, Setting], own: str, job: Job) -> None:
    """Raise unless two parties have the same shared settings; the error names the first key that differs.

    A key that one of them does not know, since its version is older, counts unless the other has set it.
    """
    ours = job.shared
    for key in sorted({*(theirs.keys() & ours.keys()), *(job.chosen.keys() - theirs.keys())}):
        if key not in theirs or theirs[key] != ours[key]:
            values = f"{_shown(theirs.get(key))} at {party} and {_shown(ours[key])} at {own}"
            raise IncompatibleParties(f"the shared files differ: {one_line(key, SHOWN)} is {values}")
    known = {_setting(key) for key in ours}
    for key in sorted(theirs.keys() - ours.keys()):
        if _setting(key) in known:
            values = f"{_shown(theirs[key])} at {party} and absent at {own}"
            raise IncompatibleParties(f"the shared files differ: {one_line(key, SHOWN)} is {values}")


def _shown(value: Setting) -> str:
    return one_line(repr(value), SHOWN)


def _setting(key: str) -> str:
    """The setting that a dotted key is a part of."""
    section, _, rest = key.partition(".")
    return section if section == "silos" else f"{section}.{rest.partition('.')[0]}"


def difference(ours: Hello, theirs: Hello) -> str:
    """What keeps two hubs from training together; nothing if they can."""
    left, right = ours.sender, theirs.sender
    if ours.protocol != theirs.protocol:
        return f"{left} speaks protocol {ours.protocol} and {right} {theirs.protocol}: upgrade the older one"
    if ours.secret != theirs.secret:
        return f"{left} and {right} have different secrets: give both the same federation.secret"
    if ours.samples != theirs.samples:
        counts = f"{left} has {counted(ours.samples, 'sample')} and {right} has {theirs.samples}"
        return f"{counts}: align their ids first (tdcd align)"
    if ours.ids != theirs.ids:
        count = f"both have {counted(ours.samples, 'sample')}"
        advice = "align their ids first (tdcd align), and write them alike: '001' is not '1'"
        return f"{left} and {right} have different sample ids, though {count}: {advice}"
    if ours.labels != theirs.labels:
        return f"{left} and {right} have different labels for the same samples"
    held_out = f"{left} and {right} hold out different samples: give all clients the same kind of file"
    return held_out if ours.held_out != theirs.held_out else ""


def check_outputs(theirs: Hello, job: Job, is_label_hub: bool) -> None:
    """Raise unless the hub with the labels, and no other, says what they ask of blocks, and that is possible."""
    told, chosen = theirs.outputs, job.config.model.loss
    if not is_label_hub and told is not None:
        raise IncompatibleParties(f"{theirs.sender} says what labels it has, and federation.labels names another silo")
    if not is_label_hub:
        return
    if told is None:
        raise IncompatibleParties(f"{theirs.sender} does not say what its labels ask for: upgrade the older one")
    if chosen not in (None, told.loss):
        raise IncompatibleParties(f"{theirs.sender} trains with {told.loss!r}, and model.loss is {chosen!r}")
    try:
        loss = named_loss(job.config.model, told.loss)
    except ConfigError as error:
        raise IncompatibleParties(error.problems[0]) from None
    least, most = (2, MOST_CLASSES) if loss.target == "classes" else (1, 1)
    if not least <= told.count <= most:
        raise IncompatibleParties(
            f"{theirs.sender} asks for {counted(told.count, 'output')}, which does not fit {told.loss!r}"
        )
