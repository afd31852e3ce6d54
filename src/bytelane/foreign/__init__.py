"""Private names of other libraries: one module per library, each with a self-check.

Nothing else in Bytelane uses a name of torch, numba or Lightning that begins with an underscore.
"""
