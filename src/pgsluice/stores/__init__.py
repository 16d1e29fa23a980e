"""Folders of files, on a disk or in an object store: one contract for both.

:mod:`.contract` says what a folder can do. :func:`.places.folder_at` opens one by its path or URL.
"""
