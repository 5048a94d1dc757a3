"""The planner of a page: `distributed.planner.command` behind a form, in Python all of it.

The book's build writes the form and a first plan into the page. When a reader changes something,
these same files run in the reader's own tab, so they import neither torch nor NumPy; all but the
`figures` of its chapter.
"""
