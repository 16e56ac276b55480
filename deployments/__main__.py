"""``python -m deployments``: the command line, where no script is on the path."""

from deployments.cli import main

if __name__ == "__main__":
    main()
