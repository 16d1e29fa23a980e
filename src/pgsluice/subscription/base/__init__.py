"""What the folders above share: options, work, results, requests, the barrier."""
