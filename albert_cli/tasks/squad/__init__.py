"""SQuAD: questions that are answered by a span of a text, with their files, heads, windows and scores."""
