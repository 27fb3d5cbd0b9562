"""``tdcd predict`` and ``tdcd export``: parse, call, print."""
# ruff: noqa: PLC0415 - see tdcd.cli.app

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import rich.box
import typer
from rich.table import Table
from rich.text import Text

from tdcd.cli.federation import AccountFile, Certs, Insecure, PartyFile, text_of
from tdcd.cli.options import AllowCode, Force
from tdcd.cli.terminal import EXIT_INTERRUPTED, refuse_existing, reported, screen, stoppable
from tdcd.core.words import are, counted

if TYPE_CHECKING:
    from tdcd.prediction.coefficients import Coefficients
    from tdcd.prediction.model import Model
    from tdcd.prediction.monotone import MergedColumn
    from tdcd.prediction.scorecard import Scorecard
    from tdcd.prediction.scores import Predictions, SiloScores

NO_OUT = "--out FILE is missing: the file to write, .csv or .parquet"
PADDING = 3
"""Spaces and a line between two columns of a table on the screen."""


def predict(
    target: Annotated[
        Path,
        typer.Argument(
            help="A run folder with all blocks or a saved model; or a federation's file.",
            metavar="RUN|TOML",
        ),
    ],
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="SILO=FILE, once for each silo; in a federation, FILE: the new rows of this silo or client. CSV or "
            "Parquet. A hub without it asks its clients."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write, .csv or .parquet; not where another silo alone has labels."),
    ] = None,
    link: Annotated[
        list[str] | None,
        typer.Option(
            help="SILO=FILE, or FILE in a federation: where rows belong to many samples, the table with the id and the "
            "key of every new sample [default: link of the silo, as in training]."
        ),
    ] = None,
    allow_missing: Annotated[
        bool,
        typer.Option("--allow-missing", help="Score ids that a silo lacks without its part, and mark them."),
    ] = False,
    common: Annotated[
        bool, typer.Option("--common", help="Score only the ids that all silos have, and leave the others out.")
    ] = False,
    without: Annotated[
        list[str] | None,
        typer.Option(help="SILO, once for each that is missing: predict from the others; all hubs give the same."),
    ] = None,
    force: Force = False,
    allow_code: AllowCode = False,
    silo: Annotated[str | None, typer.Option(help="Federation: the silo that this party belongs to.")] = None,
    client: Annotated[
        str | None, typer.Option(help="Federation: score the rows of this client for its hub, which needs none.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="Federation: this hub's run folder [default: as for tdcd hub].")
    ] = None,
    account: AccountFile = None,
    certs: Certs = None,
    party: PartyFile = None,
    insecure: Insecure = False,
) -> None:
    """Predict the labels of new rows: amounts, or classes with their probabilities.

    Where all silos' blocks are in one place: `tdcd predict RUN --data bank=a.csv --data bureau=b.csv --out new.csv`.

    In a real federation every hub gives `tdcd predict FEDERATION.toml --silo bank --data a.csv --out new.csv` at the
    same time: each scores its own rows, only the scores travel, and no block leaves its silo. With federation.labels
    only that silo gets predictions: the others give the command without --out, and their scores go to its hub.

    Where the rows of a silo are at its clients, its hub gives the command without --data, and every client
    `tdcd predict FEDERATION.toml --silo bank --client north --data new.csv`. A client gets the silo's part of the
    model, as in training, and its hub gets ids and scores, no cell.

    OUT has the rows in the order of the first silo's table or, in a federation, of this silo's, and ids that it lacks
    after them; the id column, called as it is there; prediction;
    probability_CLASS where there are classes; and with --allow-missing or --without also missing, the silos that lack
    the id. With train.silo_dropout the model was trained to do without a silo. Otherwise the mean of its phi over the
    training rows takes its place, which may be far off. A model of data.samples = "all" takes ids that some silos lack
    without any option: its stand-ins speak for them.

    Exit status: 0 done, 2 bad input, 130 interrupted.
    """
    from tdcd.prediction.model import Model
    from tdcd.prediction.predictions import write_sums
    from tdcd.tables.writing import check_name

    with reported():
        if out is not None:
            check_name(out)
            refuse_existing(out, force)
        if common and allow_missing:
            raise ValueError("--common leaves out the ids that --allow-missing scores: give one of the two")
        gone, data, link = without or [], data or [], link or []
        if client is not None:
            _score(target, data, link, silo, client, (certs, party, insecure), out, gone)
            return
        if target.suffix == ".toml":
            peers = (data, silo, run, account, certs, party, insecure)
            model, parts = _with_peers(
                target,
                *peers,
                link=link,
                predicts=out is not None,
                allow_missing=allow_missing,
                without=gone,
                allow_code=allow_code,
            )
        elif out is None:
            raise ValueError(NO_OUT)
        elif not data:
            raise ValueError("--data SILO=FILE is missing: the tables with the new rows")
        else:
            model = Model.load(target, allow_code=allow_code)
            model.check_meaning()
            parts = _in_one_place(model, data, link, allow_missing, gone)
        if out is None:
            return
        predictions, ordered = write_sums(
            out, model, parts, allow_missing=allow_missing, common=common, without=gone, in_order_of=silo
        )
    _show_predictions(predictions, ordered, out)


