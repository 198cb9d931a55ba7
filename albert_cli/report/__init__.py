"""`albert report`: one page about the runs, results and data below some directories.

`collect` finds and reads the files, `build` arranges their contents as a page, and `render` prints the page as HTML or
Markdown. Nothing here computes a score.
"""
