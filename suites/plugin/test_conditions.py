"""laya_conditions: what the machine was doing, from its own files and tools."""

import pytest

from pytest_laya.conditions import Conditions, _linux, _macos, collect

CLEAR = {"on_battery": False, "low_power_mode": False, "thermal_pressure": False, "virtualised": False}


def looked(**found):
    return Conditions("2026-01-01T00:00:00Z", 8, None, **{**CLEAR, **found})


def test_each_condition_speaks_against_a_latency_and_the_unknown_does_not():
    assert looked().adverse() == ()
    assert looked(on_battery=True, virtualised=True).adverse() == ("on battery", "virtualised host")
    assert looked(low_power_mode=True, thermal_pressure=True).adverse() == (
        "low-power mode",
        "thermal pressure",
    )
    assert (
        looked(on_battery=None, low_power_mode=None, thermal_pressure=None, virtualised=None).adverse() == ()
    )


def test_this_machine_can_be_looked_at():
    found = collect()
    assert found.cpu_count >= 1
    assert len(found.loadavg) == 3
    assert found.to_dict()["adverse"] == list(found.adverse())


def write(root, **files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


SUPPLY = "sys/class/power_supply"


@pytest.mark.parametrize(
    ("files", "on_battery"),
    [
        ({}, False),
        ({f"{SUPPLY}/AC/type": "Mains\n", f"{SUPPLY}/AC/online": "1\n"}, False),
        ({f"{SUPPLY}/AC/type": "Mains\n", f"{SUPPLY}/AC/online": "0\n"}, True),
        ({f"{SUPPLY}/BAT0/type": "Battery\n", f"{SUPPLY}/BAT0/status": "Discharging\n"}, True),
        ({f"{SUPPLY}/BAT0/type": "Battery\n", f"{SUPPLY}/BAT0/status": "Charging\n"}, False),
    ],
)
def test_linux_battery(tmp_path, files, on_battery):
    write(tmp_path, **files)
    assert _linux(tmp_path)["on_battery"] is on_battery


def test_linux_hypervisor_and_power_profile(tmp_path):
    assert _linux(tmp_path)["virtualised"] is False
    assert _linux(tmp_path)["low_power_mode"] is None
    write(
        tmp_path,
        **{
            "proc/cpuinfo": "processor : 0\nflags\t\t: fpu vme hypervisor lahf_lm\n",
            "sys/firmware/acpi/platform_profile": "low-power\n",
        },
    )
    assert _linux(tmp_path)["virtualised"] is True
    assert _linux(tmp_path)["low_power_mode"] is True


MAC = {
    "batt": "Now drawing from 'AC Power'\n -InternalBattery-0 (id=1)\t100%; charged; 0:00 remaining\n",
    "pmset": "System-wide power settings:\nCurrently in use:\n lowpowermode         0\n sleep  1\n",
    "therm": "Note: No thermal warning level has been recorded\n"
    "Note: No performance warning level has been recorded\n",
    "hv": "0\n",
}


def mac(**changes):
    answers = {**MAC, **changes}

    def run(*command):
        if command[0] == "/usr/sbin/sysctl":
            return answers["hv"]
        return answers[{("-g", "batt"): "batt", ("-g",): "pmset", ("-g", "therm"): "therm"}[command[1:]]]

    return _macos(run)


def test_a_quiet_mac_is_clear():
    assert mac() == CLEAR


@pytest.mark.parametrize(
    ("changes", "condition"),
    [
        (
            {"batt": "Now drawing from 'Battery Power'\n -Battery-0\t81%; discharging\n"},
            "on_battery",
        ),
        ({"pmset": "Currently in use:\n lowpowermode         1\n"}, "low_power_mode"),
        (
            {"therm": "Note: No thermal warning level recorded\n\tCPU_Speed_Limit \t= 62\n"},
            "thermal_pressure",
        ),
        ({"therm": "2026-01-01 thermal warning level = 1\n"}, "thermal_pressure"),
        ({"hv": "1\n"}, "virtualised"),
    ],
)
def test_each_condition_of_a_mac(changes, condition):
    assert mac(**changes) == CLEAR | {condition: True}


def test_a_mac_whose_tools_say_nothing_is_unknown():
    assert mac(batt="", pmset="", therm="", hv="") == dict.fromkeys(CLEAR)
