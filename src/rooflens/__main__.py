"""``python -m rooflens`` is the ``rooflens`` command."""

from rooflens.cli.main import main

main()
