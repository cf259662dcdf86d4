"""Backends turn rows into logits, nothing else."""
