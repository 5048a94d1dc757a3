"""Models for planning: memory, bytes and time of a step as plain numbers, without torch or NumPy.

`command` is the command line, and `strategy` recommends. `job` describes a training, `memory` and
`schedules` predict what a strategy needs and how long its step takes.
"""
