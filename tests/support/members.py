"""Members of the family that a configuration names by ``train.variant``."""

from tdcd import ClientMomentum, GaussianNoise, Variant

lasting = Variant(update=ClientMomentum(0.7))
noisy = Variant(exchange=GaussianNoise(clip=0.5, sigma=0.1))
