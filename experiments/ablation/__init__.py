"""What interpolating is worth: schemes against each other, paired by seed."""
