"""The fixtures of this folder's tests."""

from tests.support.pipeline import pipeline as pipeline
