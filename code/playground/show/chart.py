"""Charts that compute on the page itself, without a kernel: Altair's, with sliders and menus.

`book/_static/calculator.js` draws them. Without it, and in print, each chart is a picture.
"""

import json
from collections.abc import Mapping
from html import escape
from typing import Any

import altair as alt
import vl_convert


class Calculator:
    """A chart with controls. `alt_text` describes it as it looks before any control is moved."""

    def __init__(self, chart: alt.LayerChart, alt_text: str):
        self.alt_text = alt_text
        self.vega: dict[str, Any] = vl_convert.vegalite_to_vega(chart.to_dict())

    def _repr_html_(self) -> str:
        spec = escape(json.dumps(self.vega, separators=(",", ":")))
        return (
            f'<div class="calculator" role="group" aria-label="calculator" data-vega="{spec}">'
            f'<div class="calculator-chart" role="img" aria-label="{escape(self.alt_text)}">'
            f"{vl_convert.vega_to_svg(self.vega)}</div>"
            '<div class="calculator-controls"></div></div>'
        )

    def __repr__(self) -> str:
        return self.alt_text


def slider(name: str, label: str, ends: tuple[float, float, float], value: float, shown: str):
    """A number to slide, from, to, by; and the text beside it, an expression of the chart."""
    start, stop, step = ends
    bind = alt.binding_range(name=label, min=start, max=stop, step=step)
    return alt.param(name, value=value, bind=bind), alt.param(f"{name}_text", expr=shown)


def choice(name: str, label: str, options: Mapping[str, Any], value: str):
    bind = alt.binding_select(name=label, options=list(options.values()), labels=list(options))
    return (alt.param(name, value=options[value], bind=bind),)


def style(chart: Any) -> Any:
    """The page's font and text colour, so that it reads well in both themes; no frame."""
    text = {"labelColor": "currentColor", "titleColor": "currentColor", "labelFontSize": 12}
    axis = {**text, "titleFontWeight": "normal", "titleFontSize": 12, "gridOpacity": 0.25}
    axis["labelSeparation"] = 4
    return (
        chart.properties(width=560, height=240, background="transparent")
        .configure(font="system-ui, sans-serif")
        .configure_axis(**axis, domainColor="currentColor", tickColor="currentColor")
        .configure_legend(**text, titleFontWeight="normal")
        .configure_view(stroke=None)
        .configure_text(color="currentColor")
        .configure_rule(color="currentColor")
    )
