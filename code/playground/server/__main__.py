"""`python -m playground.server`: see `app.py`."""

from playground.server.app import main

if __name__ == "__main__":
    main()
