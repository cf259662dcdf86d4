"""Inner pytest runs start from an installed default: no platform hook, a cache of their own."""

# An inner run in this process forgets what it imported, and these load once a process: here, before it.
import jsonschema  # noqa: F401
import mlx.core  # noqa: F401
import numpy  # noqa: F401
import pytest
import safetensors  # noqa: F401
import tokenizers  # noqa: F401
from recording import ON_MAC

from laya_apple.platform import current_platform

# And an inner run restores the import hooks as it found them: the session's machine must be among them.
current_platform()


@pytest.fixture(autouse=True)
def _clean_start(monkeypatch, tmp_path):
    monkeypatch.delenv("LAYA_APPLE_PLATFORM", raising=False)
    monkeypatch.setenv("LAYA_APPLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CI", "1")
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def inner(pytester):
    """``inner(source, *arguments)`` runs pytest on one inner test file and returns pytester's result.

    Only this plugin is loaded, unless ``plugins`` says that everything installed is.
    """

    def run(source, *arguments, ini="", plugins=False, subprocess=ON_MAC):
        if ini:
            pytester.makeini("[pytest]\n" + ini)
        pytester.makepyfile(test_inner=source)
        with pytest.MonkeyPatch.context() as patch:
            if not plugins:
                patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
                arguments = ("-p", "pytest_laya.plugin", *arguments)
            runner = pytester.runpytest_subprocess if subprocess else pytester.runpytest_inprocess
            return runner("-p", "no:cacheprovider", *arguments)

    return run
