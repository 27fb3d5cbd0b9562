"""One hypothesis profile for all tests: the same examples on every run, and no deadline, since programs compile."""

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")
