"""``python -m distlab doctor``, ``labs`` and ``pictures``: the commands."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from distlab.course.kit.stored import store
from distlab.course.notebook import execute, notebooks_named, write_labs, write_release
from distlab.course.places import ROOT
from distlab.pictures.all import write_pictures
from distlab.ranks.doctor import doctor


def make_labs(options: argparse.Namespace) -> bool:
    """Writes the blank labs, and what else was asked for."""
    try:
        for path in notebooks_named(options.execute) if options.execute is not None else []:
            execute(path)
    except ValueError as error:  # there is no such notebook
        print(error, file=sys.stderr)
        return False
    print("\n".join(str(path.relative_to(ROOT)) for path in write_labs()))
    if options.release:
        write_release(Path(options.release))
        for name in store(Path(options.release)):
            print(f"stored what known mistakes in {name} give")
        print(f"{options.release}: the course without solutions")
    return True


def make_pictures(options: argparse.Namespace) -> bool:
    """Writes the drawings."""
    print("\n".join(str(path.relative_to(ROOT)) for path in write_pictures()))
    return True


def main() -> int:
    """Runs the command named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m distlab")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("doctor", help="print versions, devices and a self-test of two ranks")
    command.set_defaults(do=lambda options: doctor())
    command = commands.add_parser("labs", help="write labs/ from solutions/")
    command.add_argument(
        "--execute", nargs="*", metavar="NAME", help="first run solutions and demos, or those named (02), store outputs"
    )
    command.add_argument("--release", metavar="FOLDER", help="write a copy of the course without solutions to FOLDER")
    command.set_defaults(do=make_labs)
    command = commands.add_parser("pictures", help="write the drawings beside the labs and the solutions anew")
    command.set_defaults(do=make_pictures)
    options = parser.parse_args()
    return 0 if options.do(options) else 1


if __name__ == "__main__":
    sys.exit(main())
