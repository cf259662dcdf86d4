"""A virtual Mac on which a library warns while a backend loads, in whatever process that is."""

import warnings

from pytest_laya.virtual_mac.machine import VirtualPlatform, start


class NoisyPlatform(VirtualPlatform):
    """The same machine; hook: ``LAYA_APPLE_PLATFORM=audit_noisy:platform``."""

    def wrap_backend(self, device, backend):
        category = UserWarning if device == "ane" else RuntimeWarning
        warnings.warn(f"a library has something to say about {device}", category, stacklevel=1)
        return super().wrap_backend(device, backend)


def platform():
    """The hook."""
    start()
    return NoisyPlatform()
