"""``qnn-htp:CHIP``: Qualcomm's HTP. Nothing is imported here, to keep the child processes of vendor tools light."""
