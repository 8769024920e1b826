"""The standalone script of a failure: it builds the input, calls both twins, shows the difference.

A script has at most 40 lines, knows nothing of Hypothesis, and ends with exit status 1 while there
is a difference.
"""

from conformance.script.attaching import attach_script, forget_script
from conformance.script.failure import script_of, script_of_crash
from conformance.script.saving import save_script

__all__ = ["attach_script", "forget_script", "save_script", "script_of", "script_of_crash"]
