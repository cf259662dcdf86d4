"""Writes docs/no-silent-fallback.md: ``python -m pytest_laya.audit_page AUDIT_JSON DESTINATION``.

``AUDIT_JSON`` is the audit.json of ``pytest suites/audit --laya-audit=strict``; its verdicts go in the page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_laya import audit, audit_census, audit_report


def page(verdicts: Mapping[int, str]) -> str:
    """The page, with these verdicts (row -> verdict) beside the table of ``audit.toml``."""
    modules = audit_census.sources(audit_census.package_folder())
    warned = [one.to_dict() for one in audit_census.excepts(modules) if one.tag == "warned"]
    return audit_report.to_page(audit.rows(), verdicts, warned)


def main(arguments: Sequence[str]) -> int:
    """Write the page; 2 and one line when the arguments are not two."""
    if len(arguments) != 2:
        print("usage: python -m pytest_laya.audit_page AUDIT_JSON DESTINATION", file=sys.stderr)
        return 2
    document = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    verdicts = {one["row"]: one["verdict"] for one in document["rows"]}
    Path(arguments[1]).write_text(page(verdicts), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
