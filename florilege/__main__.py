"""``python -m florilege``: the command line."""

from florilege.cli import main

if __name__ == "__main__":
    main()
