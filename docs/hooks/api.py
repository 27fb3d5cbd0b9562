"""The pages of the Python interface: which name is on which page. Their text comes from the docstrings."""

import tdcd

PAGES = {
    "training": (
        "Training",
        "Train a federation that is simulated in this process. Start with [training from Python](../../python.md).",
        ["train", "Settings", "Objective", "Result", "Record", "Simulation"],
    ),
    "data": (
        "Data and federations",
        "Who holds which columns and rows.",
        ["Federation", "Silo", "Table", "load", "standardize", "DataWarning"],
    ),
    "models": (
        "Models and estimators",
        "Trained models, and scikit-learn estimators.",
        ["Model", "TwoTierClassifier", "TwoTierRegressor"],
    ),
    "blocks": (
        "Blocks and losses",
        "The model of a silo, and what training minimises.",
        ["Block", "Linear", "Mlp", "Ensemble", "Cnn", "Loss", "Huber", "Hidden", "Pairs"],
    ),
    "variants": (
        "Variants",
        "The parts that may differ from Algorithm 1: see [the family](../../algorithm.md#the-family).",
        [
            "Variant",
            "Overlap",
            "Quantised",
            "QuantisedChange",
            "GaussianNoise",
            "ClientMomentum",
            "Knowledge",
            "LabelsAt",
            "SiloDropout",
        ],
    ),
    "studies": (
        "Sweeps, plans and comparisons",
        "Functions behind [sweeps](../../sweeps.md), [planning](../../planning.md), [comparing](../../comparing.md).",
        [
            "training.sweep.grid.expand",
            "training.sweep.sweep.run_sweep",
            "planning.recommend_local_steps",
            "planning.rank_variants",
            "compare.plan_all",
            "compare.compare",
        ],
    ),
    "algorithm": (
        "Algorithm 1",
        "The algorithm as pure functions. Every engine of the simulation, and real hubs and clients, call these.",
        ["core.algorithm", "core.round"],
    ),
    "theory": (
        "Theorem 1",
        "The bound, the largest safe step size and what both need. [Theory](../../theory.md) explains them.",
        [
            "theory.max_step_size",
            "theory.bound",
            "theory.constants",
            "theory.sigmas",
            "theory.gradient_norms",
            "theory.RoundMap",
        ],
    ),
}


NUMPYDOC = "\n    options: {docstring_style: numpy}"
"""Estimators have docstrings in scikit-learn's form."""


def pages() -> dict[str, str]:
    """Every page as Markdown, by its path."""
    public = [name for _, _, names in PAGES.values() for name in names if "." not in name]
    if sorted(public) != sorted(tdcd.__all__):
        raise ValueError(f"docs/hooks/api.py and tdcd.__all__ differ: {sorted(set(public) ^ set(tdcd.__all__))}")
    return {
        f"reference/api/{path}.md": "\n\n".join([f"# {title}", text, *(_entry(name) for name in names)]) + "\n"
        for path, (title, text, names) in PAGES.items()
    }


def _entry(name: str) -> str:
    """What mkdocstrings shows of a name."""
    return f"::: tdcd.{name}" + (NUMPYDOC if name.startswith("TwoTier") else "")
