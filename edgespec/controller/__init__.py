"""The controller: which draft to verify next, at the measured prices and acceptance."""
