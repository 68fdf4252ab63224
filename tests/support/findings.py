"""What `cuconv doctor` found, and folders that look like broken installations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cuconv.cli.finding import Finding

Findings = list[dict[str, Any]]


def about(findings: Findings, subject: str, status: str | None = None) -> Findings:
    return [f for f in findings if f["subject"] == subject and status in (None, f["status"])]


def probe(found: Iterator[Finding]) -> Findings:
    return [finding.as_json for finding in found]


def lay_distribution(root: Path, name: str, version: str) -> None:
    folder = root / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def lay_module(root: Path, name: str, text: str) -> None:
    (root / name).mkdir(parents=True)
    (root / name / "__init__.py").write_text(text)
