"""What the examples of a run must cover: hard cases, and sizes along each axis.

`goals` counts the hard cases that were reached; `presets` has the sizes of drawn inputs,
`size_axes` the bands of sizes that are counted separately.
"""
