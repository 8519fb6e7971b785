"""Speed, measured: named shapes, the arithmetic they need, and peers in the same run."""
