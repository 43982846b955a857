"""Models beside the packet simulation: memory contention, collectives in closed form, overlap, a training step."""
