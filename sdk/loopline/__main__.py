"""Run the command `loopline` as `python -m loopline`."""

from loopline.cli import main

if __name__ == "__main__":
    main()
