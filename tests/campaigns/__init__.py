"""Campaigns: commands that run `albert` with damaged files, failing system calls and kills, and compare results."""
