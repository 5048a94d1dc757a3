"""Ranks in the reader's own tab: what Python does there, in a worker for the cells and one a rank.

`kernel` runs cells, `world` is the caller's side of `launch`, `rank` the other side, `group` what a
rank talks through. The pages' side of it is `book/_static/tab-*.js`.
"""
