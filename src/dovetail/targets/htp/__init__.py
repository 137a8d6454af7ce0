"""What is true of Qualcomm's HTP, whichever way it is reached: chips, the op table, rewrites, rules."""
