"""Build the documentation site: run the pages' code, put the values in, make the HTML, check it.

python -m docs.builder                 # into site/
python -m docs.builder --out DIR       # into another folder
python -m docs.builder --no-dark       # charts in light colours only, in half the time
"""

from __future__ import annotations

import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from time import perf_counter

from docs.builder.build import build_site
from docs.builder.check import problems
from docs.builder.site_plan import ROOT
from docs.builder.source import BuildError


def main() -> None:
    """Parse the arguments, build, check, and say how it went."""
    arguments = ArgumentParser(description="Build the documentation site.")
    arguments.add_argument("--out", type=Path, default=ROOT / "site")
    arguments.add_argument("--no-dark", action="store_true", help="charts in light colours only")
    chosen = arguments.parse_args()
    begun = perf_counter()
    with tempfile.TemporaryDirectory(prefix="rooflens-docs-") as work:
        try:
            build_site(chosen.out, Path(work), dark=not chosen.no_dark)
        except BuildError as error:
            sys.exit(f"error: {error}")
    found = problems(chosen.out)
    for problem in found:
        print(problem, file=sys.stderr)
    if found:
        sys.exit(f"{len(found)} problems in the built pages")
    print(f"{chosen.out}: built and checked in {perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
