"""The colours of all figures. The same ones mean the same things on every page.

They are a module of their own because ranks need them, too: Matplotlib takes half a second in each.
"""

# Okabe and Ito's palette, which people with any colour vision can tell apart.
RANKS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8A8F98"]
INK = "#2b3038"
GREY = "#5f6670"
QUIET = "#c9cdd3"
PALE = "#e3e6ea"
KINDS = {"compute": "#56B4E9", "communication": "#D55E00", "waiting": QUIET}
