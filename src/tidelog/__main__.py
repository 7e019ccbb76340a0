"""`python -m tidelog` is the `tidelog` command."""

from tidelog.cli import main

main()
