"""Write docs/broken_models.md: python tests/broken_matrix.py > docs/broken_models.md."""

import sys

from broken.catalogue import MUTANTS
from broken.matrix import noticing, page

if __name__ == "__main__":
    noticed = {}
    for mutant in MUTANTS:
        print(f"{len(noticed) + 1} of {len(MUTANTS)}: {mutant.name}", file=sys.stderr)
        noticed[mutant.name] = noticing(mutant)
    print(page(noticed), end="")
