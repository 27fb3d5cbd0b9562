"""The baseline of all speed ratios: federated learning as it is usually simulated.

One ``torch.nn.Module`` and one ``torch.optim.SGD`` a client. A round goes through silos and clients in turn: a
no-grad forward for the exchange, then for each local iteration zero_grad, forward, backward and step.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd import Federation
from tdcd.core.schedule import batch_ids


class PerClientLoop:
    """Algorithm 1 with PyTorch modules, one client after another."""

    def __init__(
        self,
        federation: Federation,
        make: Callable[[tuple[int, ...]], Any],
        loss: Callable[[Any, Any], Any],
        *,
        batch_size: int,
        local_steps: int,
        step_size: float,
        device: str = "cpu",
    ) -> None:
        """``make(feature_shape)`` builds a client's module; ``loss(scores, labels)`` gives a loss per row."""
        import torch  # noqa: PLC0415

        self.torch, self.federation, self.loss, self.device = torch, federation, loss, device
        self.batch_size, self.local_steps = batch_size, local_steps
        classes = federation.labels.dtype.kind == "i"
        self.labels = torch.from_numpy(federation.labels.astype(np.int64 if classes else np.float32)).to(device)
        self.features = [torch.from_numpy(silo.features).to(device) for silo in federation.silos]
        self.owners = [silo.owner() for silo in federation.silos]
        self.modules = [[make(s.feature_shape).to(device) for _ in s.rows] for s in federation.silos]
        self.optimizers = [
            [torch.optim.SGD(module.parameters(), lr=step_size) for module in modules] for modules in self.modules
        ]

    def round(self, index: int) -> None:
        """One communication round."""
        torch = self.torch
        num_samples = self.federation.num_samples
        (ids,) = batch_ids(
            0, [index], num_samples=num_samples, batch_size=self.batch_size, local_steps=self.local_steps
        )
        places = [self._places(ids, silo) for silo in range(len(self.modules))]
        self._average()
        phis = []
        with torch.no_grad():
            for silo, modules in enumerate(self.modules):
                parts: list[Any] = [None] * self.local_steps
                for client, module in enumerate(modules):
                    for step in range(self.local_steps):
                        where = places[silo][client][step]
                        scores = module(self.features[silo][self._rows(ids[step], where)])
                        if parts[step] is None:
                            parts[step] = torch.zeros(self.batch_size, scores.shape[1], device=self.device)
                        parts[step][where] = scores.float()
                phis.append(torch.stack(parts))
        total = sum(phis)
        for silo, modules in enumerate(self.modules):
            others = total - phis[silo]
            for client, module in enumerate(modules):
                scale = num_samples / (len(self.federation.silos[silo].rows[client]) * self.batch_size)
                for step in range(self.local_steps):
                    where = places[silo][client][step]
                    rows = self._rows(ids[step], where)
                    self.optimizers[silo][client].zero_grad()
                    scores = module(self.features[silo][rows]) + others[step, where]
                    (self.loss(scores, self.labels[rows]).sum() * scale).backward()
                    self.optimizers[silo][client].step()

    def _places(self, ids: NDArray[np.int32], silo: int) -> list[list[Any]]:
        owner = self.owners[silo][ids]
        return [
            [self.torch.from_numpy(np.flatnonzero(row == client)).to(self.device) for row in owner]
            for client in range(len(self.modules[silo]))
        ]

    def _rows(self, ids: NDArray[np.int32], where: Any) -> Any:
        return self.torch.from_numpy(ids.astype(np.int64)).to(self.device)[where]

    def _average(self) -> None:
        torch = self.torch
        with torch.no_grad():
            for silo, modules in zip(self.federation.silos, self.modules, strict=True):
                shares = [len(rows) / self.federation.num_samples for rows in silo.rows]
                for parameters in zip(*(module.parameters() for module in modules), strict=True):
                    mean = sum(share * parameter for share, parameter in zip(shares, parameters, strict=True))
                    for parameter in parameters:
                        parameter.copy_(mean)


def linear_loop(
    federation: Federation, *, batch_size: int, local_steps: int, step_size: float, device: str = "cpu"
) -> PerClientLoop:
    """The loop over linear modules without a bias, with squared loss."""
    import torch  # noqa: PLC0415

    return PerClientLoop(
        federation,
        lambda shape: torch.nn.Linear(shape[0], 1, bias=False),
        lambda scores, labels: (scores[:, 0] - labels) ** 2 / 2,
        batch_size=batch_size,
        local_steps=local_steps,
        step_size=step_size,
        device=device,
    )
