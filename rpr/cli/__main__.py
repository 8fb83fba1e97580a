"""`python -m rpr.cli`, the `rpr` command without an installed script."""
import sys

from rpr.cli import main

sys.exit(main())
