"""`python -m distributed.planner`: the command in `command`."""

from distributed.planner.command import main

if __name__ == "__main__":
    main()
