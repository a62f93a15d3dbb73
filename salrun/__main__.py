"""`python -m salrun`."""

from salrun.cli import main

if __name__ == "__main__":
    main()
