"""The example that trains, small: the loss falls, the picture is one, and text is written by the decode functions."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cuconv.torch import train  # noqa: E402

SMALL = ["--device", "cpu", "--batch", "2", "--tokens", "24", "--width", "16", "--layers", "1", "--text-bytes", "20000"]


def test_training_learns_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "loss.svg"
    done = train.main([*SMALL, "--steps", "15", "--write", "12", "--picture", str(picture)])
    assert len(done.losses) == 15 and done.after < done.before - 0.5
    told = capsys.readouterr()
    assert f"{done.after:.3f} after" in told.out and "15/15" in told.err and "def " in told.out
    root = ElementTree.fromstring(picture.read_text(encoding="utf-8"))
    (curve,) = [each for each in root if each.get("fill") == "none"]
    assert len((curve.get("points") or "").split()) == 15


def test_the_same_seed_gives_the_same_model() -> None:
    options = train.parser().parse_args([*SMALL, "--steps", "2"])
    assert train.train(options).losses == train.train(options).losses


def test_what_is_written_is_what_whole_texts_predict() -> None:
    torch.manual_seed(0)
    model = train.Model(16, 2).eval()
    # So cold that the most likely byte is drawn.
    written = bytes(model.write(b"import ", 6, temperature=1e-4))
    text = torch.tensor([list(b"import " + written)])
    wanted = model(text[:, :-1]).argmax(-1)[0, -6:]
    assert written == bytes(wanted.tolist())
