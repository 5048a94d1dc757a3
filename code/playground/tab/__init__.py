"""Ranks in the reader's own tab: Python in one worker for the cells, and in one per rank.

`kernel` runs cells, `world` is the caller's side of `launch`, `rank` is its other side, and `group`
is what a rank communicates through. The pages' side of it is `book/_static/tab-*.js`.
"""
