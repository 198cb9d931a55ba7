"""Speed measurements on this machine."""
