"""What theory says of steps that are scaled by each silo's own curvature, and what a run of them takes."""

import html
from dataclasses import replace

import numpy as np
import pytest

from support.command import tdcd
from tdcd.config import ConfigError, check_config
from tdcd.config.resolve import plan
from tdcd.planning import ScaledBound, scaled_bound
from tdcd.planning.tables import scaled_figures
from tdcd.theory import max_step_size

KEYS = {
    "data": {"source": "diabetes"},
    "federation": {"silos": 2, "clients": 3},
    "model": {"block": "linear", "l2": 0.01},
    "train": {"rounds": 40},
}
UNHURRIED = 3600.0
"""Seconds: a time limit that no machine, however busy, comes near."""


def found(**sections) -> ScaledBound:
    return scaled_bound(check_config(KEYS | sections), "my.toml", seconds=UNHURRIED)


@pytest.fixture(scope="module")
def diabetes() -> ScaledBound:
    return found()


@pytest.fixture(scope="module")
def dense():
    """The features of both silos, each one's A with the damping of a run, and the Hessian, by hand."""
    planned = plan(check_config(KEYS))
    parts = [np.asarray(silo.features, np.float64) for silo in planned.federation.silos]
    scales = []
    for part in parts:
        own = part.T @ part / len(part)
        scales.append(own + (0.01 + 1e-3 * np.trace(own) / len(own)) * np.eye(len(own)))
    whole = np.concatenate(parts, axis=1)
    labels = np.asarray(planned.federation.labels, np.float64)
    return whole, labels, scales, whole.T @ whole / len(labels) + 0.01 * np.eye(whole.shape[1])


def test_the_figures_are_those_of_the_data(diabetes, dense):
    whole, labels, scales, hessian = dense
    scale = np.zeros_like(hessian)
    first = len(scales[0])
    scale[:first, :first], scale[first:, first:] = scales
    # P and A^-1 H have the same eigenvalues.
    values = np.sort(np.linalg.eigvals(np.linalg.solve(scale, hessian)).real)
    assert pytest.approx(values[-1], rel=1e-5) == diabetes.constants.L
    assert diabetes.convexity == pytest.approx(values[0], rel=1e-4)
    assert diabetes.constants.kind == "exact"
    moment = whole.T @ labels / len(labels)
    assert diabetes.gap == pytest.approx(moment @ np.linalg.solve(hessian, moment) / 2, rel=1e-4)
    assert diabetes.sigma == 0.0
    assert diabetes.first_step == 0.5
    # Silos that shared nothing would allow for twice that; these share nearly all.
    assert diabetes.allowed_step == pytest.approx(3.8 / 2.8 / values[-1], rel=1e-5)
    assert diabetes.step_size == max_step_size(diabetes.constants, 1, 2)


def test_fixed_scaled_steps_keep_the_promises(diabetes, dense):
    whole, labels, scales, hessian = dense
    moment, edge = whole.T @ labels / len(labels), len(scales[0])
    least = -moment @ np.linalg.solve(hessian, moment) / 2

    def run(step_size, rounds):
        theta, squares = np.zeros(len(hessian)), []
        for _ in range(rounds):
            gradient = hessian @ theta - moment
            ways = [
                np.linalg.solve(scale, part) for scale, part in zip(scales, np.split(gradient, [edge]), strict=True)
            ]
            way = np.concatenate(ways)
            squares.append(gradient @ way)
            theta = theta - step_size * way
        return theta @ hessian @ theta / 2 - moment @ theta - least, np.mean(squares)

    assert diabetes.bound.iterations == 40
    assert run(diabetes.step_size, 40)[1] <= diabetes.bound.total
    assert run(1 / diabetes.constants.L, diabetes.rounds)[0] <= 0.01 * diabetes.gap
    left = 1 - diabetes.convexity / diabetes.constants.L
    assert left**diabetes.rounds <= 0.01 < left ** (diabetes.rounds - 1)
    assert "40 rounds" in diabetes.verdict
    assert f"left after {diabetes.rounds:,} rounds" in diabetes.verdict


def test_overlap_and_sampled_minibatches_have_steps_and_noise_of_their_own(diabetes):
    late = found(train={"rounds": 41, "overlap": 2}, exchange={"phi_bits": 8})
    assert late.first_step == pytest.approx(0.5 / 3)
    assert late.step_size == max_step_size(diabetes.constants, 1, 2, timing=late.timing) < diabetes.step_size
    assert late.sigma > 0
    assert late.rounds is None
    assert late.bound.variance > 0
    rows = {row[0]: row for row in scaled_figures(late).rows}
    assert rows["first step"][2] == "1 / (N (D + 1)), overlap = 2"
    assert "stable below" not in rows
    sampled = found(train={"rounds": 40, "batch_size": 64, "local_steps": 3})
    assert sampled.sigma > 0
    assert any(note.startswith("local_steps = 3: hubs take what") for note in sampled.caveats)
    slow = found(federation={}, silos=[{"name": "a", "clients": 3, "period": 3}, {"name": "b", "clients": 3}])
    assert slow.bound.iterations == 39
    assert replace(diabetes, gap=float("inf")).bound is None


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"model": {"block": "mlp"}}, "train.step_size = 'auto': Theorem 1 is about plain steps of one length"),
        ({"model": {"loss": "poisson"}}, "model.loss = 'poisson': the poisson loss has no known bound"),
        ({"train": {"step_size": 0.01}}, "train.step_size = 0.01: steps of one length are held against the gradients"),
        ({"train": {"participation": 0.5}}, "train.participation = 0.5: Theorem 1 covers plain SGD with every client"),
        ({"train": {"hub_optimizer": "adam"}}, "train.hub_optimizer = 'adam': Theorem 1 covers plain SGD"),
        ({"exchange": {"epsilon": 1.0}}, "exchange.epsilon: Theorem 1 knows no noise on phi; leave it out"),
        (
            {"exchange": {"protect_blocks": True, "block_epsilon": 1.0}, "federation": {"silos": 2, "clients": 3}},
            "exchange.block_epsilon: Theorem 1 knows no noise on blocks; leave it out",
        ),
    ],
)
def test_what_no_theorem_covers_is_refused(sections, sentence):
    with pytest.raises(ConfigError) as refused:
        found(**sections)
    assert sentence in str(refused.value)


def test_wide_silos_are_refused(monkeypatch):
    monkeypatch.setattr("tdcd.planning.scaled_steps.WIDEST", 4)
    with pytest.raises(ConfigError, match="silo 'silo1': of more than 4 columns hubs scale by the diagonal alone"):
        found()


def test_the_command_takes_a_configuration_or_a_run(tmp_path):
    (tmp_path / "my.toml").write_text('[data]\nsource = "diabetes"\n[model]\nblock = "linear"\n[train]\nrounds = 3\n')
    asked = tdcd("bound", "my.toml", cwd=tmp_path)
    assert asked.exit_code == 0, asked.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["my.toml"]
    assert tdcd("run", "my.toml", "--out", "r", cwd=tmp_path).exit_code == 0
    done = tdcd("bound", "r", cwd=tmp_path)
    assert done.exit_code == 0, done.stderr
    page = html.unescape((tmp_path / "r" / "bound.html").read_text())
    shown = [" ".join(text.split()) for text in (asked.stdout, done.stdout, page)]
    for text in shown:
        assert "Theorem 1 promises that the squared gradient, in the scaled norm and averaged over 3 rounds" in text
        assert "exact; at most N = 2, 1 without overlap" in text
    assert shown[1] == f"{shown[0]} Page: r/bound.html"
