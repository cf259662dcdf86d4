"""What auto may do with the Neural Engine here, found out before anything of it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from laya_apple import routing
from laya_apple.platform import Platform
from laya_apple.routing.decide import Unavailable
from laya_apple.routing.profiles import Profile, coremltools_version, load_profile

if TYPE_CHECKING:
    from laya_apple.registry import ModelSpec


@dataclass(frozen=True, slots=True)
class Prospect:
    """Whether auto should load the Neural Engine at all, and what was measured for it here."""

    unavailable: Unavailable | None
    profile: Profile | None
    table: routing.ServiceTable

    @property
    def auto_buckets(self) -> tuple[int, ...]:
        return self.profile.auto_buckets if self.profile else ()


def prospect(platform: Platform, spec: ModelSpec) -> Prospect:
    """Look at this machine and its local profile; warns when the profile does not hold up."""
    version = coremltools_version()
    profile = load_profile(platform, spec, version) if platform.is_apple_silicon and version else None
    table = profile.table if profile else routing.published_table()
    if not platform.is_apple_silicon or not version:
        return Prospect("ane_runtime_unavailable", None, table)
    if profile is None or not profile.auto_buckets:
        return Prospect("platform_not_validated", profile, table)
    return Prospect(None, profile, table)


def unavailable_message(error: BaseException) -> str:
    """The warning of an auto instance whose Neural Engine cannot be used."""
    return (
        "the Neural Engine is unavailable, so device='auto' uses MLX only (ane_runtime_unavailable): "
        f"{type(error).__name__}: {error}"
    )
