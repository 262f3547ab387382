"""`python -m benchmarks.compile_time`: what `tiny bench compile` does, from a checkout."""

import sys

from tiny.cli import main

if __name__ == "__main__":
    main(["bench", "compile", *sys.argv[1:]])
