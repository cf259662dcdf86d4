"""On the virtual Mac the suite builds what it probes; on a Mac that takes minutes and is the user's to do."""

import pytest

from pytest_laya import measure, session


@pytest.fixture(scope="session", autouse=True)
def _built(laya_platform, pytestconfig):
    if not laya_platform.virtual:
        return
    from laya_apple import ArtifactError
    from laya_apple.artifacts.build import build_artifact
    from laya_apple.artifacts.store import load_verified
    from laya_apple.checkpoint import open_checkpoint
    from laya_apple.registry import resolve

    spec = resolve(measure.model_id(session.of(pytestconfig)))
    for bucket in spec.ane_buckets:
        try:
            load_verified(spec, bucket, platform=laya_platform)
        except ArtifactError:
            build_artifact(open_checkpoint(spec, platform=laya_platform), bucket, platform=laya_platform)
