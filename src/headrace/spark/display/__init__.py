"""Display in notebooks: HTML of streams, running applications and verdicts, and progress that updates in place."""
