"""`python training/report.py` is `python -m dreamenvs.cli.report`, for those who have the repository."""

import tyro

from dreamenvs.cli.report import Args, main

if __name__ == "__main__":
    main(tyro.cli(Args))
