"""``python -m bytelane``."""

from bytelane.cli import main

main()
