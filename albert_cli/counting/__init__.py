"""What a shape has and costs, by arithmetic alone: parameters, FLOPs, bytes; no torch here."""
