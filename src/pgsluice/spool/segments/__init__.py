"""The chain: files of raw messages, written in commit order and read between two positions."""
