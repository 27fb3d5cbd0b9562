"""What a hub computes for the certificate of one line of the history: :mod:`tdcd.core.certificate` on what was sent."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.core import certificate
from tdcd.core.certificate import Certificate, Floats, Proof, SiloSide
from tdcd.core.family.scaled import Window
from tdcd.core.objective import Tree
from tdcd.core.round import WITNESSES
from tdcd.core.trees import leaves_of, map_tree, named_leaves
from tdcd.runtime.compute.hub_compute import HubCompute
from tdcd.runtime.compute.secure_sums import add_steps
from tdcd.runtime.messages.structure import Arrays

BLOCK = "block."
"""What a part calls the arrays of a block, before their names, where it has others as well."""


class LineProof:
    """A silo's numbers."""

    def __init__(self, compute: HubCompute, round_index: int, block: Tree, window: Window | None) -> None:
        """Take the evaluated block, and what the hub remembered of the rounds before."""
        self._compute, self._round, self._block, self._window = compute, round_index, block, window
        self._blocks = [np.asarray(leaf, np.float64) for leaf in leaves_of(block)[:1]]
        self._proof: Proof | None = None
        self._after = ""

    @property
    def is_mixed(self) -> bool:
        """Whether the witness is a mixture of several rounds' models."""
        return self._compute.certificate_kind == "witness"

    @property
    def is_linear(self) -> bool:
        """Whether blocks are linear, so that clients score in float64 whatever the witness is."""
        return self._compute.certificate_kind != "gradient"

    def products(self) -> tuple[NDArray[Any], int]:
        """The inner products of the silo's gradients, as hubs send them, and of how many rounds they are."""
        compute = self._compute
        gram, models = certificate.products(self._window, compute.round.largest_product)
        return compute.links.products_part("products", self._round, gram.ravel()), models

    def weights(self, products: Sequence[NDArray[Any]], models: Sequence[int]) -> Floats:
        """How much of each model to take, from every hub's products."""
        gram = self._compute.links.products_sum(products).reshape(WITNESSES, -1)
        return certificate.weights_of(gram, models, self._compute.objective)

    def mix(self, weights: Floats, sent: Sequence[NDArray[Any]], models: Sequence[int]) -> None:
        """Let the witness be that mixture.

        Args:
            sent: what the weights follow from, as all hubs were sent it, with its numbers of models. If a hub sent
                others different things, their scores of the witness have masks that do not cancel.
        """
        known = [*(array.tobytes() for array in sent), repr([*models]).encode()]
        self._after = hashlib.sha256(b"".join(known)).hexdigest()
        self._blocks.append(certificate.witness(weights, self._window, self._blocks[0]))

    def question(self) -> Arrays:
        """The blocks whose scores clients are asked for."""
        return {"witness": np.stack(self._blocks)}

    def scores(self, answers: Sequence[Arrays | None]) -> Floats:
        """The silo's scores of all training samples, as hubs send them; zero for clients without an answer."""
        compute = self._compute
        scores = np.zeros((compute.sample_index.num_samples, len(self._blocks) * compute.phi_width))
        for client, (answer, place) in enumerate(zip(answers, compute.train_places, strict=True)):
            if answer is not None:
                scores[place] = answer["witness_scores"][compute.of_samples[client][0]]
        return compute.links.exact_part(self._round, scores, self._after)

    @np.errstate(all="ignore")
    def prove(self, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """The residuals of all training samples, from every hub's scores."""
        compute = self._compute
        if compute.certificate_kind == "gradient":
            total = compute.links.add_scores(parts).astype(np.float64)
            self._proof = Proof(compute.samples, total, 1)
            return self._proof.slopes.astype(compute.settings.dtype)
        error = certificate.score_error(compute.round.summed_phi, compute.round.num_silos)
        self._proof = Proof(compute.samples, compute.links.exact_sum(parts), len(self._blocks), error)
        return self._proof.slopes

    def rows(self, residual: NDArray[Any]) -> list[Arrays]:
        """What each client is sent of the residuals; with the block, where it is not linear."""
        is_linear = self._compute.certificate_kind != "gradient"
        block = {} if is_linear else {f"{BLOCK}{name}": leaf for name, leaf in named_leaves(self._block).items()}
        places = self._compute.train_places
        own = [self._compute.by_rows(client, residual[place]) for client, place in enumerate(places)]
        return [{"residual": summed, **block} for summed in own]

    @np.errstate(all="ignore")
    def side(self, answers: Sequence[Arrays]) -> SiloSide:
        """What the silo adds, from its clients' gradients."""
        compute, l2 = self._compute, self._compute.objective.l2
        summed, trees = compute.summed, [compute.tree(answer) for answer in answers]
        if summed is None:
            total, error = map_tree(lambda *leaves: sum(np.asarray(leaf, np.float64) for leaf in leaves), *trees), 0.0
        else:
            steps = map_tree(lambda *leaves: add_steps(leaves), *trees)
            total, error = certificate.sum_of_gradients(steps, summed, len(trees))
        if compute.certificate_kind == "gradient":
            return SiloSide.of_any(total, self._block, l2)
        return SiloSide.of(leaves_of(total)[0], self._blocks, l2, error)

    def certificate(self, sides: Sequence[SiloSide]) -> Certificate:
        """What is known of the model, from what every silo adds."""
        assert self._proof is not None
        if self._compute.certificate_kind == "gradient":
            return certificate.gradient_norm(sides)
        return self._proof.certificate(sides)
