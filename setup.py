"""Builds the extensions: every .pyx file of `tiny._core`, with one set of directives.

TINY_DEBUG_BUILD=1 builds with bounds checks, None checks and assertions, unoptimised. Kernels run
in several threads if the compiler has OpenMP, else in one.
Everything else about the package stands in pyproject.toml.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, ExecError

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


OPENMP = "/openmp" if sys.platform == "win32" else "-fopenmp"


class BuildExtensions(build_ext):
    """Builds extensions, the launcher with OpenMP where there is one."""

    def build_extension(self, ext: Extension) -> None:
        """Build one extension."""
        if ext.name.endswith(".launch"):
            if self.has_openmp():
                ext.extra_compile_args = [*ext.extra_compile_args, OPENMP]
                if sys.platform != "win32":
                    ext.extra_link_args = [*ext.extra_link_args, OPENMP]
            else:
                print("no OpenMP: kernels will run in one thread", file=sys.stderr)
        super().build_extension(ext)

    def has_openmp(self) -> bool:
        """Whether a program with a parallel region compiles and links."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "openmp.c")
            source.write_text(
                "#include <omp.h>\n"
                "int main(void) {\n"
                "    int n = 0;\n"
                "    #pragma omp parallel reduction(+:n)\n"
                "    n += omp_get_num_threads();\n"
                "    return n == 0;\n"
                "}\n"
            )
            try:
                made = self.compiler.compile(
                    [str(source)], output_dir=folder, extra_preargs=[OPENMP]
                )
                self.compiler.link_executable(
                    made,
                    "openmp",
                    output_dir=folder,
                    extra_preargs=[] if sys.platform == "win32" else [OPENMP],
                )
            except (CCompilerError, ExecError, subprocess.CalledProcessError):
                return False
        return True


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
    ),
    cmdclass={"build_ext": BuildExtensions},
)
