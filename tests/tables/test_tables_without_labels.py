"""Tables of a federation whose labels are at one silo: what is right, what is refused, and what a run makes of them."""

import numpy as np
import pytest
import typer
from two_tables import write_csv
from typer.testing import CliRunner

from tdcd.cli.tables import check, split
from tdcd.config import check_config, read_config
from tdcd.tables.assembly import assemble
from tdcd.tables.errors import TableError
from tdcd.tables.split import split_table

app = typer.Typer()
app.command()(check)
app.command()(split)


@pytest.fixture
def trial(tmp_path, monkeypatch):
    """``trial/federation.toml`` and its tables; the shop and the lab have no labels."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    columns = {"id": range(40), **{name: rng.normal(size=40).round(3) for name in ("age", "rent", "size")}}
    write_csv(tmp_path / "whole.csv", columns | {"y": rng.integers(0, 2, 40)})
    silos = {"bank": ["age"], "shop": ["rent"], "lab": ["size"]}
    return split_table(
        tmp_path / "whole.csv", tmp_path / "trial", silos=silos, clients=[2], label="y", labels_at="bank"
    )


def checked(silo, data, *more):
    given = ["check", "trial/federation.toml", "--silo", silo, "--client", "c1", "--data", data, *more]
    done = CliRunner().invoke(app, given)
    assert done.exit_code in (0, 2), done.output
    return done.exit_code, " ".join(done.output.split())


def test_a_table_without_labels_is_ready_where_none_are_wanted(trial):
    status, said = checked("shop", "trial/shop/c1.csv")
    assert status == 0
    assert "Labels: none here; silo 'bank' has them" in said
    assert "Label values" not in said
    status, said = checked("bank", "trial/bank/c1.csv")
    assert status == 0
    assert "Labels: 2 classes 0, 1" in said


def test_labels_elsewhere_are_refused(trial):
    assert checked("shop", "trial/shop/c1.csv", "--labels", "trial/bank/c1.csv") == (
        2,
        "the data has 1 problem: --labels trial/bank/c1.csv: silo 'shop' has none (federation.labels); leave it out "
        "Not ready: correct what is listed above, then check again.",
    )
    with_label = trial.parent / "shop" / "c1.csv"
    with_label.write_text(
        with_label.read_text().replace("rent", "rent,y", 1).replace("\n", ",1\n").replace(",1\n", "\n", 1)
    )
    status, said = checked("shop", "trial/shop/c1.csv")
    assert status == 2
    refused = "column 'y' is the label, and only silo 'bank' may have it (federation.labels): remove the column"
    assert refused in said
    with pytest.raises(TableError, match="column 'y' is the label, and only silo 'bank' may have it"):
        assemble(check_config(read_config(trial)), bias=None)


def test_the_silo_with_labels_must_have_them(trial):
    bank = trial.parent / "bank" / "c1.csv"
    bank.write_text((trial.parent / "shop" / "c1.csv").read_text())
    status, said = checked("bank", "trial/bank/c1.csv")
    assert status == 2
    assert "has no column 'y'" in said


def test_labels_that_were_randomised_already_are_no_table_of_features(trial):
    bank = trial.parent / "bank" / "c1.csv"
    header, *rows = bank.read_text().splitlines()
    bank.write_text("\n".join([f"{header},label_epsilon", *(f"{row},1.0" for row in rows)]))
    with pytest.raises(TableError, match="column 'label_epsilon' says that its labels were randomised already"):
        assemble(check_config(read_config(trial)), bias=None)
    assert checked("bank", "trial/bank/c1.csv")[0] == 2
