"""`python -m metaroce`: the command line without its script."""

import sys

from .cli import main

sys.exit(main())
