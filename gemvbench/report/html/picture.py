"""A picture and the ways to keep it: inside a page, as a file. Drawn by Matplotlib (`plots`).

A page's pictures take their colours from CSS variables, so that one drawing is light and dark.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemvbench.errors import UserError
from gemvbench.report.html.palette import LIGHT

WIDTH = 5.6
"""Inches: as wide as a phone's column once scaled, with text that can still be read."""
MOST_MARKS = 3000
"""More marks than these in a picture become a raster inside it."""
_LONGEST_LABEL = 34
_DPI = 160
_IDS = re.compile(r' id="(?!p|m|C|image)[A-Za-z0-9_.]+"')


@dataclass(frozen=True)
class Picture:
    """What to draw, and what it shows; `name` is fit for a file."""

    name: str
    title: str
    caption: str
    height: float
    """Inches."""
    draw: Callable[[Any], None]
    """Draws on a Matplotlib figure."""


def require_plots(what: str, folder: str | None = None) -> None:
    """Refuse before any work what could not be drawn or written after it.

    Raises:
        UserError: no Matplotlib, or no such folder.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise UserError(
            f"{what} needs Matplotlib; install it with `pip install 'gemvbench[plots]'`."
        ) from error
    mpl.use("svg")
    if folder is not None and not Path(folder).is_dir():
        raise UserError(f"{what} {folder}: there is no such folder; create it first.")


def inline_svg(picture: Picture) -> str:
    """An <svg> element to stand in a page."""
    text = _saved(picture, "svg").decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"'DejaVu Sans'[^;\"]*sans-serif", "'DejaVu Sans', Verdana, sans-serif", text)
    text = _IDS.sub("", text)
    (box,) = re.findall(r'viewBox="([^"]+)"', text[: text.index(">")])
    label = html.escape(f"{picture.title}. {picture.caption}")
    body = text[text.index(">") + 1 :]
    for name, color in LIGHT.items():
        body = body.replace(color, f"var(--{name})")
    body = re.sub(r"\n\s*", "\n", body)
    return f'<svg viewBox="{box}" role="img" aria-label="{label}">{body}'


def save_pictures(pictures: Mapping[str, Picture], folder: Path, *, force: bool) -> None:
    """Each picture as an SVG and a PNG file.

    Raises:
        UserError: a file exists, unless `force`, or cannot be written.
    """
    places = {
        folder / f"{name}.{form}": (picture, form)
        for name, picture in pictures.items()
        for form in ("svg", "png")
    }
    there = [path for path in places if path.exists()]
    if there and not force:
        raise UserError(f"--plots: {there[0]} exists; name another folder, or give --force.")
    for path, (picture, form) in places.items():
        try:
            path.write_bytes(_saved(picture, form, background=LIGHT["paper"]))
        except OSError as error:
            raise UserError(f"--plots: {path} cannot be written ({error.strerror}).") from error


def plain(text: str, most: int = _LONGEST_LABEL) -> str:
    """A name from a record as a label: short, one line, and nothing Matplotlib acts on."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    shown = shown if len(shown) <= most else shown[: most - 1] + "…"
    # A legend leaves out what begins so.
    return f"\N{WORD JOINER}{shown}" if shown.startswith("_") else shown


def name_case(axes: Any, row: float, case: str) -> None:
    """A case over its arms, so that a long name takes no room from the axis."""
    paper = {"facecolor": LIGHT["paper"], "linewidth": 0, "pad": 1.5}
    axes.annotate(
        plain(case, 66),
        (0, row),
        xycoords=("axes fraction", "data"),
        va="center",
        color=LIGHT["muted"],
        fontsize=8,
        bbox=paper,
    )


def legend(figure: Any, handles: list[Any], labels: list[str]) -> None:
    """Below the picture, in as many columns as fit."""
    texts = [plain(label) for label in labels]
    columns = max(1, min(len(texts), int(76 / (max(map(len, texts), default=1) + 6))))
    figure.legend(handles, texts, loc="outside lower left", ncols=columns, handlelength=1.4)


def _saved(picture: Picture, form: str, background: str = "none") -> bytes:
    """Printed by the canvas itself: `savefig` would draw everything twice."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    out = io.BytesIO()
    size = (WIDTH, picture.height)
    with mpl.rc_context(_style(picture.name)):
        figure = Figure(size, _DPI, facecolor=background, edgecolor="none", layout="constrained")
        picture.draw(figure)
        if form == "svg":
            metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
            canvas: Any = FigureCanvasSVG(figure)
            canvas.print_svg(out, metadata=metadata)
        else:
            canvas = FigureCanvasAgg(figure)
            canvas.print_png(out)
    return out.getvalue()


def _style(name: str) -> Any:
    ink, muted = LIGHT["ink"], LIGHT["muted"]
    return {
        "svg.hashsalt": name,
        "svg.fonttype": "none",
        "text.parse_math": False,
        "font.family": "DejaVu Sans",
        "font.size": 8.5,
        "text.color": ink,
        "axes.labelcolor": muted,
        "axes.edgecolor": LIGHT["grid"],
        "axes.facecolor": "none",
        "axes.titlesize": 9,
        "axes.labelsize": 8.5,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.formatter.use_mathtext": False,
        "axes.unicode_minus": False,
        "grid.color": LIGHT["grid"],
        "grid.linewidth": 0.6,
        "xtick.color": muted,
        "ytick.color": muted,
        "xtick.labelcolor": ink,
        "ytick.labelcolor": ink,
        "legend.frameon": False,
        "legend.fontsize": 8,
        "legend.labelcolor": ink,
        "figure.constrained_layout.h_pad": 0.06,
    }
