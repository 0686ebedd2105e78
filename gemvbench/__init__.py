"""Measure whether one GEMV kernel is really faster than another on this machine.

The command line is `gemvbench`. This module imports nothing, so that `gemvbench --help` starts
at once; import what you need from the modules below it.
"""

__version__ = "0.1.0"
