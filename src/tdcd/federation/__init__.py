"""Who holds which columns and rows: silos, how rows are split, and where each sample of a minibatch is.

Here is what parties are called: on the wire, in certificates, in logs and in file names.
"""


def hub_of(silo: str) -> str:
    """The name of a silo's hub as a party.

    >>> hub_of("bank"), client_of("bank", "north")
    ('hub.bank', 'client.bank.north')
    """
    return f"hub.{silo}"


def client_of(silo: str, client: str) -> str:
    """The name of a client as a party."""
    return f"client.{silo}.{client}"
