"""The page for a browser that shows the status, and the JSON that feeds it."""
