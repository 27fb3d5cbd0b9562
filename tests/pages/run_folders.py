"""What a run leaves behind, with figures chosen by hand."""

CONFIG = """seed = 7
dtype = "float32"

[data]
source = "digits"
standardize = true

[federation]
silos = [{ name = "bank", columns = ["income", "age"] }]
clients = [5, 2]

[train]
rounds = 200
step_size = 0.05
"""


def record(round_index, train_loss, test_loss=None, metrics=None, **extra):
    """One history line; a round sends 1000, 500 and 250 bytes and lasts 0.1 s."""
    sent = {"client_to_hub": 1000, "hub_to_client": 500, "hub_to_hub": 250}
    return {
        "round": round_index,
        "iteration": 10 * round_index,
        "train_loss": train_loss,
        "test_loss": test_loss,
        "metrics": metrics or {"train": {}},
        "bytes": {link: count * round_index for link, count in sent.items()},
        "messages": dict.fromkeys(sent, 2 * round_index),
        "seconds": 0.1 * round_index,
        **extra,
    }


def silo(name, shape, clients, columns=()):
    return {"name": name, "feature_shape": shape, "columns": list(columns), "clients": clients, "parameters": 1376}


def falling(rounds=200, every=5, names=("accuracy", "auc")):
    """A run that learns: the loss falls over more than a decade, the figures rise."""
    lines = []
    for index in range(0, rounds + 1, every):
        loss = 2.3 * 0.98**index + 0.02
        figures = {name: 1 - 0.9 * 0.98**index / (1 + place) for place, name in enumerate(names)}
        worse = {name: value - 0.03 for name, value in figures.items()}
        lines.append(record(index, loss, loss + 0.1, {"train": figures, "test": worse}))
    return lines
