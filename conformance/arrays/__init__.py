"""Memory of arrays that a call must not access or change, and what finds that it did.

`guard_bands` puts elements around an array, `guarded_memory` inaccessible pages; `fresh_memory`
fills what is allocated during a call; `change_tracking` compares arguments before and after it.
"""
