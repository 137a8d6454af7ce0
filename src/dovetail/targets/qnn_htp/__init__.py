"""``qnn-htp:CHIP``: Qualcomm's HTP. Nothing is imported here, so that a child process of the vendor's stays light."""
