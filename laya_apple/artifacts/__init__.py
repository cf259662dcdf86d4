"""Core ML artifacts: built, verified, probed and moved about."""