def export(
    folder: Annotated[Path, typer.Argument(help="The folder of a run, or a saved model.", metavar="RUN")],
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write, .csv or .parquet, or .onnx with --onnx [default: show them]."),
    ] = None,
    force: Force = False,
    allow_code: AllowCode = False,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Write the model as an ONNX file, for other programs; see docs/serving.md.")
    ] = False,
    silo: Annotated[
        str | None, typer.Option(help="ONNX: only this silo's part, from its columns to phi [default: all silos'].")
    ] = None,
    from_phi: Annotated[
        bool, typer.Option("--from-phi", help="ONNX: from the silos' phi to predictions, without any silo's part.")
    ] = False,
    without: Annotated[
        list[str] | None, typer.Option(help="ONNX: SILO, once for each that is missing, as in tdcd predict.")
    ] = None,
    scorecard: Annotated[
        bool,
        typer.Option("--scorecard", help="Points of every bin, of a run with model.bins; with --out also a page."),
    ] = False,
    effects: Annotated[
        bool, typer.Option("--effects", help="What each value of a column adds; networks also need --data.")
    ] = False,
    importance: Annotated[
        bool,
        typer.Option("--importance", help="Permutation importance of columns and silos; takes --data of all silos."),
    ] = False,
    points: Annotated[float | None, typer.Option(help="Scorecard: the points of odds of --odds to 1 [600].")] = None,
    odds: Annotated[float | None, typer.Option(help="Scorecard: the odds of a row with --points [1].")] = None,
    double: Annotated[float | None, typer.Option(help="Scorecard: how many points more double the odds [20].")] = None,
    favours: Annotated[
        str | None, typer.Option(help="Scorecard: the class whose odds these are [the first].", metavar="CLASS")
    ] = None,
    monotone: Annotated[
        list[str] | None,
        typer.Option(
            help="Scorecard: columns, with commas between, or 'all': merge bins until points only rise or only fall.",
            metavar="COLUMNS",
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="SILO=FILE: tables for a scorecard's weight of evidence, for effects or for importance.",
            metavar="TABLE",
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(help="Scorecard, importance: the label column of --data [as in the run's settings]."),
    ] = None,
) -> None:
    """Show a linear model as a table of coefficients in the columns' own units, or write it as CSV.

    The score of a row is the intercept, plus coefficient times value for its amounts, plus the coefficient of
    COLUMN=LEVEL for each of its names (COLUMN=other for levels that are not listed), plus that of "COLUMN missing" for
    each blank. A column that had no blanks has no such line. For amounts the score is the prediction; for counts with
    the Poisson loss, its logarithm; for two classes, the logarithm of the second one's odds.

    With --scorecard, and a run of linear blocks with model.bins: what every bin and level adds to a row's points. Then
    --out card.csv also writes card.html, with a drawing for each column. For amounts it is what a bin adds to them.
    --monotone merges bins by their trained points, without labels, and writes the merged model as card.tdcd, which
    tdcd predict takes. --data gives weight of evidence and information value, where a table has the labels.

    With --effects: what each value, level or bin of a column adds to the score, compared with the average row. Linear
    models need no rows. Of networks it is an average over rows of the silo's own table: give it as --data SILO=FILE, as
    a hub does for its own silo. With --importance: how much larger the loss is, and how metrics change, if a column's
    values are dealt to other rows; this needs the tables and the parts of all silos in one place, and labels in one
    of the tables.

    With --onnx: a file that other programs run, with the preparation of the columns in it; its numbers are those of
    tdcd predict. A hub exports its own silo's part: `tdcd export runs/hub-bank --onnx --silo bank --out bank.onnx`.

    Exit status: 0 done, 2 bad input.
    """
    from tdcd.prediction.coefficients import write_coefficients
    from tdcd.prediction.model import Model
    from tdcd.tables.writing import check_name

    scale = {"points": points, "odds": odds, "double": double, "favours": favours}
    given = {name: value for name, value in scale.items() if value is not None}
    with reported():
        forms = {"--scorecard": scorecard, "--onnx": onnx, "--effects": effects, "--importance": importance}
        chosen = [name for name, is_chosen in forms.items() if is_chosen]
        if len(chosen) > 1:
            raise ValueError(f"{chosen[0]} and {chosen[1]} are two files: give one of the two")
        of_onnx = {"silo": silo, "from-phi": from_phi or None, "without": without}
        _refuse_options({} if scorecard else {**given, "monotone": monotone}, "--scorecard")
        takes_label = scorecard or importance
        _refuse_options({} if takes_label else {"label": label}, "--scorecard or --importance")
        _refuse_options({} if takes_label or effects else {"data": data}, "--scorecard, --effects or --importance")
        _refuse_options({} if onnx else of_onnx, "--onnx")
    if onnx:
        _export_onnx(folder, out, silo, without or [], from_phi=from_phi, allow_code=allow_code, force=force)
        return
    if effects or importance:
        _export_explained(folder, out, data or [], label, is_importance=importance, allow_code=allow_code, force=force)
        return
    if scorecard:
        columns = [name.strip() for text in monotone or [] for name in text.split(",") if name.strip()]
        labelled = (data or [], label)
        _export_scorecard(folder, out, given, columns, labelled, allow_code=allow_code, force=force)
        return
    with reported():
        table = Model.load(folder, allow_code=allow_code).coefficients()
        if out is not None:
            check_name(out)
            refuse_existing(out, force)
            write_coefficients(out, table)
    if out is None:
        _show_coefficients(table)
    else:
        screen.print(f"Coefficients: {out}", soft_wrap=True, highlight=False)
    if table.absent:
        others = ", ".join(table.absent)
        screen.print(
            Text(f"Only a part of the model: {folder} does not have that of {others}.", "yellow"), soft_wrap=True
        )


