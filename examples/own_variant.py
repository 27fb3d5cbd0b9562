"""A variant of your own: phi in 8 bits. Run this file, or name it: [train] variant = "own_variant:EIGHT_BITS"."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from tdcd import Federation, Linear, Objective, Variant, load, standardize, train


@dataclass(frozen=True)
class EightBits:
    """Of a column with largest number a, steps of width a / 127; dither, alike at both ends, makes errors mean zero."""

    def encode(self, phi, sending):
        """``[E, B, C]`` numbers to as many bytes and C widths."""
        width = jnp.maximum(jnp.max(jnp.abs(phi), axis=(0, 1)) / 127, jnp.finfo(phi.dtype).tiny)
        return {"steps": (jnp.round(phi / width + self._dither(phi, sending)) + 128).astype(jnp.uint8), "width": width}

    def decode(self, sent, sending):
        """What was sent, to within half a width."""
        return sent["width"] * (sent["steps"].astype(sent["width"].dtype) - 128 - self._dither(sent["steps"], sending))

    def layout(self, shape, dtype):
        """What is sent for phi of this shape."""
        return {"steps": ("uint8", shape), "width": (dtype, shape[-1:])}

    def _dither(self, phi, sending):
        return jax.random.uniform(sending.key, phi.shape, minval=-0.5, maxval=0.5)


EIGHT_BITS = Variant(exchange=EightBits())

if __name__ == "__main__":
    federation = Federation.cut(*standardize(*load("diabetes").split(0.2, seed=0)), silos=2, clients=4)
    for name, variant in {"Algorithm 1": Variant(), "8 bits": EIGHT_BITS}.items():
        result = train(federation, Linear(), Objective(), rounds=200, variant=variant)
        last = result.history[-1]
        num_bytes = last.bytes.hub_to_hub / last.round
        print(f"{name}: loss {last.train_loss:.4f}, {num_bytes:.0f} bytes per round between hubs")
