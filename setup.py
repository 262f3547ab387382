"""Builds the extensions: every .pyx file of `tiny._core`, with one set of directives.

TINY_DEBUG_BUILD=1 builds with bounds checks, None checks and assertions, unoptimised.
Everything else about the package stands in pyproject.toml.
"""

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG_BUILD = os.environ.get("TINY_DEBUG_BUILD", "0") not in ("", "0")

DIRECTIVES = {
    "language_level": 3,
    "embedsignature": True,
    "cdivision": True,
    "boundscheck": DEBUG_BUILD,
    "initializedcheck": DEBUG_BUILD,
    "nonecheck": DEBUG_BUILD,
    "wraparound": False,
}

if sys.platform == "win32":
    COMPILE_ARGS = ["/Od", "/Zi"] if DEBUG_BUILD else ["/O2"]
else:
    # integers wrap, and a node is reached through pointers of several types
    COMPILE_ARGS = ["-fwrapv", "-fno-strict-aliasing"]
    if sys.platform == "linux":
        # calls of Python's functions without a jump through a table: 44 -> 29 ns a node found
        COMPILE_ARGS.append("-fno-plt")
    COMPILE_ARGS += ["-O1", "-g", "-UNDEBUG"] if DEBUG_BUILD else ["-O2", "-g0"]


def extensions() -> list[Extension]:
    """One extension a .pyx file."""
    os.chdir(Path(__file__).parent)  # the paths of an extension are relative to this file
    return [
        Extension(
            f"tiny._core.{path.stem}",
            [path.as_posix()],
            extra_compile_args=COMPILE_ARGS,
            define_macros=[] if DEBUG_BUILD else [("CYTHON_WITHOUT_ASSERTIONS", "1")],
        )
        for path in sorted(Path("src/tiny/_core").glob("*.pyx"))
    ]


setup(
    ext_modules=cythonize(
        extensions(),
        compiler_directives=DIRECTIVES,
        build_dir="build/cython-debug" if DEBUG_BUILD else "build/cython",
        include_path=["src"],
    )
)
