"""What parties read of the files that a trial writes for them."""

from pathlib import Path

from tdcd.runtime.process.party import PartySection, read_data
from tdcd.tables.sample_list import SampleList


def data_of(config, options):
    """What each party's process would read: a client its rows, a hub its list of samples."""
    data = {}
    for client, given in options.items():
        named = dict(zip((one.removeprefix("--") for one in given[::2]), given[1::2], strict=True))
        if client.startswith("hub."):
            data[client] = SampleList.read(Path(named["samples"]))
            continue
        silo = [silo.name for silo in config.silos].index(client.split(".")[1])
        data[client] = read_data(config, silo, PartySection(**named))
    return data
