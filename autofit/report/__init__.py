"""Everything that people see: console, HTML page, advice and the lines to paste. It reads records and measures nothing."""
