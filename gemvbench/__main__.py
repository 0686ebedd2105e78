"""`python -m gemvbench` is the command line."""

import sys

from gemvbench.cli import main

sys.exit(main())
