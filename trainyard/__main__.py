"""`python -m trainyard`: the same as the console script `trainyard`."""

from trainyard.cli.app import main

if __name__ == "__main__":
    main()
