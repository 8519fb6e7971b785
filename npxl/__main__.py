"""python -m npxl."""

import sys

from npxl.cli import main

sys.exit(main())
