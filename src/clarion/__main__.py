"""`python -m clarion` is the command `clarion`."""

from clarion.cli.main import main

if __name__ == "__main__":
    main()
