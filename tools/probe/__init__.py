"""Random calls at the functions of `fast`."""
