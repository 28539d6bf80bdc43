"""What people see: the live console, result files, and the lines to paste. Each reads a record; none measures."""
