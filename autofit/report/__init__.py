"""What people see: console, HTML page, advice, and the lines to paste. Each reads a record; none measures."""
