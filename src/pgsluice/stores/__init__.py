"""Folders of files, on a disk or in an object store: one contract for both.

:mod:`.contract` defines the operations of a folder. :func:`.places.folder_at` opens one by its path
or URL.
"""
