"""Figures follow the theme of the page in which they stand, whatever the system prefers."""

from base64 import b64encode
from io import BytesIO

import matplotlib.pyplot as plt
import numpy as np
import pytest
from playwright.sync_api import Browser

from playground.show.colours import GREY, INK
from playground.show.figures import to_svg

PAGE = """<html style="color-scheme: {theme}"><body style="margin: 0">
<img alt="" src="data:image/svg+xml;base64,{figure}">"""


@pytest.mark.parametrize(("system", "theme"), [("light", "dark"), ("dark", "light")])
def test_text_and_lines_stand_out_from_the_paper_and_data_keep_their_colour(
    browser: Browser, system: str, theme: str
) -> None:
    figure, axis = plt.subplots(figsize=(2, 2), facecolor="none")
    axis.set_axis_off()
    for place, colour in enumerate([INK, GREY, "black", "#0072B2"]):
        axis.plot([0, 1], [place, place], color=colour, linewidth=20)
    svg = b64encode(to_svg(figure).encode()).decode()
    plt.close(figure)
    page = browser.new_page(color_scheme=system)
    page.set_content(PAGE.format(theme=theme, figure=svg))
    page.locator("img").evaluate("image => image.decode()")
    pixels = plt.imread(BytesIO(page.locator("img").screenshot()))[:, :, :3]
    page.close()

    found = {tuple(pixel) for pixel in np.round(255 * pixels[:, 100]).astype(int).tolist()}
    expected = {
        "light": {(255, 255, 255), (0x2B, 0x30, 0x38), (0x5F, 0x66, 0x70), (0, 0, 0)},
        "dark": {(0x12, 0x12, 0x12), (0xCE, 0xD6, 0xDD), (0xA3, 0xAB, 0xB6)},
    }
    assert expected[theme] | {(0, 0x72, 0xB2)} <= found