def _refuse_options(options: Mapping[str, Any], needed: str) -> None:
    """Refuse those that are given."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"--{name} goes with {needed}")


def _export_onnx(
    folder: Path,
    out: Path | None,
    silo: str | None,
    without: Sequence[str],
    *,
    from_phi: bool,
    allow_code: bool,
    force: bool,
) -> None:
    """Write a model, or a silo's part of it, as an ONNX file."""
    from tdcd.prediction.model import Model
    from tdcd.prediction.onnx import write_onnx

    with reported():
        if out is None:
            raise ValueError("--out FILE is missing: the file to write, .onnx")
        refuse_existing(out, force)
        model = Model.load(folder, allow_code=allow_code)
        try:
            write_onnx(model, out, silo, from_phi=from_phi, without=without)
        except ModuleNotFoundError as error:
            raise ValueError(str(error)) from None
    what = f"phi of silo '{silo}'" if silo is not None else "predictions from phi" if from_phi else "predictions"
    screen.print(f"ONNX: {out}, {what}", soft_wrap=True, highlight=False)
    for line in filter(None, map(model.stand_ins.warning, without)):
        screen.print(Text(line, "yellow"), soft_wrap=True)


def _export_explained(
    folder: Path,
    out: Path | None,
    data: Sequence[str],
    label: str | None,
    *,
    is_importance: bool,
    allow_code: bool,
    force: bool,
) -> None:
    """Show or write the effects of a model's columns, or their importance."""
    from tdcd.prediction.effects import effects_table
    from tdcd.prediction.importance import importances_table, labels_in
    from tdcd.prediction.model import Model
    from tdcd.tables.writing import check_name, write_table

    with reported():
        if out is not None:
            check_name(out)
            refuse_existing(out, force)
        model = Model.load(folder, allow_code=allow_code)
        tables = tables_by_silo(data, model.silos)
        if is_importance:
            name = label or _label_of(folder)
            if name is None:
                raise ValueError("--label COLUMN is missing: the column of --data with the labels")
            columns = importances_table(model.permutation_importance(tables, labels_in(model, tables, name)))
        else:
            columns = effects_table(model.effects(tables or None))
        if out is not None:
            write_table(out, columns)
    if out is not None:
        what = "Importances" if is_importance else "Effects"
        screen.print(f"{what}: {out}", soft_wrap=True, highlight=False)
        return
    shown = Table(box=rich.box.SIMPLE_HEAD)
    for name, values in columns.items():
        is_number = any(isinstance(value, float) for value in values)
        shown.add_column(Text(name), overflow="fold", justify="right" if is_number else "left")
    for row in zip(*columns.values(), strict=True):
        shown.add_row(*(Text(f"{cell:.4g}" if isinstance(cell, float) else str(cell or "")) for cell in row))
    screen.print(shown)


