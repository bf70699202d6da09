"""Every estimator against the truth, and the papers' figures beside ours."""
