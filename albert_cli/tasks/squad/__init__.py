"""SQuAD: questions that are answered by a span of a text."""
