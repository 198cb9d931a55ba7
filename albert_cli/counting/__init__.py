"""Parameters, FLOPs and bytes of a shape by arithmetic alone, without torch."""
