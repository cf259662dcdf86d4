"""The parity gate and the goldens it judges by."""
