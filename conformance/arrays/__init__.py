"""Detects calls that access or change memory of arrays that they must not.

`guard_bands` puts elements around an array, `guarded_memory` inaccessible pages;
`change_tracking` compares arguments before and after a call.
"""
