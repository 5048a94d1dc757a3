"""Planner page: a form for `distributed.planner.command`, entirely in Python.

The book's build writes the form and a first plan into the page. When a reader changes a field, the
same files run in the reader's own tab. They therefore import neither torch nor NumPy, except for
`figures`, which only its chapter uses.
"""
