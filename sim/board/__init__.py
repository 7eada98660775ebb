"""The leaderboard: entrants of a study ranked by time, their certificates, and the page."""
