"""The grid on which rows are encoded."""

SCALE = 2.0**12
