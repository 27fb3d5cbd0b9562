"""Writes everything in this folder from a reproduction: ``python docs/results/draw.py RESULTS.json...``.

Given several files of ``tdcd reproduce``, a figure is taken from the last that has it.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tdcd.pages.reproduction import draw_all, grouped
from tdcd.reproduction.claims import Claim, comparisons_in_words, differences, judge, summed_up
from tdcd.reproduction.results import Results, joined, made_in_words, read_results, write_results
from tdcd.reproduction.statistics import t_interval

HERE = Path(__file__).parent
PICTURES = {
    "Ridge regression (Fig. 2)": ("fig2a", "fig2b", "fig2c"),
    "CNN on MNIST halves (Fig. 3)": ("fig3a", "fig3b"),
    "The convergence error": ("error", "error-n", "error-k", "error-eta"),
    "The objective as the paper prints it, lambda = 1": ("fig2a-lambda1", "fig2b-lambda1", "fig2c-lambda1"),
    "A slow silo, and phi in few bits": ("stragglers-ridge", "stragglers-cnn", "bits-ridge", "bits-cnn"),
}
"""Figures under their headings; the step sizes have a part of their own."""
STEP_SIZES = """On the paper's own table the condition that Theorem 1 prints admits step sizes that diverge; the
condition with the factor N, at which its proof arrives, does not. With N = 16 and Q = 50 the printed condition admits
eta = 0.0018, and the loss is {diverged:.0e} after {rounds} rounds; without any noise it diverges as well. With
eta = 0.00046, inside the condition with N, it falls to {kept:.3f}.
[../theory.md](../theory.md#the-step-size-the-papers-condition-lacks-a-factor-n) says why."""
COPY = """The copy of the Superconductivity table has 76 of UCI's columns cell by cell. Five (`number_of_elements`,
`gmean_fie`, `entropy_ThermalConductivity`, `wtd_entropy_ThermalConductivity` and `range_Valence`) were computed again
from the compositions, by the published definitions; over all known cells that computation is off by at most 2.2e-13 of
a column's mean."""
READING = """A verdict **by a hair** is one that 99 % intervals would not give. Sentences about the bound are judged by
its formula, with what was measured next to it. [../reproducing.md](../reproducing.md) says how a verdict is taken, the
page of `tdcd reproduce` how each sentence is checked, and [results.json](results.json) has the losses of every seed,
from which all verdicts follow."""


def main(paths: Sequence[str]) -> None:
    """Draw the pictures, and write the numbers and the page."""
    results = joined(*(read_results(Path(path)) for path in paths))
    smaller = [name for name, result in results.items() if not result.full_size]
    if smaller or not results:
        sys.exit(f"not at the paper's size: {', '.join(smaller) or 'nothing given'}; run tdcd reproduce --full")
    stand_ins = [name for name, result in results.items() if result.stand_in]
    if stand_ins:
        sys.exit(f"not on the paper's data: {', '.join(stand_ins)}; {results[stand_ins[0]].stand_in}")
    for each in HERE.glob("*.png"):
        each.unlink()
    draw_all(results, HERE)
    claims = judge(results)
    write_results(HERE, results, [claim.as_json() for claim in claims], tables=False)
    (HERE / "README.md").write_text("\n".join(_page(results, claims)) + "\n", encoding="utf-8")


def _page(results: Results, claims: Sequence[Claim]) -> Iterator[str]:
    paper = [claim for claim in claims if claim.section and not claim.as_printed]
    yield from ("# Results: every sentence of the paper that can be judged, on its own data", "")
    yield from (f"Of what the paper says in sections 3, 4 and 5, {summed_up(paper)}.", "")
    for title, says, some in grouped(claims):
        yield from (f"## {title}: {summed_up(some)}", "")
        yield from _table(
            [says, "verdict", "measured", "figure"],
            [(c.sentence, f"**{c.words}**", c.measured, c.figure) for c in some],
        )
    yield from ("## How to read this", "", comparisons_in_words(claims))
    yield READING
    yield from ("", "## Where a run of ours and the paper could still differ", "")
    yield from _table(["the paper leaves open", "what we assumed"], differences())
    yield from _step_sizes(results)
    for title, names in PICTURES.items():
        shown = [name for name in names if name in results]
        if shown:
            yield from (f"## {title}", "", "Lines are means over seeds, bands one standard deviation.", "")
            yield from (f"![{results[name].title}]({name}.png)" for name in shown)
            yield ""
    yield from _accuracy(results)
    yield from _provenance(results)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + " --- |" * len(head)
    yield from ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
    yield ""


def _step_sizes(results: Results) -> Iterator[str]:
    result = results.get("stability")
    if result is not None:
        diverged, *_, kept = result.curves
        numbers = {"diverged": diverged.losses[:, -1].mean(), "rounds": diverged.rounds[-1]}
        yield from ("## Step sizes that the printed condition admits, and that diverge", "")
        yield from (STEP_SIZES.format(**numbers, kept=kept.losses[:, -1].mean()), "")
        yield from ("![The largest step sizes over Q, for N = 4 and N = 16](stability-limits.png)",)
        yield from (f"![{result.title}](stability.png)", "")
        yield from _table(
            ["N", "Q", "stable up to", "printed condition", "condition with N"],
            [
                (
                    str(limit.silos),
                    str(limit.local_steps),
                    *(f"{size:.5f}" for size in (limit.stable, limit.printed, limit.proof)),
                )
                for limit in result.limits
                if limit.local_steps in (1, 5, 10, 25, 50)
            ],
        )


def _accuracy(results: Results) -> Iterator[str]:
    result = results.get("accuracy")
    if result is None:
        return
    two_tier, central = (np.asarray(curve.metric)[:, -1] for curve in result.curves)
    yield from ("## Test accuracy against central training", "", f"{'. '.join(result.chosen)}.", "")
    yield from _table(
        [f"{result.num_seeds} seeds", "mean", "standard deviation", "lowest", "highest"],
        [
            (
                curve.label,
                *(f"{value:.2%}" for value in (values.mean(), values.std(ddof=1), values.min(), values.max())),
            )
            for curve, values in zip(result.curves, (two_tier, central), strict=True)
        ],
    )
    yield from (f"The difference, in points: {t_interval(100 * (two_tier - central))}.", "")


def _provenance(results: Results) -> Iterator[str]:
    yield from ("## What the figures were made with", "")
    rows: dict[tuple[str, str], list[str]] = {}
    for name, result in results.items():
        made, _, _ = made_in_words(result.made).rpartition("; ")  # results.json has the times
        rows.setdefault((result.data, made), []).append(f"{name} ({result.num_seeds} seeds)")
    yield from _table(["figures", "data", "made with"], [(", ".join(names), *each) for each, names in rows.items()])
    yield from (COPY, "")
    yield "This page and the pictures are written by `python docs/results/draw.py results.json`."


if __name__ == "__main__":
    main(sys.argv[1:])
