"""Colors of all figures, which mean the same things on every page.

They have their own module because ranks need them without Matplotlib, which takes half a second to
import on each rank.
"""

# Okabe and Ito's palette, whose colors are distinct with any kind of color vision.
RANKS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8A8F98"]
INK = "#2b3038"
GREY = "#5f6670"
QUIET = "#c9cdd3"
PALE = "#e3e6ea"
KINDS = {"compute": "#56B4E9", "communication": "#D55E00", "waiting": QUIET}