def tables_by_silo(data: Sequence[str], silos: Sequence[str], option: str = "--data") -> dict[str, Path]:
    """The files of ``--data SILO=FILE`` by silo."""
    tables: dict[str, Path] = {}
    for text in data:
        name, equals, path = text.partition("=")
        if not equals or not path or name in tables:
            raise ValueError(f"{option} {text}: write SILO=FILE, once for each of {', '.join(silos)}")
        tables[name] = Path(path)
    return tables


def _in_one_place(
    model: "Model", data: Sequence[str], link: Sequence[str], allow_missing: bool, without: Sequence[str]
) -> Mapping[str, "SiloScores"]:
    """The scores of every silo; empty ones for a silo without new rows."""
    from tdcd.prediction.scores import check_without, no_scores
    from tdcd.tables.reader import read_rows

    tables = tables_by_silo(data, model.silos)
    check_without(model.silos, without, tables)
    absent = [name for name in model.silos if name not in (*tables, *without)]
    if absent and not allow_missing:
        raise ValueError(f"--data {absent[0]}=FILE is missing: give it, or predict without it: --without {absent[0]}")
    links = tables_by_silo(link, model.silos, "--link")
    if unused := [name for name in links if name not in tables]:
        raise ValueError(f"--link {unused[0]}={links[unused[0]]}: goes with --data {unused[0]}=FILE")
    model = model.linked(links)
    rows = {name: read_rows(path, model.part(name).columns) for name, path in tables.items()}
    return model.all_scores(rows) | {name: no_scores(model) for name in absent}


def _with_peers(
    federation: Path,
    data: Sequence[str],
    silo: str | None,
    run: Path | None,
    account: Path | None,
    certs: Path | None,
    party: Path | None,
    insecure: bool,
    *,
    link: Sequence[str],
    predicts: bool,
    allow_missing: bool,
    without: Sequence[str],
    allow_code: bool,
) -> tuple["Model", Mapping[str, "SiloScores"]]:
    """This hub's model, and the scores of all hubs; only its own where another silo alone ``predicts``."""
    from tdcd.cli.console import WaitingDisplay
    from tdcd.core.execution import Interrupted
    from tdcd.runtime.process.party import own_file, read_job
    from tdcd.runtime.process.predict import predict_with_peers

    if len(link) > len(data):
        raise ValueError(
            "--link FILE goes with --data FILE, once: clients that score their rows have links of their own"
        )
    if silo is None or len(data) > 1:
        raise ValueError(
            "predicting with other hubs takes --silo NAME, and one --data FILE: this silo's new rows, or none where "
            "its clients have them"
        )
    job = read_job(federation)
    holder = job.config.federation.labels
    if predicts and holder not in (None, silo):
        raise ValueError(f"--out: silo '{holder}' alone has labels, and predicts: leave it out to send it your scores")
    if not predicts and holder in (None, silo):
        raise ValueError(NO_OUT)
    own = own_file(party, certs=text_of(certs), account=text_of(account), insecure=insecure)
    folder = run or Path(own.out or f"runs/hub-{silo}")
    waiting = WaitingDisplay(screen, "predicting")
    try:
        with stoppable(waiting.stop), waiting:
            model, parts = predict_with_peers(
                job,
                silo,
                folder,
                Path(data[0]) if data else None,
                own,
                waiting=waiting,
                link=Path(link[0]) if link else None,
                allow_missing=allow_missing,
                without=without,
                allow_code=allow_code,
            )
    except Interrupted as stopped:
        screen.print(str(stopped), highlight=False)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if not predicts:
        sent = (
            f"Scored {counted(len(parts[silo].ids), 'row')} for silo '{holder}', which alone has labels: it has the "
            "predictions."
        )
        screen.print(sent, soft_wrap=True, highlight=False)
    return model, parts


