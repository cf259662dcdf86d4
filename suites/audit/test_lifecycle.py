"""Row 7: what is corrupt does not stay in its place."""

import pytest
from audit_case import CLEAR, SHORT, Home

from laya_apple import ArtifactIntegrityError, ArtifactMissingError


def _refused_and_quarantined(home: Home, why: str) -> None:
    with pytest.raises(
        ArtifactIntegrityError, match=f"{why}.*the artifact was moved to .*quarantine"
    ) as caught:
        home.load("ane")
    (moved,) = home.quarantined()
    assert str(moved) in str(caught.value)
    assert (moved / "QUARANTINE.txt").read_text(encoding="utf-8").startswith(why[:20].replace("\\", ""))
    assert not home.artifact(64).exists()
    laya = home.load("ane")
    with pytest.raises(ArtifactMissingError, match="artifacts build --model laya-mini --bucket 64"):
        laya.predict(SHORT, CLEAR)


@pytest.mark.laya_audit(7)
@pytest.mark.parametrize("name", ["model.mil", "weights/weight.bin"])
def test_corrupt_files_are_refused_and_quarantined(home: Home, name):
    home.mac.change_file(home.own(64) / "model.mlmodelc" / name)
    _refused_and_quarantined(home, "the files of model.mlmodelc hash to")


@pytest.mark.laya_audit(7)
def test_a_file_too_many_is_refused_and_quarantined(home: Home):
    (home.own(64) / "model.mlmodelc" / "extra").write_bytes(b"x")
    _refused_and_quarantined(home, "the files of model.mlmodelc hash to")


@pytest.mark.laya_audit(7)
@pytest.mark.parametrize(
    "text", ["{", "[]", '{"format": "laya-apple-artifact"}'], ids=["cut", "list", "bare"]
)
def test_an_unreadable_manifest_is_refused_and_quarantined(home: Home, text):
    (home.own(64) / "manifest.json").write_text(text, encoding="utf-8")
    _refused_and_quarantined(home, "the manifest is corrupt")
