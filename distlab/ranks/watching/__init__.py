"""On a rank: notes what ordinary torch code sends, waits for, computes and holds in memory."""
