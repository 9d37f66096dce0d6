"""Which method to take: those not separable from the best, what they cost and what they need."""
