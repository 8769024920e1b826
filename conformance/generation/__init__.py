"""How examples are drawn: as Hypothesis does, in less time.

`profiles` sets how many, `examples` draws and runs them, and `shrinking` limits the time in which
failing ones are shrunk.
"""