def _score(
    federation: Path,
    data: Sequence[str],
    link: Sequence[str],
    silo: str | None,
    client: str,
    own: tuple[Path | None, Path | None, bool],
    out: Path | None,
    without: Sequence[str],
) -> None:
    """Score a client's rows for its hub."""
    from tdcd.cli.console import WaitingDisplay
    from tdcd.core.execution import Interrupted
    from tdcd.runtime.process.party import own_file, read_job
    from tdcd.runtime.process.predict import score_as_client

    if federation.suffix != ".toml" or silo is None or len(data) != 1:
        raise ValueError("--client goes with FEDERATION.toml, --silo NAME and one --data FILE: this client's new rows")
    if len(link) > 1:
        raise ValueError(f"--link {link[1]}: --client takes one --link FILE, the link table of its new rows")
    if out is not None or without:
        raise ValueError("--client: the hub writes the predictions and says who is missing; leave --out and --without")
    certs, party, insecure = own
    waiting = WaitingDisplay(screen, "predicting")
    try:
        with stoppable(waiting.stop), waiting:
            party_file = own_file(party, certs=text_of(certs), insecure=insecure)
            job, links = read_job(federation), Path(link[0]) if link else None
            count = score_as_client(job, silo, client, Path(data[0]), party_file, waiting=waiting, link=links)
    except Interrupted as stopped:
        screen.print(str(stopped), highlight=False)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    screen.print(f"Scored {counted(count, 'row')} for the hub of silo '{silo}'.", soft_wrap=True, highlight=False)


def _show_predictions(predictions: "Predictions", parts: Mapping[str, "SiloScores"], out: Path) -> None:
    screen.print(f"Predictions: {out}, {counted(len(predictions.ids), 'row')}", soft_wrap=True, highlight=False)
    left_out = len({sample for part in parts.values() for sample in part.ids}) - len(predictions.ids)
    if left_out:
        screen.print(
            Text(f"{counted(left_out, 'id')} {are(left_out)} left out, since not every silo has them.", "yellow"),
            soft_wrap=True,
        )
    for name in parts:
        count = sum(name in lacking for lacking in predictions.missing)
        if count:
            lines = [f"{count} of them are scored without the part of silo '{name}'.", predictions.warnings.get(name)]
            for line in filter(None, lines):
                screen.print(Text(line, "yellow"), soft_wrap=True)


def _show_coefficients(table: "Coefficients") -> None:
    """Print the coefficients: as many classes side by side as the screen has room for, the others below them."""
    cells = [[f"{row.values[place]:.6g}" for row in table.rows] for place in range(len(table.outputs))]
    widths = [max(len(heading), *map(len, cells[place])) for place, heading in enumerate(table.outputs)]
    names = sum(max(len(getattr(row, name)) for row in table.rows) + PADDING for name in ("silo", "column"))
    for group in _side_by_side(widths, screen.width - names - 2):
        shown = Table(box=rich.box.SIMPLE_HEAD)
        shown.add_column("silo", overflow="fold")
        shown.add_column("column", overflow="fold")
        for place in group:
            shown.add_column(Text(table.outputs[place]), justify="right", overflow="fold")
        for number, row in enumerate(table.rows):
            shown.add_row(row.silo, Text(row.column), *(cells[place][number] for place in group))
        screen.print(shown)


