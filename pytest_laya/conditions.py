"""What the machine was doing while something was measured. Facts, each None where it cannot be told."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pytest_laya.results import utc_now

Run = Callable[..., str]


@dataclass(frozen=True)
class Conditions:
    """One look at the machine."""

    utc: str
    cpu_count: int | None
    loadavg: tuple[float, float, float] | None
    on_battery: bool | None
    low_power_mode: bool | None
    thermal_pressure: bool | None
    virtualised: bool | None

    def adverse(self) -> tuple[str, ...]:
        """Why a latency measured now says nothing about the machine; empty when nothing speaks against it."""
        named = {
            "on battery": self.on_battery,
            "low-power mode": self.low_power_mode,
            "thermal pressure": self.thermal_pressure,
            "virtualised host": self.virtualised,
        }
        return tuple(name for name, found in named.items() if found)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"adverse": list(self.adverse())}


def collect() -> Conditions:
    """Look at this machine; takes some tens of milliseconds on macOS, about one on Linux."""
    try:
        loadavg: tuple[float, float, float] | None = os.getloadavg()
    except OSError:
        loadavg = None
    find = _macos if sys.platform == "darwin" else _linux
    return Conditions(utc=utc_now(), cpu_count=os.cpu_count(), loadavg=loadavg, **find())


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def _macos(run: Run = _run) -> dict[str, bool | None]:
    battery = run("/usr/bin/pmset", "-g", "batt")
    low_power = re.search(r"^\s*lowpowermode\s+(\d)", run("/usr/bin/pmset", "-g"), re.MULTILINE)
    therm = run("/usr/bin/pmset", "-g", "therm")
    limits = [int(limit) for limit in re.findall(r"CPU_Speed_Limit\s*=\s*(\d+)", therm)]
    warned = re.search(r"(?<!No )(thermal|performance) warning level", therm)
    hypervisor = run("/usr/sbin/sysctl", "-n", "kern.hv_vmm_present").strip()
    return {
        "on_battery": "'Battery Power'" in battery if battery else None,
        "low_power_mode": low_power[1] == "1" if low_power else None,
        "thermal_pressure": bool(warned) or any(limit < 100 for limit in limits) if therm else None,
        "virtualised": hypervisor == "1" if hypervisor else None,
    }


def _linux(root: Path = Path("/")) -> dict[str, bool | None]:
    supplies = {path: _read(path) for path in (root / "sys/class/power_supply").glob("*/type")}
    mains = [_read(path.with_name("online")) for path, kind in supplies.items() if kind == "Mains"]
    batteries = [_read(path.with_name("status")) for path, kind in supplies.items() if kind == "Battery"]
    profile = _read(root / "sys/firmware/acpi/platform_profile")
    cpuinfo = _read(root / "proc/cpuinfo")
    return {
        "on_battery": "1" not in mains if mains else "Discharging" in batteries,
        "low_power_mode": profile == "low-power" if profile else None,
        "thermal_pressure": None,
        "virtualised": bool(re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.MULTILINE))
        or bool(_read(root / "sys/hypervisor/type")),
    }


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
