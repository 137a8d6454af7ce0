"""``python -m dovetail.cli``."""

from dovetail.cli.main import main

main()
