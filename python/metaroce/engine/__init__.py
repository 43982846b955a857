"""From a workload to the program that the engine runs, and where its ranks sit."""

from __future__ import annotations

from .workloads import Collective, Flows, Groups, Incast, Permutation, Workload

__all__ = ["Collective", "Flows", "Groups", "Incast", "Permutation", "Workload"]
