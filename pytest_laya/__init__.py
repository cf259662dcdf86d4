"""A pytest plugin that proves where on-device inference ran."""
