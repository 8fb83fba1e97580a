"""What the figures of a report share: style, colours, labels, legend and files."""
import os
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402
from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from rpr.report import escaping  # noqa: E402
from rpr.report.results import ArmResult, StudyResults  # noqa: E402
from rpr.utils import files  # noqa: E402

LONGEST_LABEL = 32
PNG_DPI = 130
pyplot.rcParams.update({"axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False,
                        "axes.spines.right": False, "svg.hashsalt": "rpr", "font.size": 9})


class Plot(NamedTuple):
    """Attributes:
      name: file name without suffix.
      title: heading in the report.
      figure: `save` closes it.
      arm: name of the arm that it shows, or None for the whole study.
    """
    name: str
    title: str
    figure: Figure
    arm: str | None = None

    @property
    def wide(self) -> bool:
        """Whether a narrow screen should scroll the figure instead of shrinking it."""
        return self.figure.get_figwidth() > 7


def save(figure: Figure, target: str) -> None:
    """Writes TARGET.png and TARGET.svg, each atomically, and closes the figure."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    figure.dpi = PNG_DPI
    # `savefig` would draw each figure twice, and the layout is computed once.
    with files.atomic_path(f"{target}.png") as path:
        FigureCanvasAgg(figure).print_png(path)
    figure.set_layout_engine("none")
    with files.atomic_path(f"{target}.svg") as path:
        FigureCanvasSVG(figure).print_svg(path, metadata={"Date": None})
    pyplot.close(figure)


def add_legend(figure: Figure, axes: Axes) -> None:
    """Adds one legend to the right of all panels, where it hides no line."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside right upper", frameon=False)


def arm_colours(results: StudyResults) -> list:
    """A colour per arm: a sequential scale if the arms are values of one numeric setting."""
    arms = results.arms
    values: list[Any] = [arm.settings.get(name) for arm in arms for name in arm.settings]
    if len(values) == len(arms) > 2 and all(type(value) in (int, float) for value in values):
        order = sorted(range(len(arms)), key=lambda index: values[index])
        scale = matplotlib.colormaps["viridis"]
        return [scale(0.95 * order.index(index) / (len(arms) - 1)) for index in range(len(arms))]
    if len(arms) <= 10:
        return [f"C{index}" for index in range(len(arms))]
    scale = matplotlib.colormaps["turbo"]
    return [scale(index / (len(arms) - 1)) for index in range(len(arms))]


def arm_label(arm: ArmResult) -> str:
    """An arm's name, shortened and safe in a figure."""
    if arm.name == f"max_relative_position={arm.settings.get('max_relative_position')}":
        return f"k = {arm.settings['max_relative_position']}"
    short = arm.name if len(arm.name) <= LONGEST_LABEL else arm.name[:LONGEST_LABEL - 1] + "…"
    return escaping.to_figure(short)
