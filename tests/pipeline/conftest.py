"""The fixtures of this folder's tests."""

from tests.support.local_spark import local_spark as local_spark
from tests.support.pipeline import pipeline as pipeline
