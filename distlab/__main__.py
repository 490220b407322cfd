"""``python -m distlab doctor``: what to paste into a question."""

from __future__ import annotations

import argparse
import sys

from distlab.ranks.doctor import doctor


def main() -> int:
    """Runs the command named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m distlab")
    parser.add_argument("command", choices=["doctor"], help="print versions, devices and a self-test of two ranks")
    parser.parse_args()
    return 0 if doctor() else 1


if __name__ == "__main__":
    sys.exit(main())
