"""``python -m slotgrid`` is the ``slotgrid`` command."""

from slotgrid.cli.main import main

main()
