"""Pictures of results: what is drawn, that it can be read, and that it comes out the same every time."""

from __future__ import annotations

import itertools
import struct
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cuconv.bench.results import Kernel
from cuconv.cli.report import pictures
from cuconv.cli.report.drawing import STYLE, apart
from cuconv.cli.report.measured import Measured
from tests.support.bench_machine import HEADER
from tests.support.measurements import kernel, kernels, measured, wrong

matplotlib = pytest.importorskip("matplotlib", reason="drawing needs matplotlib")

PEERS = {"causal_conv1d": 0.7, "vllm": 0.4, "mamba_ssm": 0.02}
WITH_PEERS = [row for name, share in {"cuconv": 0.9, **PEERS}.items() for row in kernels(name, 9 / share, share)]
"""Peers that are the slower, the smaller their fraction of a copy is."""

HOLES = [row if number % 3 else wrong(row) for number, row in enumerate(WITH_PEERS) if number % 5]
RESULTS = {"peers": WITH_PEERS, "alone": kernels(), "holes": HOLES, "nothing": []}


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    """What matplotlib only warns of is wrong."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def figure(name: str, rows: list[Kernel]) -> Any:
    """A picture of rows that are of one run, drawn."""
    return figure_of(name, measured(rows))


def figure_of(name: str, found: Measured) -> Any:
    """A picture, drawn."""
    from matplotlib import style
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with style.context(["default", STYLE], after_reset=True):
        made = pictures.PICTURES[name](found)
        FigureCanvasAgg(made).draw()
    return made


def texts(made: Any) -> list[Any]:
    """Everything to read, but for ticks outside of their axes."""
    from matplotlib.text import Text

    hidden: set[int] = set()
    for axes in made.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not low <= tick.get_loc() <= high:
                    hidden |= {id(tick.label1), id(tick.label2)}
    return [
        text for text in made.findobj(Text) if text.get_visible() and text.get_text().strip() and id(text) not in hidden
    ]


@pytest.mark.parametrize("name", pictures.PICTURES)
@pytest.mark.parametrize("results", RESULTS)
def test_no_text_is_cut_off_or_on_another(name: str, results: str) -> None:
    assert_legible(figure(name, RESULTS[results]))


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_two_machines_have_a_line_each(name: str) -> None:
    long = replace(HEADER, gpu="NVIDIA H100 80GB HBM3", driver="580.159.04", cupy="14.2.0", torch="2.11.0+cu130")
    runs = [(replace(long, driver=driver), row) for driver in ("580.95.05", "580.159.04") for row in WITH_PEERS]
    made = figure_of(name, Measured(runs))
    assert [text.get_text().count(long.gpu) for text in made.texts if "driver" in text.get_text()] == [2]
    assert_legible(made)


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_runs_beside_other_libraries_leave_room(name: str) -> None:
    long = replace(HEADER, gpu="NVIDIA H100 80GB HBM3", driver="580.159.04", cupy="14.2.0", torch="2.11.0+cu130")
    versions = {"causal_conv1d": "1.7.0", "mamba_ssm": "2.3.2.post1", "fla": "0.6.0", "transformers": "5.17.0"}
    runs = [
        (replace(long, peers={library: version}), row) for library, version in versions.items() for row in WITH_PEERS
    ]
    assert_legible(figure_of(name, Measured(runs)))


def assert_legible(made: Any) -> None:
    """Texts are whole, and none is on another."""
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts(made)]
    assert len(boxes) > 3
    for text, box in boxes:
        assert min(box.x0, box.y0) >= 0 and box.x1 <= 1600 and box.y1 <= 900, text
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        # Boxes have room above and below the letters.
        width, height = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
        assert width <= 1 or height <= 5, (one, other)


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_letters_can_be_read_at_half_the_size(name: str) -> None:
    sizes = [text.get_size() / 72 * pictures.DPI for text in texts(figure(name, WITH_PEERS))]
    assert min(sizes) >= 18


def read_png(path: Path) -> dict[str, list[bytes]]:
    """Chunks by kind."""
    data, chunks, at = path.read_bytes(), {}, 8
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        chunks.setdefault(kind.decode(), []).append(data[at + 8 : at + 8 + size])
        at += size + 12
    return chunks


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return pictures.draw(tmp_path_factory.mktemp("pictures"), measured(WITH_PEERS))


def test_pictures_are_white_png_files_of_one_size(drawn: list[Path]) -> None:
    from matplotlib import image

    assert [path.name for path in drawn] == ["roofline.png", "decode.png", "skew.png", "forward.png", "drift.png"]
    for path in drawn:
        chunks = read_png(path)
        assert struct.unpack(">II", chunks["IHDR"][0][:8]) == (1600, 900)
        # Nothing of when or by what.
        assert chunks.keys() == {"IHDR", "pHYs", "IDAT", "IEND"}
        pixels = image.imread(path)
        assert (pixels[:5] == 1).all() and (pixels[-5:] == 1).all()
        assert 0.01 < (pixels[..., :3] < 0.95).any(axis=-1).mean() < 0.5


def test_pictures_are_the_same_every_time(drawn: list[Path], tmp_path: Path) -> None:
    # Whatever the user likes.
    with matplotlib.rc_context({"font.size": 40, "savefig.dpi": 50, "axes.facecolor": "black"}):
        again = pictures.draw(tmp_path, measured(WITH_PEERS))
        assert matplotlib.rcParams["font.size"] == 40
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in drawn]


def points(many: Sequence[Any], is_filled: bool = True) -> list[tuple[float, float]]:
    """The points drawn with markers in these axes: the filled ones are of cuconv, the others of other libraries."""
    return [
        (float(x), float(y))
        for axes in many
        for line in axes.lines
        if line.get_marker() != "None" and (line.get_markerfacecolor() != "white") == is_filled
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    ]


def test_the_roofline_has_every_row_that_memory_bounds_and_its_best_peer() -> None:
    made = figure("roofline", WITH_PEERS)
    wanted = [row for row in WITH_PEERS if row.function in pictures.OPERATIONS]
    for library, is_filled in (("cuconv", True), ("causal_conv1d", False)):
        expected = [(row.bytes_moved / 2**20, row.gb_per_s) for row in wanted if row.library == library]
        assert sorted(points(made.axes, is_filled)) == sorted(expected)
    (copy,) = [line for line in made.axes[0].lines if line.get_marker() == "None"]
    limits = {row.bytes_moved / 2**20: row.bytes_moved / row.copy_us * 1e-3 for row in wanted if row.copy_us}
    assert dict(zip(copy.get_xdata(), copy.get_ydata(), strict=True)).keys() == limits.keys()


def test_decode_steps_are_over_their_batch() -> None:
    made = figure("decode", kernels())
    batches = [sorted(x for x, _ in points([axes])) for axes in made.axes]
    assert batches == [[1, 8, 64, 256, 1024]] * 2 + [[1, 16, 64, 256], [16, 64, 256]]
    sizes = {"batch": 64, "dim": 10240, "contiguous": "tokens"}
    (left, *_) = figure("decode", [kernel("causal_conv1d_update", sizes, 5.4)]).axes
    assert points([left]) == [(64, 5.4)]
    # One line for the few channels and one for the many, and a copy's.
    assert [len(axes.lines) for axes in made.axes] == [4, 4, 2, 2]
    assert made.axes[0].get_xlabel() == "batch, of dim 6144 (1, 8) and 10240 (64, 256, 1024)"


def test_decode_steps_of_before_there_were_forms_are_plain_ones() -> None:
    row = kernel("causal_conv1d_update", {"batch": 64, "dim": 10240, "contiguous": "tokens"}, 5.4)
    old = replace(row, sizes={name: value for name, value in row.sizes.items() if name != "form"})
    (left, *_) = figure("decode", [old]).axes
    assert old.sizes != row.sizes and points([left]) == [(64, 5.4)]


def test_lines_are_named_at_their_ends() -> None:
    for axes in figure("decode", WITH_PEERS).axes:
        # From the slowest to the fastest, as the lines are.
        assert [text.get_text() for text in axes.texts] == ["copy", "cuconv", "causal_conv1d", "vllm", "mamba_ssm"]


def test_bars_say_their_fraction_and_time() -> None:
    sizes = {"sequences": "7800+392x1"}
    rows = [kernel("causal_conv1d_varlen_fn", sizes, 85.31, share=0.87)]
    rows.append(kernel("causal_conv1d_varlen_fn", sizes, 3700.0, "vllm", 0.02))
    shown = [text.get_text() for text in figure("skew", rows).axes[0].texts]
    assert sorted(shown) == ["0.87  85.3 µs", *["not measured"] * 4, "vllm  0.02  3700 µs"]
    rows[0] = wrong(rows[0])
    assert sorted(text.get_text() for text in figure("skew", rows).axes[0].texts)[0] == "WRONG"


def test_bars_are_beside_each_other() -> None:
    for rows, widths in ((kernels(), [0.8] * 5), (WITH_PEERS, [0.9, 0.7, 0.4] * 5)):
        (axes,) = figure("skew", rows).axes
        assert [bar.get_width() for bar in axes.patches] == widths
        edges = [edge for bar in axes.patches for edge in (bar.get_y(), bar.get_y() + bar.get_height())]
        bottom, top = axes.get_ylim()
        assert [top, *edges, bottom] == sorted([top, *edges, bottom])


def test_shapes_are_beside_a_copy() -> None:
    made = figure("forward", kernels(share=1.3))
    assert [points([axes]) for axes in made.axes] == [[(1.3, float(place)) for place in range(15)]] * 2
    # What is faster than a copy is in the picture, too.
    assert all(axes.get_xlim()[1] > 1.3 for axes in made.axes)
    shape = {"batch": 8, "dim": 4096, "seqlen": 2048}
    rows = [
        kernel("causal_conv1d_fn", {**shape, "contiguous": axis}, 66.0, share=0.5) for axis in ("tokens", "channels")
    ]
    left, right = figure("forward", [rows[0], wrong(rows[1])]).axes
    assert points([left, right]) == [(0.5, 1.0)]
    assert [text.get_text() for text in left.texts][:3] == ["–", "0.50", "–"]
    assert [text.get_text() for text in right.texts][:3] == ["–", "WRONG", "–"]


@pytest.mark.parametrize(
    ("rising", "wanted"),
    [
        ([], []),
        ([3.0], [3.0]),
        ([1.0, 2.0, 4.0], [1.0, 2.0, 4.0]),
        ([1.0, 1.0], [0.5, 1.5]),
        ([0.0, 5.0, 5.2], [0.0, 4.6, 5.6]),
    ],
)
def test_labels_are_apart(rising: list[float], wanted: list[float]) -> None:
    assert apart(rising, 1.0) == pytest.approx(wanted)


def test_matplotlib_is_imported_by_pictures_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match="matplotlib"):
        pictures.draw(tmp_path, Measured([]))
    assert not list(tmp_path.iterdir())
