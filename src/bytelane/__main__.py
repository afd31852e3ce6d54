"""Run the command line as ``python -m bytelane``."""

from bytelane.cli import main

main()