def _side_by_side(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    """The places of columns of these widths in groups that fit; at least one in each."""
    group: list[int] = []
    for place, width in enumerate(widths):
        if group and sum(widths[column] + PADDING for column in group) + width + PADDING > room:
            yield group
            group = []
        group.append(place)
    yield group


def _export_scorecard(
    folder: Path,
    out: Path | None,
    scale: Mapping[str, Any],
    columns: Sequence[str],
    labelled: tuple[Sequence[str], str | None],
    *,
    allow_code: bool,
    force: bool,
) -> None:
    """Show the scorecard of a run, or write its table and, next to it, its page.

    Args:
        scale: fields of :class:`tdcd.prediction.scorecard.PointScale` that differ from the defaults.
        columns: those whose bins are merged.
        labelled: tables as SILO=FILE, and their label column.
    """
    from tdcd.pages.scorecard import write_page
    from tdcd.prediction.model import Model
    from tdcd.prediction.monotone import MonotoneModel, monotone
    from tdcd.prediction.scorecard import PointScale, scorecard, write_scorecard
    from tdcd.tables.writing import check_name

    with reported():
        trained = MonotoneModel(Model.load(folder, allow_code=allow_code), ())
        model, merged = monotone(trained.model, columns) if columns else trained
        data, label = labelled
        tables = tables_by_silo(data, model.silos)
        if label is not None and not tables:
            raise ValueError("--label goes with --data SILO=FILE")
        card = scorecard(model, PointScale(**scale), tables, label or _label_of(folder))
        page, saved = (None, None) if out is None else (out.with_suffix(".html"), out.with_suffix(".tdcd"))
        if out is not None and page is not None and saved is not None:
            check_name(out)
            for path in (out, page, *([saved] if merged else [])):
                refuse_existing(path, force)
            write_scorecard(out, card)
            write_page(page, card, folder.resolve().name)
            if merged and not model.absent:
                model.save(saved)
    if out is None:
        _show_scorecard(card)
    else:
        screen.print(f"Scorecard: {out}\nPage:      {page}", soft_wrap=True, highlight=False)
    screen.print(card.meaning, soft_wrap=True, highlight=False)
    for line in _merged_in_words(merged, None if model.absent else saved):
        screen.print(line, soft_wrap=True, highlight=False)
    if card.absent:
        others = ", ".join(card.absent)
        screen.print(
            Text(f"Only a part of the model: {folder} does not have that of {others}.", "yellow"), soft_wrap=True
        )


def _merged_in_words(merged: "Sequence[MergedColumn]", saved: Path | None) -> Iterator[str]:
    if not merged:
        return
    fewer = [column for column in merged if column.after < column.before]
    for column in fewer:
        yield f"Merged bins of '{column.silo}.{column.column}': {column.before} became {column.after}."
    if not fewer:
        yield "No bins were merged: every column was monotone."
    if saved is not None:
        yield f"Model:     {saved}; its predictions are the scorecard's, those of the run are as before."
    elif fewer:
        yield "Predictions of the run are as before: with --out, and all parts of the model, the merged one is written."


def _label_of(folder: Path) -> str | None:
    """The label column in a run's settings; None in a saved model, and where there is no such column."""
    from tdcd.records.run_folder import RunFolder

    if not folder.is_dir():
        return None
    names = (silo.get("label") for silo in RunFolder.open(folder).config().get("silos", []))
    return next((str(name) for name in names if name), None)


def _show_scorecard(card: "Scorecard") -> None:
    from tdcd.pages.scorecard import in_words

    shown = Table(box=rich.box.SIMPLE_HEAD)
    for heading in ("silo", "column", "bin or level"):
        shown.add_column(heading, overflow="fold")
    for heading in (card.unit, "share", *["WoE", "IV"] * card.has_evidence):
        shown.add_column(heading, justify="right")
    for line in card.lines:
        where, evidence = in_words(line.cell) if line.silo else "", line.evidence
        of_labels = (
            [] if evidence is None else ["" if evidence.woe is None else f"{evidence.woe:.3f}", f"{evidence.iv:.4f}"]
        )
        cells = [f"{line.value:.4g}", f"{line.cell.share:.1%}", *of_labels]
        shown.add_row(line.silo, Text(line.column), Text(where), *cells)
    screen.print(shown)
    for (silo, column), value in card.information.items():
        screen.print(f"Information value of {column} of {silo}: {value:.3f}", soft_wrap=True, highlight=False)
