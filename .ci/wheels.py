"""Build the wheels and source distributions of both names: cuconv for CUDA 12 and cuconv-cuda13x for CUDA 13.

Run `python .ci/wheels.py FOLDER`, with setuptools installed. Both have the same code; only the name and the packages of
CUDA that they bring differ, as CuPy's own two packages do.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

CUDA13 = {
    'name = "cuconv"': 'name = "cuconv-cuda13x"',
    '"cupy-cuda12x>=13"': '"cupy-cuda13x>=13"',
    '"nvidia-cuda-nvrtc-cu12"': '"nvidia-cuda-nvrtc>=13,<14"',
    '"nvidia-cuda-runtime-cu12"': '"nvidia-cuda-runtime>=13,<14"',
}
"""What pyproject.toml says for CUDA 13 in the place of what it says for CUDA 12."""

BUILD = """
import sys
from setuptools import build_meta
out = sys.argv[1]
build_meta.build_sdist(out)
build_meta.build_wheel(out)
"""


def projects() -> dict[str, str]:
    """The pyproject.toml of each distribution by its name."""
    text = other = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for old, new in CUDA13.items():
        if other.count(old) != 1:
            raise ValueError(f"pyproject.toml: got {other.count(old)} times {old}; wanted once")
        other = other.replace(old, new)
    return {"cuconv": text, "cuconv-cuda13x": other}


def build(out: Path) -> None:
    """Write a wheel and a source distribution of each name to a folder, from copies of the tree."""
    out.mkdir(parents=True, exist_ok=True)
    for name, project in projects().items():
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder) / name
            for part in ("cuconv", "cuda_src"):
                shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
            for part in ("README.md", "LICENSE"):
                shutil.copy(ROOT / part, tree / part)
            (tree / "pyproject.toml").write_text(project, encoding="utf-8")
            subprocess.run([sys.executable, "-c", BUILD, str(out.resolve())], cwd=tree, check=True, capture_output=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
