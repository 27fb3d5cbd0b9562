"""Members of the family that a configuration names by ``train.variant``."""

from tdcd import ClientMomentum, GaussianNoise, Variant
from tdcd.core.family.steered import Steered
from tdcd.core.update import Average

lasting = Variant(update=ClientMomentum(0.7))
noisy = Variant(exchange=GaussianNoise(clip=0.5, sigma=0.1))
steered = Variant(hub_update=Steered(Average()))
