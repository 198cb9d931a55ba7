"""Campaigns: the program under damaged files, failing system calls and kills; each by a command of its own."""
