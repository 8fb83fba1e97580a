"""Translation problems, registered with T2T on import, one file a family."""
from problems import libreoffice, text_files  # noqa: F401
