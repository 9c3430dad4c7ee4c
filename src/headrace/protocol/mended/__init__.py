"""Messages that kio reads wrongly: our classes, on kio's machinery, with that mended. See `messages.MENDED`."""
