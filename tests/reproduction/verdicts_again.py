"""Every verdict of section 5 again, in some thirty lines, from the losses in results.json alone."""

import numpy as np
from scipy.stats import t


def verdict(rows):
    ends = [(np.mean(r), t.ppf(0.975, max(len(r) - 1, 1)) * np.std(r, ddof=len(r) > 1) / len(r) ** 0.5) for r in rows]
    above = "holds" if all(mean > half for mean, half in ends) else "not decided at this size"
    return "does not hold" if any(mean < -half for mean, half in ends) else above


class Figure:
    def __init__(self, curves, optimum):
        self.y, self.x, self.mb = ([np.array(c[k], float) for c in curves] for k in ("losses", "rounds", "megabytes"))
        self.end = np.stack([y[:, -max(1, min(5, y.shape[1] // 4)) :].mean(axis=1) for y in self.y])
        self.end[~(self.end <= [y[:, 0] for y in self.y])] = np.inf  # it diverged
        self.start, kept = self.y[0][:, 0], [y for y, e in zip(self.y, self.end, strict=True) if np.isfinite(e).all()]
        self.gap = np.stack([y[:, y.shape[1] // 2 :].mean(axis=1) for y in kept]) - (optimum or 0)
        self.closed = 1 - self.gap[self.gap.mean(axis=1).argmin()] / (self.start - (optimum or 0))
        self.rounds = self.to(np.where(np.isfinite(self.end), self.end, -np.inf).max(axis=0), self.x)
        self.spread = np.ptp(self.end, axis=0) / (self.start - self.end.min(axis=0))
        self.falls, self.spent = -np.diff(self.rounds, axis=0), self.to(self.end[0], self.mb)
        self.metric = [np.array(c["metric"], float)[:, -1] for c in curves if c["metric"]]

    def to(self, level, axes):
        def first(y, goal, x):
            at = int((y <= goal).argmax())
            return np.interp(goal, y[[at, at - 1]], x[[at, at - 1]]) if at else x[0] if y[0] <= goal else np.inf

        return np.array([[first(*s, x) for s in zip(y, level, strict=True)] for y, x in zip(self.y, axes, strict=True)])


def quantities(kind, f, over_q, errors):
    best, apart = 1 + f.spent[1:].mean(axis=1).argmin() if len(f.y) > 1 else 0, f.end[-1] - f.end[0]
    wide = [np.ptp(e, axis=0) / e.min(axis=0) for e in errors]
    return {
        "rate": lambda: f.falls,
        "rounds": lambda: [f.rounds[0] - f.rounds[-1]],
        "error": lambda: [f.gap[-1] - f.gap[0]],
        "observable": lambda: [apart * np.sign(apart.mean()), 0.05 - f.spread],
        "lower-n": lambda: [np.polyfit(range(len(f.end)), f.end, 1)[0]],
        "low": lambda: [0.05 - f.spread],
        "mild": lambda: [0.05 - f.spread],
        "less-than-q": lambda: [over_q.spread - f.spread, *([wide[0] - wide[1]] if wide else [])],
        "radically": lambda: [*f.falls, f.rounds[0] - 5 * f.rounds[-1]],
        "similar": lambda: [*over_q.falls, *f.falls],
        "cheaper": lambda: [f.spent[0] - 2 * f.spent[best], f.end[0] - f.end[best]],
        "performs-well": lambda: [over_q.closed - 0.95, f.metric[0] - f.metric[1] + 0.005],
    }[kind]()
