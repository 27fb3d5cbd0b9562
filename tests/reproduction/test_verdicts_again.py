"""What results.json says follows from what it holds."""

import json
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
from made_up import diverging, experiment, falling
from verdicts_again import Figure, quantities, verdict

from support.command import tdcd
from tdcd.pages.reproduction import write_page
from tdcd.reproduction.claims import judge
from tdcd.reproduction.results import read_results

PUBLISHED = Path(__file__).parents[2] / "docs" / "results" / "results.json"


def check(path):
    """Every claim of section 5 from the losses alone, every other one from its figures by seed; how many there are."""
    found = json.loads(path.read_text())
    with np.errstate(invalid="ignore"):  # curves that diverged
        by = {name: Figure(each["curves"], each["optimum"]) for name, each in found["figures"].items()}
    for claim in found["claims"]:
        again = [np.array([np.inf if value is None else value for value in q["by_seed"]]) for q in claim["quantities"]]
        assert verdict(again) == claim["verdict"], claim["key"]
        if claim["section"] == "5":
            name, kind = claim["key"].split("/")
            beside = {"less-than-q": name.replace("2c", "2a"), "similar": "fig2a", "performs-well": "error"}
            errors = [by["error"].gap, by["error-k"].gap[:3]] if claim["key"] == "fig2c/less-than-q" else []
            from_losses = quantities(kind, by[claim["figure"]], by.get(beside.get(kind)), errors)
            assert verdict(from_losses) == claim["verdict"], claim["key"]
            for one, other in zip(from_losses, again, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-7)
    return len(found["claims"])


def everything():
    """Made-up results of all figures of the paper."""
    falls = [falling(rate, noise=1e-3, local_steps=q) for q, rate in ((1, 0.02), (5, 0.05), (25, 0.2))]
    ends = [falling(0.9 + 0.01 * place, floor=0.1 + 0.001 * place, noise=1e-3) for place in range(5)]
    stay = [falling(1.0 + 0.01 * q, floor=0.3 + 0.01 * q, noise=1e-3, local_steps=q) for q in (1, 5, 25)]
    for place, curves in enumerate((ends, stay)):
        curves[:] = [replace(curve, label=f"N = {2 ** (place + at)}") for at, curve in enumerate(curves)]
    both_vary = [replace(curve, label=f"{curve.label}, B = 20") for curve in ends[3:]]
    named = {"fig2a": falls, "fig2b": ends, "fig2c": ends[:3], "fig3a": falls, "fig3b": ends[:3]}
    metric = [replace(curve, metric=1 - curve.losses) for curve in ends[:2]]
    results = {name: experiment(name, curves) for name, curves in named.items()} | {
        "error": experiment("error", [*stay, diverging()], optimum=0.0),
        "error-n": experiment("error-n", stay, optimum=0.0),
        "error-k": experiment("error-k", [*ends[:3], *both_vary], optimum=0.0),
        "error-eta": experiment("error-eta", [*falls[1:], diverging(), falls[2]], optimum=0.0),
        "accuracy": experiment("accuracy", metric),
    }
    printed = {
        f"{name}-lambda1": replace(results[name], name=f"{name}-lambda1") for name in ("fig2a", "fig2b", "fig2c")
    }
    return results | printed


def test_verdicts_follow_from_the_losses_of_every_seed(tmp_path):
    write_page(tmp_path, everything())
    assert check(tmp_path / "results.json") == 29


def test_the_page_is_written_again_from_the_results_alone(tmp_path):
    write_page(tmp_path, everything())
    (tmp_path / "reproduce.html").unlink()
    told = tdcd("reproduce", "--redraw", "--out", ".", cwd=tmp_path)
    assert told.exit_code == 0, told.output
    assert "fig3a" in (tmp_path / "reproduce.html").read_text()
    refused = tdcd("reproduce", "--redraw", "--out", "none", cwd=tmp_path)
    assert refused.exit_code == 2
    assert "results.json is not there" in " ".join(refused.stderr.split())


def test_published_verdicts_do_too():
    assert check(PUBLISHED) >= 29


def test_what_is_published_follows_from_the_published_losses():
    results = read_results(PUBLISHED)
    assert not any(result.stand_in for result in results.values())
    claims, found = judge(results), json.loads(PUBLISHED.read_text())["claims"]
    assert [claim.key for claim in claims] == [each["key"] for each in found]
    for claim, each in zip(claims, found, strict=True):
        assert (claim.verdict, claim.by_a_hair, claim.measured) == (
            each["verdict"],
            each["by_a_hair"],
            each["measured"],
        )
    page = runpy.run_path(str(PUBLISHED.with_name("draw.py")))["_page"](results, claims)
    text = "\n".join(page) + "\n"
    assert text == PUBLISHED.with_name("README.md").read_text(encoding="utf-8")
    # Verdicts come first, what figures were made with last; no template is printed as it is, and no number is none.
    assert text.index("**holds**") < 1000 < text.index("## What the figures were made with")
    assert not {"nan", "inf", "nan%", "inf%"} & {*text.replace("(", " ").replace(")", " ").split()}
    assert "{" not in text
