"""A harder baseline: PyTorch as an expert would write it for many clients, all of them in one batch.

Clients of all silos are one axis: the parameters of G = N K clients are stacked, products are ``bmm``, and a step is
one forward and one backward pass for all of them. On a GPU a whole round is one CUDA graph. Which rows each client has
is worked out in advance and not timed.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.timing import alternate
from tdcd import Federation
from tdcd.core.schedule import batch_ids
from tdcd.federation.placement import Placer

Forward = Callable[[list[Any], Any], Any]
"""Stacked parameters ``[G, ...]`` and rows ``[G, P, ...]`` to scores ``[G, P, C]``."""


class BatchedLoop:
    """Algorithm 1 in PyTorch, all clients of all silos at once; silos have samples of the same shape, or columns."""

    def __init__(
        self,
        federation: Federation,
        parameters: list[Any],
        forward: Forward,
        loss: Callable[[Any, Any], Any],
        *,
        batch_size: int,
        local_steps: int,
        step_size: float,
        device: str = "cpu",
        step_forward: Forward | None = None,
        compiles: bool = False,
    ) -> None:
        """Take one hub's initial parameters; ``loss(scores, labels)`` gives a loss per row.

        Args:
            step_forward: scores ``[G, P, k C]`` in a local step, where these are not those of the exchange.
            compiles: whether a local step goes through ``torch.compile``.
        """
        import torch  # noqa: PLC0415

        self.torch, self.forward, self.loss, self.step_size = torch, forward, loss, step_size
        silos = federation.silos
        self.silos, self.clients, self.device = len(silos), silos[0].num_clients, device
        self.step_forward = step_forward or forward
        self.slopes = torch.compile(self._slopes, dynamic=False) if compiles else self._slopes
        self.hubs = [torch.stack([p.detach().to(device)] * len(silos)) for p in parameters]
        (ids,) = batch_ids(0, [0], num_samples=federation.num_samples, batch_size=batch_size, local_steps=local_steps)
        placers = [Placer(silo.owner(), batch_size) for silo in silos]
        counts = [placer.count(ids[None]) for placer in placers]
        width = max(int(count.max()) for count in counts)
        placed = [placer.place(ids[None], count, width) for placer, count in zip(placers, counts, strict=True)]
        positions = np.concatenate([one.positions[0] for one in placed]).transpose(1, 0, 2)
        held = np.concatenate([silo.rows_held for silo in silos])
        real = np.arange(width) < np.concatenate([one.counts[0] for one in placed]).T[..., None]
        weights = np.where(real, (federation.num_samples / (held * batch_size))[:, None], 0)
        self.ids = self._put(ids.astype(np.int64))
        self.positions, self.weights = self._put(positions.astype(np.int64)), self._put(weights.astype(np.float32))
        self.shares = self._put(np.stack([silo.shares for silo in silos]).astype(np.float32))
        widest = max(silo.feature_shape[-1] for silo in silos)
        room = [[(0, 0)] * len(s.feature_shape) + [(0, widest - s.feature_shape[-1])] for s in silos]
        self.features = [self._put(np.pad(silo.features, spare)) for silo, spare in zip(silos, room, strict=True)]
        is_class = federation.labels.dtype.kind == "i"
        self.labels = self._put(federation.labels.astype(np.int64 if is_class else np.float32))
        self.replay: Callable[[], None] = self._round

    def _put(self, array: Any) -> Any:
        return self.torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def capture(self) -> None:
        """Make a round one CUDA graph."""
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._round()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # JAX's threads use the GPU too, and are not part of the graph.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._round()
        self.replay = graph.replay

    def round(self) -> None:
        """One communication round."""
        self.replay()
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def _round(self) -> None:
        torch, per_silo = self.torch, self.clients
        with torch.no_grad():
            phi = torch.stack(
                [
                    torch.cat([self.forward([p[n : n + 1] for p in self.hubs], rows[None])[0].float() for rows in part])
                    for n, part in enumerate([features[i] for i in self.ids] for features in self.features)
                ]
            ).unflatten(1, self.ids.shape)
            others = phi.sum(dim=0) - phi
        blocks = [p.repeat_interleave(per_silo, dim=0).requires_grad_() for p in self.hubs]
        for step, ids in enumerate(self.ids):
            where = self.positions[step].unflatten(0, (self.silos, per_silo))
            rows = ids[where]
            taken = [features[chosen] for features, chosen in zip(self.features, rows, strict=True)]
            received = torch.cat([others[n, step][where[n]] for n in range(self.silos)])
            slopes = self.slopes(blocks, torch.cat(taken), received, self.labels[rows].flatten(), self.weights[step])
            with torch.no_grad():
                blocks = [
                    (p - self.step_size * slope).requires_grad_() for p, slope in zip(blocks, slopes, strict=True)
                ]
        with torch.no_grad():
            for hub, block in zip(self.hubs, blocks, strict=True):
                stacked = block.unflatten(0, (self.silos, per_silo))
                hub.copy_(torch.einsum("nk,nk...->n...", self.shares, stacked))

    def _slopes(self, blocks: list[Any], rows: Any, received: Any, labels: Any, weights: Any) -> Any:
        scores = self.step_forward(blocks, rows).float() + received
        losses = self.loss(scores.flatten(0, 1), labels)
        return self.torch.autograd.grad((losses * weights.flatten()).sum(), blocks)


def batched_linear(
    federation: Federation, *, batch_size: int, local_steps: int, step_size: float, device: str = "cpu"
) -> BatchedLoop:
    """Linear blocks without a bias, with squared loss. Narrower silos get columns of zeros."""
    import torch  # noqa: PLC0415

    return BatchedLoop(
        federation,
        [torch.zeros(max(silo.feature_shape[0] for silo in federation.silos), 1)],
        lambda parameters, rows: rows.bmm(parameters[0]),
        lambda scores, labels: (scores[:, 0] - labels) ** 2 / 2,
        batch_size=batch_size,
        local_steps=local_steps,
        step_size=step_size,
        device=device,
    )


def grouped_cnn(parameters: list[Any], rows: Any) -> Any:
    """The CNN with one group of channels per client."""
    import torch  # noqa: PLC0415

    first, first_bias, second, second_bias, *dense = parameters
    clients, pool = len(rows), torch.nn.functional.max_pool2d
    images = rows.transpose(0, 1)
    for weight, bias in ((first, first_bias), (second, second_bias)):
        convolved = torch.nn.functional.conv2d(images, weight.flatten(0, 1), bias.flatten(), groups=clients)
        images = pool(torch.relu(convolved), 2)
    flat = images.unflatten(1, (clients, -1)).flatten(2).transpose(0, 1)
    return _dense(flat, *dense)


def channels_last_cnn(parameters: list[Any], rows: Any) -> Any:
    """:func:`grouped_cnn` with channels next to each other in memory."""
    import torch  # noqa: PLC0415

    clients, pool = len(rows), torch.nn.functional.max_pool2d
    images = rows.transpose(0, 1).contiguous(memory_format=torch.channels_last)
    for weight, bias in ((parameters[0], parameters[1]), (parameters[2], parameters[3])):
        kernel = weight.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        images = pool(torch.relu(torch.nn.functional.conv2d(images, kernel, bias.flatten(), groups=clients)), 2)
    flat = images.unflatten(1, (clients, -1)).flatten(2).transpose(0, 1)
    return _dense(flat, *parameters[4:])


def unfolded_cnn(parameters: list[Any], rows: Any) -> Any:
    """The CNN with convolutions as products of unfolded images."""
    import torch  # noqa: PLC0415

    images = rows[..., None]
    for weight, bias in ((parameters[0], parameters[1]), (parameters[2], parameters[3])):
        height, width = weight.shape[-2:]
        patches = images.unfold(2, height, 1).unfold(3, width, 1)
        shape = patches.shape[1:4]
        convolved = patches.flatten(1, 3).flatten(2).bmm(weight.flatten(2).transpose(1, 2)).unflatten(1, shape)
        down, right = shape[1] // 2, shape[2] // 2
        convolved = convolved[:, :, : 2 * down, : 2 * right].unflatten(2, (down, 2)).unflatten(4, (right, 2))
        images = torch.relu(convolved.amax(dim=(3, 5)) + bias[:, None, None, None])
    # In the order that a flattened image of PyTorch's own layout has.
    return _dense(images.permute(0, 1, 4, 2, 3).flatten(2), *parameters[4:])


def _dense(flat: Any, weight: Any, bias: Any, last: Any) -> Any:
    import torch  # noqa: PLC0415

    embedded = torch.relu(torch.baddbmm(bias[:, None], flat, weight.transpose(1, 2)))
    return embedded.bmm(last.transpose(1, 2))


CNNS: dict[str, Forward] = {
    "grouped convolutions": grouped_cnn,
    "grouped, channels last": channels_last_cnn,
    "unfolded": unfolded_cnn,
}


def fastest(ways: dict[str, Callable[[], BatchedLoop]], *, gpu: bool) -> tuple[str, BatchedLoop]:
    """The fastest of several ways to write the same; one that does not fit into memory is left out."""
    import torch  # noqa: PLC0415

    taken: dict[str, float] = {}
    best: tuple[str, BatchedLoop] | None = None
    for name, make in ways.items():
        try:
            loop = make()
            if gpu:
                loop.capture()
            (taken[name],) = alternate([loop.round], repetitions=2)
        except torch.cuda.OutOfMemoryError:
            print(f"  batched PyTorch, {name}: not enough memory")
            continue
        if taken[name] == min(taken.values()):
            best = name, loop
        del loop
        torch.cuda.empty_cache()
    print("  batched PyTorch, a round:", ", ".join(f"{name} {1e3 * seconds:.3g} ms" for name, seconds in taken.items()))
    if best is None:
        raise SystemExit("no way to batch clients fits into memory")
    return best
