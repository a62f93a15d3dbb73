"""`python -m salrun`."""

import os
import sys

if __name__ == "__main__":
    if sys.path[0] == os.getcwd():  # put there by -m: a torch.py in the current folder is not torch
        sys.path.append(sys.path.pop(0))

    from salrun.cli.main import main

    main()
