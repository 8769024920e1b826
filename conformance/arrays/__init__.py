"""Detects calls that access or change memory of arrays that they must not.

`guard_bands` puts elements around an array, `guarded_memory` inaccessible pages; `fresh_memory`
fills memory allocated during a call; `change_tracking` compares arguments before and after it.
"""
