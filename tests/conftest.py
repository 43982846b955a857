"""Shared by all tests: one hypothesis profile, whose failing example prints the seed that replays it."""

from hypothesis import HealthCheck, settings

settings.register_profile("metaroce", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("metaroce")
