"""What a test may do to its virtual Mac, what is undone, and what loading it costs."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from laya_apple.platform import cache_root, current_platform
from pytest_laya.virtual_mac.control import VirtualMac
from pytest_laya.virtual_mac.faults import FAULTS


@pytest.fixture
def mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with VirtualMac(tmp_path / "virtual-mac", monkeypatch) as virtual_mac:
        yield virtual_mac


def run_child(source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# --- loading


def test_importing_and_starting_load_none_of_the_heavy_modules() -> None:
    source = """
        import sys
        import pytest_laya.virtual_mac
        pytest_laya.virtual_mac.platform()
        heavy = ("numpy", "mlx", "coremltools", "transformers", "CoreML", "objc")
        print([name for name in heavy if name in sys.modules])
    """
    assert run_child(source).stdout == "[]\n"


def test_core_ml_tools_finds_the_bridge_and_the_macos_version() -> None:
    source = """
        from pytest_laya.virtual_mac import platform
        platform()
        import coremltools as ct
        from coremltools.models import _compiled_model, model, utils
        print({m._macos_version() for m in (utils, model, _compiled_model)}, ct.libcoremlpython.__name__)
        print(model._MLModelProxy is _compiled_model._MLModelProxy is ct.libcoremlpython._MLModelProxy)
    """
    done = run_child(source)
    assert done.stdout == "{(26, 0)} coremltools.libcoremlpython\nTrue\n"
    assert "Failed to load _MLModelProxy" not in done.stderr


@pytest.mark.skipif(sys.platform == "darwin", reason="Core ML Tools has a native bridge on a Mac")
def test_core_ml_tools_imported_first_is_bound_and_released_again() -> None:
    source = """
        import coremltools as ct
        from coremltools.models import model, utils
        from pytest_laya.virtual_mac import platform
        from pytest_laya.virtual_mac.importing import uninstall_bridge
        before = (model._MLModelProxy, utils._macos_version())
        platform()
        during = (model._MLModelProxy is not None, utils._macos_version())
        uninstall_bridge()
        after = (model._MLModelProxy, utils._macos_version())
        print(before, during, after)
        platform()
        print(model._MLModelProxy is not None, utils._macos_version())
    """
    expected = "(None, ()) (True, (26, 0)) (None, ())\nTrue (26, 0)\n"
    assert run_child(source).stdout == expected


@pytest.mark.skipif(sys.platform == "darwin", reason="Core ML Tools has a native bridge on a Mac")
@pytest.mark.parametrize("first", ["import coremltools", "pass"])
def test_a_bridge_that_was_swept_away_comes_back(first: str) -> None:
    source = f"""
        import sys
        hooks = list(sys.meta_path)
        from pytest_laya.virtual_mac import platform
        from pytest_laya.virtual_mac.importing import uninstall_bridge
        platform()
        {first}
        sys.meta_path[:] = hooks
        platform()
        from coremltools.models import model, utils
        print(model._MLModelProxy is not None, utils._macos_version())
        uninstall_bridge()
        ours = [hook for hook in sys.meta_path if "virtual_mac" in type(hook).__module__]
        print(model._MLModelProxy, utils._macos_version(), ours)
    """
    assert run_child(source).stdout == "True (26, 0)\nNone () []\n"


def test_one_blas_thread_here_and_in_children() -> None:
    source = """
        import os, subprocess, sys
        from pytest_laya.virtual_mac import platform
        platform()
        print(os.environ["OMP_NUM_THREADS"], os.environ["OPENBLAS_NUM_THREADS"])
        child = "import os; print(os.environ['OMP_NUM_THREADS'])"
        sys.stdout.flush()
        subprocess.run([sys.executable, "-c", child], check=True)
    """
    clean = {"OMP_NUM_THREADS": "", "OPENBLAS_NUM_THREADS": ""}
    environment = {k: v for k, v in os.environ.items() if k not in clean}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "1 1\n1\n"


# --- the platform


def test_the_hook_gives_a_mac_that_no_real_one_is_like(mac: VirtualMac) -> None:
    here = current_platform()
    assert (here.soc, here.macos, here.macos_build, here.machine) == (
        "Virtual Mac",
        "26.0",
        "VIRTUAL1",
        "arm64",
    )
    assert here.virtual
    assert here.is_apple_silicon
    assert here.macos_major == 26
    assert cache_root(here).name == "virtual-mac"


def test_another_platform_is_seen_at_once_by_who_holds_it(mac: VirtualMac) -> None:
    here = current_platform()
    mac.fault("other_platform", macos="27.1", macos_build="VIRTUAL2")
    assert (here.soc, here.macos_major, here.macos_build) == ("Virtual Mac", 27, "VIRTUAL2")
    mac.clear()
    assert (here.macos_major, here.macos_build) == (26, "VIRTUAL1")


# --- faults


def test_every_fault_can_be_set_and_cleared(mac: VirtualMac) -> None:
    for name in FAULTS:
        mac.fault(name)
    mac.clear()
    import coremltools

    assert coremltools.__version__ == "9.0"


def test_unknown_faults_and_arguments_are_refused(mac: VirtualMac) -> None:
    with pytest.raises(ValueError, match=r"^unknown fault 'gremlins'; known: ane_compile_failed, "):
        mac.fault("gremlins")
    with pytest.raises(ValueError, match=r"^fault ane_compile_failed takes \['bucket'\], not \['bukcet'\]$"):
        mac.fault("ane_compile_failed", bukcet=64)


def test_core_ml_tools_can_be_missing_in_this_process(mac: VirtualMac) -> None:
    import coremltools

    mac.fault("coremltools_missing")
    with pytest.raises(ImportError):
        import coremltools.models
    mac.clear()
    import coremltools.models as again

    assert again is coremltools.models


def test_another_version_of_core_ml_tools_in_this_process(mac: VirtualMac) -> None:
    import importlib.metadata

    import coremltools

    mac.fault("other_coremltools", version="8.3.0")
    assert (coremltools.__version__, importlib.metadata.version("coremltools")) == ("8.3.0", "8.3.0")
    mac.clear("other_coremltools")
    assert (coremltools.__version__, importlib.metadata.version("coremltools")) == ("9.0", "9.0")


def test_everything_is_undone(tmp_path: Path) -> None:
    before = dict(os.environ)
    with pytest.MonkeyPatch.context() as patch, VirtualMac(tmp_path / "virtual-mac", patch) as mac:
        mac.fault("other_platform", soc="Virtual Mac 2")
        assert os.environ["LAYA_APPLE_PLATFORM"] == "pytest_laya.virtual_mac:platform"
    assert dict(os.environ) == before
    assert mac.platform.soc == "Virtual Mac"


@pytest.mark.parametrize(
    ("what", "same"),
    [
        ("content", ("size", "mtime", "inode")),
        ("size", ("mtime", "inode")),
        ("mtime", ("content", "size", "inode")),
        ("inode", ("content", "size", "mtime")),
    ],
)
def test_one_thing_about_a_file_changes(
    mac: VirtualMac, tmp_path: Path, what: str, same: tuple[str, ...]
) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"abc")

    def facts() -> dict[str, Any]:
        stat = path.stat()
        return {
            "content": path.read_bytes(),
            "size": stat.st_size,
            "mtime": stat.st_mtime_ns,
            "inode": stat.st_ino,
        }

    before = facts()
    mac.change_file(path, what)
    after = facts()
    assert after[what] != before[what]
    assert {key: after[key] for key in same} == {key: before[key] for key in same}


def test_quick_changes_are_all_seen(mac: VirtualMac) -> None:
    for number in range(200):
        mac.clear()
        mac.fault("other_platform", soc=f"Virtual Mac {number}")
        assert mac.platform.soc == f"Virtual Mac {number}"


# --- the disk


def test_a_full_disk_refuses_new_files_but_not_renames(mac: VirtualMac, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "old").write_text("old")
    mac.fault("disk_full", at=2, under=str(folder))
    (folder / "first").write_text("fits")
    with pytest.raises(OSError) as caught:
        (folder / "second").write_text("does not")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(folder / "second"))
    with pytest.raises(OSError):
        (folder / "third").mkdir()
    os.replace(folder / "old", folder / "new")
    (tmp_path / "elsewhere").write_text("fits")
    assert (folder / "first").read_text() == "fits"
    mac.clear()
    (folder / "second").write_text("fits again")
    assert sorted(p.name for p in folder.iterdir()) == ["first", "new", "second"]


STEPS = """
    import os, shutil, sys
    from laya_apple.platform import current_platform
    current_platform()
    root = sys.argv[1] if len(sys.argv) > 1 else os.environ["ROOT"]
    os.mkdir(os.path.join(root, "staging"))
    with open(os.path.join(root, "staging", "model"), "w") as file:
        file.write("model")
    os.replace(os.path.join(root, "staging"), os.path.join(root, "model"))
    shutil.rmtree(os.path.join(root, "model"))
"""


def test_steps_are_logged_and_any_of_them_can_be_the_last(mac: VirtualMac, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    root.mkdir()
    mac.fault("steps_logged", under=str(root))
    assert run_child(STEPS, ROOT=str(root)).returncode == 0
    logged = [(e["op"], Path(e["path"]).relative_to(root).as_posix()) for e in mac.events("step")]
    assert logged == [
        ("os.mkdir", "staging"),
        ("open", "staging/model"),
        ("os.rename", "model"),
        ("os.remove", "model/model"),
        ("os.rmdir", "model"),
    ]
    left = []
    for at in range(1, 6):
        mac.clear()
        mac.fault("killed_at_step", at=at, under=str(root))
        assert run_child(STEPS, ROOT=str(root)).returncode == -9
        left.append(sorted(p.relative_to(root).as_posix() for p in root.rglob("*")))
        for path in sorted(root.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    assert left == [
        [],
        ["staging"],
        ["staging", "staging/model"],
        ["model", "model/model"],
        ["model"],
    ]
