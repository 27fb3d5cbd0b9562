"""Writes everything in this folder from a reproduction: ``python docs/results/draw.py RESULTS.json...``.

Given several files of ``tdcd reproduce``, a figure is taken from the last that has it.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tdcd.reproduction.evidence import Claim, marked, summed_up
from tdcd.reproduction.page import draw
from tdcd.reproduction.provenance import made_in_words
from tdcd.reproduction.remarks import judge_as_printed, judge_claims
from tdcd.reproduction.results import Results, joined, read_results, write_results
from tdcd.reproduction.statistics import t_interval

HERE = Path(__file__).parent
PICTURES = {
    "Ridge regression (Fig. 2)": {"fig2a": "Q varies", "fig2b": "N varies", "fig2c": "K varies"},
    "CNN on MNIST halves (Fig. 3)": {"fig3a": "Q varies", "fig3b": "K varies"},
    "The convergence error": {
        "error": "Q varies",
        "error-n": "N varies",
        "error-k": "K varies",
        "error-eta": "the step size varies",
    },
    "The objective as the paper prints it, lambda = 1": {
        "fig2a-lambda1": "Q varies",
        "fig2b-lambda1": "N varies",
        "fig2c-lambda1": "K varies",
    },
}
DIFFERS = """With lambda = 1 the regulariser weighs as much as the data: the least loss is higher, runs are nearer to it
after as many rounds, and so their ends differ less over Q and K. Over N they do not, and five seeds do not
decide what the paper says of N. The checks are the same."""


def main(paths: Sequence[str]) -> None:
    """Draw the pictures, and write the numbers and the page."""
    results = joined(*(read_results(Path(path)) for path in paths))
    smaller = [name for name, result in results.items() if not result.full_size]
    if smaller or not results:
        sys.exit(f"not at the paper's size: {', '.join(smaller) or 'nothing given'}; run tdcd reproduce --full")
    for each in HERE.glob("*.png"):
        each.unlink()
    for name, result in results.items():
        draw(result, HERE / f"{name}.png")
    claims, printed = judge_claims(results), judge_as_printed(results)
    write_results(HERE, results, [claim.as_json() for claim in (*claims, *printed)], tables=False)
    (HERE / "README.md").write_text("\n".join(_page(results, claims, printed)) + "\n", encoding="utf-8")


def _page(results: Results, claims: Sequence[Claim], printed: Sequence[Claim]) -> Iterator[str]:
    yield from (
        "# Results at the paper's size",
        "",
        "[results.json](results.json) has the losses of every seed and all verdicts;",
        "[../reproducing.md](../reproducing.md) has the settings, and how a verdict is taken. Lines are means",
        "over seeds, bands one standard deviation. This page and the pictures are written by",
        "`python docs/results/draw.py results.json`.",
        "",
        "| figures | data | made with |",
        "| --- | --- | --- |",
    )
    rows: dict[tuple[str, str], list[str]] = {}
    for name, result in results.items():
        rows.setdefault((result.mark or result.data, made_in_words(result.made)), []).append(name)
    yield from (f"| {', '.join(names)} | {data} | {made} |" for (data, made), names in rows.items())
    for number in "345":
        yield from _verdicts(f"What the paper says in section {number}", [c for c in claims if c.section == number])
    if printed:
        yield from _verdicts("The ridge figures with lambda = 1, as the paper prints its objective", printed)
        yield from ("", DIFFERS)
    for title, pictures in PICTURES.items():
        shown = [name for name in pictures if name in results]
        if shown:
            yield from ("", f"## {title}", "")
            yield from (f"![{marked(results[name].title, results[name].mark)}]({name}.png)" for name in shown)
    yield from _accuracy(results)


def _verdicts(title: str, claims: Sequence[Claim]) -> Iterator[str]:
    yield from ("", f"## {title}: {summed_up(claims)}", "")
    yield from ("| figure | the paper says | verdict | measured | checked |", "| --- | --- | --- | --- | --- |")
    for claim in claims:
        cells = [marked(claim.figure, claim.mark), claim.sentence, f"**{claim.verdict}**", claim.measured, claim.check]
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _accuracy(results: Results) -> Iterator[str]:
    result = results.get("accuracy")
    if result is None:
        return
    two_tier, central = (np.asarray(curve.metric)[:, -1] for curve in result.curves)
    seeds = range(result.num_seeds)
    yield from ("", "## Test accuracy against central training", "", f"{'. '.join(result.chosen)}.", "")
    yield "| | " + " | ".join(f"seed {seed}" for seed in seeds) + " | mean |"
    yield "| --- |" + " --- |" * (len(seeds) + 1)
    for curve, values in zip(result.curves, (two_tier, central), strict=True):
        yield f"| {curve.label} | " + " | ".join(f"{v:.2%}" for v in (*values, values.mean())) + " |"
    yield from ("", f"The difference, in points: {t_interval(100 * (two_tier - central))}.")


if __name__ == "__main__":
    main(sys.argv[1:])
