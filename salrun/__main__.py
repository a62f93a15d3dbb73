"""`python -m salrun`."""

from salrun.cli.main import main

if __name__ == "__main__":
    main()
